"""Files of this machine, read within bounds and written atomically.

A project may come from anywhere: a pipe among its files must not block a program, and a device must not fill its
memory. All files of projects are read here. Only the standard library is imported.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1_000_000  # of a file of a worker
MAX_CODE = 10_000_000  # bytes of a Python file of a project

# O_NONBLOCK: what was a file a moment ago may be a pipe now, and opening one waits for its other end.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a descriptor, which may take only some of them at once."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes. Raise an `OSError` for anything else."""
    return read_with_status(path, limit)[0]


def read_with_status(path: Path, limit: int = MAX_BYTES) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, as `read_file` does, and the status of the very file that was read."""
    check_regular(path)  # opening a device may do something already
    with closing_fd(os.open(path, _FLAGS)) as handle:
        status = os.fstat(handle)
        check_regular(path, status)
        chunks, size = [], 0
        # A file may grow while it is read, and one without a size may have content (in /proc).
        while size <= limit and (chunk := os.read(handle, min(status.st_size, limit) + 1)):
            chunks.append(chunk)
            size += len(chunk)
        if size > limit:
            many = max(size, status.st_size)
            raise OSError(errno.EFBIG, f"it has {many:,} bytes, and a file here has {limit:,} at most", str(path))
        return b"".join(chunks), status


def check_regular(path: Path, status: os.stat_result | None = None) -> None:
    """Raise an `OSError` for anything but a regular file. `status` is that of the file, if it is open already."""
    status = path.stat() if status is None else status
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a device or a socket, not a regular file", str(path))


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write or replace a file so that a reader finds all of it or nothing, whatever fails."""
    with temporary_beside(path, data, mode) as temporary:
        temporary.replace(path)


@contextmanager
def temporary_beside(path: Path, data: bytes, mode: int = 0o600) -> Iterator[Path]:
    """Write the new content of a file to a temporary one beside it, which is removed if it is not put in place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    temporary = Path(name)
    try:
        with closing_fd(handle):
            write_all(handle, data)
            os.fchmod(handle, mode)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other threads and processes out of a folder that they lock as well. The lock ends with its process."""
    with closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def foreign_part(path: Path, folder: Path, users: Collection[int]) -> Path | None:
    """Return the first part of a path, from a folder down to the file, that belongs to none of the users."""
    below = [part for part in (path, *path.parents) if part.is_relative_to(folder)]
    for part in reversed(below):
        for status in (part.lstat, part.stat):  # of a symlink, both its owner and the owner of its target count
            try:
                owner = status().st_uid
            except OSError:  # reading it will raise the error
                break
            if owner not in users:
                return part
    return None


def part_open_to_all(path: Path, folder: Path) -> Path | None:
    """Return the first part of a path, from the root down, that every user can replace or write; else `None`."""
    for part in reversed((path, *path.parents)):
        try:
            mode = part.stat().st_mode
        except OSError:  # it is not there, or reading it will raise the error
            break
        # In a folder above with the sticky bit, such as /tmp, no user can replace files of others.
        if mode & stat.S_IWOTH and (part.is_relative_to(folder) or not mode & stat.S_ISVTX):
            return part
    return None


@dataclass(frozen=True, slots=True)
class Owners:
    """The users whose files are used in a project."""

    users: Collection[int]
    root: Path
    lone: bool = False
    """Whether it is the folder of a lone worker: its owner does not matter, since it may be /tmp."""

    def refusal(self, path: Path) -> str | None:
        """Return why a file of the project is not used: a part of its path belongs to another user."""
        top = self.root / path.relative_to(self.root).parts[0] if self.lone else self.root
        if (part := foreign_part(path, top, self.users)) is None:
            return None
        return f"{part} belongs to another user. If you trust the project: llm-do trust {shlex.quote(str(self.root))}"


def own_users() -> set[int]:
    """Return the current user and, for root, the one who called `sudo`."""
    user, caller = os.geteuid(), os.environ.get("SUDO_UID", "")
    return {user, int(caller)} if user == 0 and caller.isdecimal() else {user}
