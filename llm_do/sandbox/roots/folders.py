"""An open folder, the files in it, and the protected paths that no folder shows."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from ...machine.files import closing_fd, write_all
from .states import ABSENT, FileState
from .system_calls import CREATE_FLAGS, exchange, rename_to_free_name

Inode = tuple[int, int]
_T = TypeVar("_T")

MAX_DEPTH = 64
SYMLINK = "it is, or leads through, a symlink, and symlinks are not followed; use the path of the file itself"
PROTECTED = "it belongs to the project itself (its workers, history or records), which no root reaches"
_TEMPORARY = ".llm-do-"
_CHUNK = 1 << 20

# O_NONBLOCK: opening a pipe must not wait for its other end.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Control characters, line separators, marks of text direction, bytes that are not UTF-8: with them, a person would not
# see what they approve.
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Refused(Exception):
    """The reason why a path is refused. A root makes it a `PathDenied` with the path as the caller wrote it."""


class Changed(Exception):
    """A file is not the expected one. A root makes it a `PathChanged`."""


@lru_cache(maxsize=1024)
def split_path(path: str) -> tuple[str, ...]:
    """Split a path below a root into names."""
    if path.startswith("/"):
        raise Refused("paths are relative to a root, never absolute")
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if len(names) > MAX_DEPTH:
        raise Refused(f"it has more than {MAX_DEPTH} names")
    for name in names:
        if problem := _problem(name):
            raise Refused(problem)
    return names


def _problem(name: str) -> str | None:
    if name == ".." or name.startswith("~"):
        return "'..' and '~' are not allowed; write the path from the root down"
    if _UNREADABLE.search(name):
        return "a name has control characters or is not Unicode text"
    if len(name.encode()) > 255:
        return "a name is longer than 255 bytes"
    if name.startswith(_TEMPORARY):
        return f"names that start with {_TEMPORARY!r} are for files that are being written"
    return None


def check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Refused(f"it has {size} bytes, and a file here has {limit} at most")


class Protected:
    """Paths that no root reaches, with everything below them, under any name."""

    def __init__(self, paths: Iterable[Path]) -> None:
        # If a protected path is a symlink, both the link and its target are protected.
        self._paths = {real for path in paths for real in (path.resolve(), path.parent.resolve() / path.name)}
        self._texts = [str(path) for path in self._paths]

    @property
    def paths(self) -> list[Path]:
        """The protected paths, without symlinks on the way."""
        return sorted(self._paths)

    def covers(self, folder: Path) -> bool:
        """Return whether a whole folder is protected."""
        return any(folder.is_relative_to(path) for path in self._paths)

    def names_below(self, folder: Path) -> frozenset[tuple[str, ...]]:
        """Return the protected paths below a folder as names in lower case: some disks take `.GIT` for `.git`."""
        below = (path.relative_to(folder) for path in self._paths if path.is_relative_to(folder))
        return frozenset(tuple(name.casefold() for name in path.parts) for path in below)

    def inodes(self) -> set[Inode]:
        """Return the inodes of the paths that exist: a bind mount gives a folder another path, but the same inode."""
        found = set()
        for path in self._texts:
            try:  # not with `suppress` or `Path.stat`: this takes much of the time of every operation
                found.add(_inode(os.stat(path)))  # noqa: PTH116
            except OSError:
                continue
        return found


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def check_inode(status: os.stat_result, protected: set[Inode]) -> None:
    if _inode(status) in protected:
        raise Refused(PROTECTED)


@dataclass(slots=True)
class Folder:
    """An open folder. Operations act in this folder even if its path means another one by then."""

    fd: int
    names: tuple[str, ...]
    """Its path below its root."""
    protected: set[Inode]

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.fd)

    def status(self, name: str) -> os.stat_result:
        return self._check(os.stat(name, dir_fd=self.fd, follow_symlinks=False))

    def _check(self, status: os.stat_result) -> os.stat_result:
        check_inode(status, self.protected)
        if stat.S_ISDIR(status.st_mode):
            raise Refused("it is a folder, not a file")
        if stat.S_ISLNK(status.st_mode):
            raise Refused(SYMLINK)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("it is a pipe, a device or a socket, not a regular file")
        return status

    def entries(self) -> list[tuple[str, bool]]:
        """Return the names in it, and whether each is a folder, without symlinks, devices and the like."""
        found = []
        with os.scandir(self.fd) as entries:
            for entry in entries:
                try:  # not with `suppress`: there may be many
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # removed meanwhile
                    continue
                is_folder = stat.S_ISDIR(status.st_mode)
                usual = is_folder or stat.S_ISREG(status.st_mode)
                if usual and _inode(status) not in self.protected and _problem(entry.name) is None:
                    found.append((entry.name, is_folder))
        return sorted(found, key=itemgetter(0))  # sorting keeps all other threads waiting, so compare no more

    def scan(self, name: str, limit: int, consume: Callable[[Iterator[bytes]], _T]) -> _T:
        """Return the result of `consume`, which gets the content of a file of at most `limit` bytes in pieces."""
        with closing_fd(os.open(name, _READ_FLAGS, dir_fd=self.fd)) as fd:
            status = self._check(os.fstat(fd))
            if status.st_nlink > 1:
                raise Refused("it is a hard link, perhaps another name of a file outside the root; use a copy")
            return consume(_content(fd, status, limit))

    def state(self, name: str, limit: int) -> FileState:
        """Return the state of a file, with its content if it has at most `limit` bytes."""
        try:
            fd = os.open(name, _READ_FLAGS, dir_fd=self.fd)
        except FileNotFoundError:
            return ABSENT
        except OSError:  # a symlink, a socket, or not readable
            return FileState.of_status(os.stat(name, dir_fd=self.fd, follow_symlinks=False))
        with closing_fd(fd):
            status = os.fstat(fd)
            check_inode(status, self.protected)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return FileState.of_status(status)
            return FileState.of_content(b"".join(_content(fd, status, limit)), status.st_mode)

    def replace(self, name: str, data: bytes, mode: int | None, expected: FileState | None, limit: int) -> None:
        """Write a file atomically. With `expected`, replace only that file."""
        temporary = _temporary_name()
        fd = os.open(temporary, CREATE_FLAGS, 0o644 if mode is None else 0o600, dir_fd=self.fd)
        try:
            with closing_fd(fd):
                write_all(fd, data)
                if mode is not None:
                    os.fchmod(fd, mode & 0o777)
                new = _inode(os.fstat(fd))
            if expected is None:
                os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            elif expected == ABSENT:
                try:
                    rename_to_free_name(self.fd, temporary, self.fd, name)
                except FileExistsError:
                    raise Changed from None
            else:
                self._exchange(temporary, name, new, expected, limit)
        except BaseException:
            self.unlink(temporary)
            raise

    def _exchange(self, temporary: str, name: str, new: Inode, expected: FileState, limit: int) -> None:
        # After the exchange the file is compared again: no other can take its place by then. A process that still has
        # it open can only change a removed file.
        if self.state(name, limit) != expected:
            raise Changed
        try:
            if not exchange(self.fd, temporary, name):
                # Without an atomic exchange, a file that takes the place at this moment is lost.
                os.replace(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
                return
            if self.state(temporary, limit) == expected:
                self.unlink(temporary)
                return
            exchange(self.fd, temporary, name)
            if _inode(os.stat(temporary, dir_fd=self.fd, follow_symlinks=False)) != new:
                exchange(self.fd, temporary, name)  # a third file took the place meanwhile: it is the newest
        except FileNotFoundError:
            pass
        raise Changed

    def move(self, name: str, target: Folder, new_name: str, expected: FileState | None, limit: int) -> None:
        """Rename a file to a free name. With `expected`, only that file."""
        if expected is not None and self.state(name, limit) != expected:
            raise Changed
        try:
            rename_to_free_name(self.fd, name, target.fd, new_name)
        except OSError as exc:
            if exc.errno != errno.EXDEV:
                raise
            self._move_by_copy(name, target, new_name, expected, limit)
            return
        if expected is not None and target.state(new_name, limit) != expected:
            with suppress(FileExistsError):  # a newer file has taken the old name
                rename_to_free_name(target.fd, new_name, self.fd, name)
            target.unlink(new_name)
            raise Changed

    def _move_by_copy(self, name: str, target: Folder, new_name: str, expected: FileState | None, limit: int) -> None:
        """Move a file to another disk, if it does not change meanwhile."""
        mode = self.status(name).st_mode
        state = FileState.of_content(content := self.scan(name, limit, b"".join), mode)
        if expected not in (None, state):
            raise Changed
        try:
            target.replace(new_name, content, mode, ABSENT, limit)
        except Changed:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        try:
            self.remove(name, state, limit)
        except (Changed, OSError):
            target.unlink(new_name)
            raise

    def remove(self, name: str, expected: FileState | None, limit: int) -> None:
        """Remove a file. With `expected`, only that file, which is compared after a rename."""
        if expected is None:
            os.unlink(name, dir_fd=self.fd)
            return
        temporary = _temporary_name()
        try:
            self.move(name, self, temporary, expected, limit)
        except FileNotFoundError:
            raise Changed from None
        self.unlink(temporary)

    def unlink(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)


def _content(fd: int, status: os.stat_result, limit: int) -> Iterator[bytes]:
    check_size(status.st_size, limit)
    size = 0
    # A file may grow while it is read, and one without a size may have content (in /proc).
    while chunk := os.read(fd, min(status.st_size + 4096, _CHUNK)):
        check_size(size := size + len(chunk), limit)
        yield chunk


def _temporary_name() -> str:
    return f"{_TEMPORARY}{secrets.token_hex(8)}"
