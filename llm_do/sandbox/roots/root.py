"""One root: every operation opens the folder of its file, checks the open folder, and acts in it.

No path is resolved twice, so nothing can take its place in between.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from ...errors import LlmDoError, PathChanged, PathDenied, PathFailed, PathMissing, did_you_mean
from ...values.patterns import Glob
from ...values.texts import quote
from .config import SandboxConfig
from .folders import (
    MAX_DEPTH,
    PROTECTED,
    SYMLINK,
    Changed,
    Folder,
    Inode,
    Protected,
    Refused,
    check_inode,
    check_size,
    split_path,
)
from .repositories import is_repository, is_repository_name, repository_around
from .states import ABSENT, FileState
from .system_calls import FOLDER_FLAGS, Opener, open_in, walk

_MAX_PATH = 4096
_P = ParamSpec("_P")
_T = TypeVar("_T")

Keep: TypeAlias = Callable[[str], bool]
"""Returns whether a list or a search includes a path below a root. Excluded ones do not count for a limit."""

CHANGES = threading.RLock()
"""Held while a file changes: an edit reads and then writes, and two workers may edit one file in two roots."""

REPOSITORY = "it belongs to a repository, whose settings name programs that run outside of any sandbox"
ROOT_SYMLINK = "there is a symlink on the way to the folder of its root; write where it leads, as an absolute path"

_WHY = {
    errno.ELOOP: SYMLINK,
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.ENXIO: "it is a socket, not a regular file",
    errno.EEXIST: "something is there already, and nothing is overwritten",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "the operating system does not permit it"),
    errno.EROFS: "the disk is read only",
    errno.ENAMETOOLONG: "it is too long",
}


def _explained(method: Callable[Concatenate[Root, str, _P], _T]) -> Callable[Concatenate[Root, str, _P], _T]:
    """Make the errors of a method name the path as the caller wrote it, not a path of the host."""

    @wraps(method)
    def call(self: Root, path: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(self, path, *args, **kwargs)
        except LlmDoError:
            raise
        except (Refused, Changed, OSError) as exc:
            error = self._explain(exc, path)
        raise error  # outside of the handler: the original names things of the host

    return call


class Root:
    """A folder with a name. It is opened at its first use and stays open."""

    def __init__(self, name: str, sandbox: SandboxConfig, *, base: Path, protected: Protected, opener: Opener) -> None:
        self._fd: int | None = None
        self._lock = threading.Lock()
        self.name = name
        self.config = sandbox.paths[name]
        self.folder = self.config.folder(base)
        """Its path at this moment. A symlink that takes its place later is not followed."""
        self._open = opener
        self._protected = protected
        self._protected_names = protected.names_below(self.folder)
        self._writable = ", ".join(repr(other) for other, config in sandbox.paths.items() if config.mode == "rw")

    def close(self) -> None:
        """Close the folder. The next use opens it again."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def __del__(self) -> None:
        self.close()

    def quoted_path(self, path: str) -> str:
        """Return a path in this root as messages name it."""
        return quote(f"{self.name}/{path}" if path else self.name, _MAX_PATH)

    def change_error(self, path: str) -> PathChanged:
        """Return the error for a file that is not the expected one."""
        return PathChanged(f"{self.quoted_path(path)} has changed since it was looked at, and is left as it is.")

    @_explained
    def normalize(self, path: str) -> str:
        """Return a path without empty names and dots, if this root may have it. Nothing is opened."""
        return "/".join(self._names(path))

    @_explained
    def open(self, path: str) -> Folder:
        """Open a folder, which the caller closes. In a writable root, create a missing one."""
        return self._folder(self._names(path), make=self.config.mode == "rw")

    @_explained
    def scan(self, path: str, consume: Callable[[Iterator[bytes]], _T]) -> _T:
        """Return the result of `consume`, which gets the content of a file in pieces."""
        folder, name = self._locate(path)
        with folder:
            return folder.scan(name, self.config.max_file_bytes, consume)

    @_explained
    def stat(self, path: str) -> os.stat_result:
        """Return the status of a file: its size, time and the like."""
        folder, name = self._locate(path)
        with folder:
            return folder.status(name)

    @_explained
    def mode(self, path: str) -> int:
        """Return the type and the mode of whatever is at a path."""
        names = self._names(path)
        try:
            with self._folder(names[:-1]) as folder:
                return os.stat(names[-1] if names else ".", dir_fd=folder.fd, follow_symlinks=False).st_mode
        except NotADirectoryError as exc:
            raise FileNotFoundError(exc.errno, exc.strerror) from None

    @_explained
    def state(self, path: str) -> FileState:
        """Return the state of a file, to compare it later."""
        try:
            folder, name = self._locate(path)
        except FileNotFoundError:
            return ABSENT
        with folder:
            return folder.state(name, self.config.max_file_bytes)

    @_explained
    def write(self, path: str, data: bytes, expected: FileState | None = None) -> None:
        """Create a file or replace its content, and create its folders. With `expected`, replace only that file."""
        with self._locate_to_change(path, len(data), make=True) as (folder, name):
            mode = None
            with suppress(FileNotFoundError):
                mode = folder.status(name).st_mode
            folder.replace(name, data, mode, expected, self.config.max_file_bytes)

    @_explained
    def delete(self, path: str, expected: FileState | None = None) -> None:
        """Remove a file. With `expected`, only that file."""
        with self._locate_to_change(path) as (folder, name):
            folder.status(name)
            folder.remove(name, expected, self.config.max_file_bytes)

    @_explained
    def move(self, path: str, other: Root, destination: str, expected: FileState | None = None) -> None:
        """Move a file to a free path, in this root or another. With `expected`, only that file."""
        with self._locate_to_change(path) as (folder, name):
            check_size(folder.status(name).st_size, self.config.max_file_bytes)
            if not other._receive(destination, folder, name, expected):
                raise Changed

    @_explained
    def _receive(self, path: str, source: Folder, source_name: str, expected: FileState | None) -> bool:
        """Take over a file from a folder, and return whether it was the expected one."""
        status, limit = source.status(source_name), self.config.max_file_bytes
        with self._locate_to_change(path, status.st_size, make=True) as (folder, name):
            try:
                source.move(source_name, folder, name, expected, limit)
            except Changed:
                return False
        return True

    @_explained
    def entries(
        self, path: str, limit: int | None = None, *, pattern: str = "*", keep: Keep | None = None
    ) -> list[str]:
        """Return the files and folders with a path below a folder that matches, as `SandboxToolset.list_files`."""
        return self._list(self._names(path), pattern, limit, keep, with_folders=True)

    @_explained
    def find(self, pattern: str, limit: int | None = None, *, keep: Keep | None = None) -> list[str]:
        """Return the files with a path that matches a pattern, as `SandboxToolset.find`."""
        return self._list((), pattern, limit, keep, with_folders=False)

    def _list(
        self, names: tuple[str, ...], pattern: str, limit: int | None, keep: Keep | None, *, with_folders: bool
    ) -> list[str]:
        glob = Glob(split_path(pattern), lambda step: lambda name: fnmatchcase(name, step))
        with self._folder(names) as folder:
            found = self._matches(folder, glob, glob.start(), with_folders=with_folders)
            return list(islice(filter(keep, found), limit))

    def _matches(self, folder: Folder, glob: Glob, places: set[int], *, with_folders: bool) -> Iterator[str]:
        """Yield the matches below a folder. `places` are the numbers of steps that its path may have matched."""
        for name, is_folder in self._visible(folder):
            after = glob.after(places, name)
            names = (*folder.names, name)
            if glob.is_complete(after) and (with_folders or not is_folder):
                yield "/".join(names) + "/" * is_folder
            if is_folder and after - {len(glob.steps)} and len(names) < MAX_DEPTH:
                with suppress(OSError):  # removed or replaced meanwhile, or not readable
                    with Folder(open_in(folder.fd, name), names, folder.protected) as below:
                        yield from self._matches(below, glob, after, with_folders=with_folders)

    def _visible(self, folder: Folder) -> list[tuple[str, bool]]:
        return [
            (name, is_folder)
            for name, is_folder in folder.entries()
            if (is_folder or self.config.allows_name(name)) and not self._is_protected((*folder.names, name))
        ]

    def _names(self, path: str) -> tuple[str, ...]:
        names = split_path(path)
        if self._is_protected(names):
            raise Refused(PROTECTED)
        return names

    def _is_protected(self, names: tuple[str, ...]) -> bool:
        """Return whether names lead to a protected path. It need not exist: it must not be created either."""
        if not self._protected_names:
            return False
        folded = tuple(name.casefold() for name in names)
        return any(folded[: len(protected)] == protected for protected in self._protected_names)

    def _locate(self, path: str, *, make: bool = False) -> tuple[Folder, str]:
        """Return the open folder of a file, and the file's name in it."""
        names = self._names(path)
        if not names:
            raise Refused("it is a folder, not a file")
        if not self.config.allows_name(names[-1]):
            suffixes = " or ".join(map(repr, self.config.suffixes or ()))
            raise Refused(f"root {self.name!r} has only files that end with {suffixes or 'nothing at all'}")
        return self._folder(names[:-1], make=make), names[-1]

    @contextmanager
    def _locate_to_change(self, path: str, size: int = 0, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """Locate a file to create, change or remove. Refuse files of a repository, and files that make one."""
        if self.config.mode != "rw":
            raise Refused(f"root {self.name!r} is read only; roots to write to: {self._writable or 'none'}")
        check_size(size, self.config.max_file_bytes)
        with CHANGES:
            names = self._names(path)
            for depth, name in enumerate(names):
                with suppress(FileNotFoundError), self._folder(names[:depth]) as above:
                    if is_repository(above.fd) or is_repository(above.fd, also=name):
                        raise Refused(REPOSITORY)
            if any(map(is_repository_name, names)):
                raise Refused(REPOSITORY)
            folder, name = self._locate(path, make=make)
            with folder:
                yield folder, name

    def _folder(self, names: tuple[str, ...], *, make: bool = False) -> Folder:
        protected = self._protected.inodes()
        with self._lock:  # a descriptor that is closed meanwhile could mean another folder
            return self._enter(self._top(protected, make), names, protected, make)

    def _top(self, protected: set[Inode], make: bool) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:  # the folder was removed
            os.close(self._fd)
            self._fd = None
        if self._fd is None:
            if self._protected.covers(self.folder):
                raise Refused(PROTECTED)
            with Folder(os.open("/", FOLDER_FLAGS), (), protected) as slash:
                if self.config.mode == "rw" and (repository := repository_around(self.folder)) is not None:
                    raise Refused(f"its root cannot be writable: the folder {repository.name!r} is a repository")
                try:
                    self._fd = self._enter(slash.fd, self.folder.parts[1:], protected, make).fd
                except OSError as exc:
                    if exc.errno == errno.ELOOP or (exc.errno == errno.ENOTDIR and self.folder.is_dir()):
                        raise Refused(ROOT_SYMLINK) from None
                    raise
        return self._fd

    def _enter(self, top: int, names: tuple[str, ...], protected: set[Inode], make: bool) -> Folder:
        """Open a folder below `top`, if neither it nor one on the way is protected."""
        try:
            folder = Folder(self._open(top, names), names, protected)
        except FileNotFoundError:
            if not make:
                raise
            return Folder(walk(top, names, lambda fd: check_inode(os.fstat(fd), protected)), names, protected)
        try:
            if names:
                check_inode(os.fstat(folder.fd), protected)
            for up in range(1, len(names)):
                check_inode(os.stat("../" * up, dir_fd=folder.fd), protected)
        except BaseException:
            os.close(folder.fd)
            raise
        return folder

    def _explain(self, exc: Refused | Changed | OSError, path: str) -> LlmDoError:
        quoted_path = self.quoted_path(path)
        if isinstance(exc, Changed):
            return self.change_error(path)
        if isinstance(exc, FileNotFoundError):
            missing = PathMissing(f"{quoted_path} does not exist. {self._describe_nearby(split_path(path))}")
            missing.brief = f"{quoted_path} does not exist."
            return missing
        if why := str(exc) if isinstance(exc, Refused) else _WHY.get(exc.errno or 0):
            denied = PathDenied(f"{quoted_path} is refused: {why}.")
            if isinstance(exc, NotADirectoryError):  # so there is a file
                denied.brief = f"{quoted_path} does not exist."
            return denied
        assert isinstance(exc, OSError)
        failed = PathFailed(f"{quoted_path} failed: {exc.strerror}. A file that was there is unchanged.")
        failed.errno = exc.errno
        return failed

    def _describe_nearby(self, names: tuple[str, ...]) -> str:
        """Name similar files in the deepest existing folder of a path."""
        for depth in reversed(range(len(names))):
            with suppress(OSError, Refused):
                with self._folder(names[:depth]) as folder:
                    names_there = [name for name, _ in self._visible(folder)]
                folder_path = "/".join((self.name, *names[:depth]))
                nearby = did_you_mean(names[depth], names_there, prefix=f"{folder_path}/")
                return nearby.strip() or f"{quote(folder_path)} is empty."
        return f"The folder of root {self.name!r} is not there" + (
            ": the first file that is written makes it." if self.config.mode == "rw" else "."
        )
