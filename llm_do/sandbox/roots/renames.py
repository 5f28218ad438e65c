"""Atomic renames that do not overwrite: `renameat2`, and the nearest to it elsewhere."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from contextlib import suppress

_NO_REPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
_CLAIM_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # glibc 2.28, musl 1.2.5
if _renameat2 is not None:
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    _renameat2.restype = ctypes.c_int


def exchange(folder: int, one: str, other: str) -> bool:
    """Exchange two names in a folder atomically. Return False where the system cannot."""
    try:
        _rename(folder, one, folder, other, _EXCHANGE)
    except OSError as exc:
        if exc.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def rename_to_free_name(source: int, name: str, target: int, new_name: str) -> None:
    """Rename something to a free name, or raise `FileExistsError`: of several processes, one succeeds."""
    try:
        _rename(source, name, target, new_name, _NO_REPLACE)
        return
    except OSError as exc:
        if exc.errno not in _UNSUPPORTED:
            raise
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
        # A disk without hard links: the name is taken first, and the file takes its place.
        os.close(os.open(new_name, _CLAIM_FLAGS, 0o600, dir_fd=target))
        try:
            os.replace(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        except OSError:
            os.unlink(new_name, dir_fd=target)
            raise
    else:
        os.unlink(name, dir_fd=source)


def _rename(source: int, name: str, target: int, new_name: str, flags: int) -> None:
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(source, os.fsencode(name), target, os.fsencode(new_name), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
