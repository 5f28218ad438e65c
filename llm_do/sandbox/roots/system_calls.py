"""System calls that Python does not have, and the best replacements on other systems.

A path that is checked and then opened by name may mean something else by then. Here the kernel resolves it once, below
an open folder (`openat2`), or it is opened name by name, each in the folder opened before (`walk`). Symlinks are never
followed, so the names in a path are the real ones. Renames are atomic and do not overwrite (`renameat2`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from ...machine.files import closing_fd

Opener = Callable[[int, Sequence[str]], int]
"""Opens the folder at a path of names below an open one, and returns its descriptor."""

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_SYS_OPENAT2 = 437  # the same number on every architecture but alpha
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


# Without O_NOFOLLOW, which would make a symlink in the last place an ENOTDIR.
_HOW = _OpenHow(FOLDER_FLAGS & ~os.O_NOFOLLOW, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
_HOW_POINTER = ctypes.pointer(_HOW)
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)
_syscall.restype = ctypes.c_long

_NO_REPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)

_renameat2 = getattr(_libc, "renameat2", None)  # glibc 2.28, musl 1.2.5
if _renameat2 is not None:
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    _renameat2.restype = ctypes.c_int


def openat2(top: int, names: Sequence[str]) -> int:
    """Open a folder with one system call, which Linux has since 5.6."""
    path = os.fsencode("/".join(names) or ".")
    while (fd := _syscall(_SYS_OPENAT2, top, path, _HOW_POINTER, ctypes.sizeof(_HOW))) < 0:
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return int(fd)


def walk(top: int, names: Sequence[str], check: Callable[[int], None] | None = None) -> int:
    """Open a folder name by name. With `check`, which gets each folder, also create missing ones."""
    fd = open_in(top, ".")  # not a duplicate, which would share its position with another listing
    try:
        for name in names:
            try:
                below = open_in(fd, name)
            except FileNotFoundError:
                if check is None:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
                below = open_in(fd, name)
            os.close(fd)
            fd = below
            if check is not None:
                check(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_in(folder: int, name: str) -> int:
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except NotADirectoryError:
        # With O_DIRECTORY the kernel reports a symlink like a file.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@cache
def best_opener() -> Opener:
    """Return `openat2` if this kernel has it and nothing forbids it, as old container runtimes do, else `walk`."""
    if sys.platform != "linux":
        return walk
    with closing_fd(os.open("/", FOLDER_FLAGS)) as slash:
        try:
            os.close(openat2(slash, ()))
        except OSError:
            return walk
    return openat2


def exchange(folder: int, one: str, other: str) -> bool:
    """Exchange two names in a folder atomically. Return False if the system cannot."""
    return _rename(folder, one, folder, other, _EXCHANGE)


def rename_to_free_name(source: int, name: str, target: int, new_name: str) -> None:
    """Rename a file or folder to a free name, or raise `FileExistsError`: of several processes, one succeeds."""
    if _rename(source, name, target, new_name, _NO_REPLACE):
        return
    if stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
        _rename_folder(source, name, target, new_name)
    else:
        _rename_file(source, name, target, new_name)


def _rename_folder(source: int, name: str, target: int, new_name: str) -> None:
    """Claim the free name with an empty folder, which the system lets another folder replace."""
    os.mkdir(new_name, 0o700, dir_fd=target)
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except OSError:
        with suppress(OSError):  # another process put something into it
            os.rmdir(new_name, dir_fd=target)
        raise


def _rename_file(source: int, name: str, target: int, new_name: str) -> None:
    try:
        os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as exc:
        if exc.errno not in _UNSUPPORTED:
            raise
        # A disk without hard links: take the name with an empty file, then replace that.
        os.close(os.open(new_name, CREATE_FLAGS, 0o600, dir_fd=target))
        try:
            os.replace(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        except OSError:
            os.unlink(new_name, dir_fd=target)
            raise
    else:
        os.unlink(name, dir_fd=source)


def _rename(source: int, name: str, target: int, new_name: str, flags: int) -> bool:
    """Rename a file or folder with flags. Return False if the system has none."""
    if _renameat2 is None:
        return False
    if _renameat2(source, os.fsencode(name), target, os.fsencode(new_name), flags) == 0:
        return True
    if (number := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))
