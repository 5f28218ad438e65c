"""Repositories of git and Mercurial in a folder that commands can write: found, and disabled if they are new.

A repository's configuration names programs, which run at the next `git status` of its owner, outside of any sandbox. So
commands can only read existing repositories, and those that a command leaves are renamed when it ends.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ...machine.files import closing_fd
from .system_calls import FOLDER_FLAGS, best_opener, rename_to_free_name

Names = tuple[str, ...]


class Identity(NamedTuple):
    """A file or folder, independent of its name."""

    device: int
    inode: int
    mode: int
    """Its type: a folder, a file or something else."""
    target: str
    """The target of a symlink."""


DISABLED = ".disabled-by-llm-do"
HEAD = "head"
_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else FOLDER_FLAGS
_PARTS = frozenset(("config", "objects", "refs", "commondir"))
_MAX_PART = max(map(len, _PARTS))
_OWN_FOLDERS = frozenset(("hooks", "info", "logs", "modules", "objects", "refs", "worktrees"))
_MAX_PATH_BYTES = 4095  # the limit of the system: git does not get into folders with a longer path

# Variants that some file systems take for the same name, like those of git's `core.protectHFS` and `core.protectNTFS`:
# ignored characters, dots and spaces at the end, streams, short names.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_FIRST = frozenset(".gGhH")
_NAME = re.compile(r"\.(git|hg)[. ]*(:.*)?|git~[0-9]+|hg~[0-9]+", re.IGNORECASE | re.DOTALL)


def is_repository_name(name: str) -> bool:
    """Return whether this is the name of a repository: `.git`, or a variant that some disk takes for the same."""
    if name.isascii() and name[:1] not in _FIRST:  # fast, for most of perhaps many names
        return False
    return _NAME.fullmatch(_IGNORED.sub("", name)) is not None


def makes_repository(names: Iterable[str]) -> bool:
    """Return whether git takes a folder with these names in it for a repository."""
    folded = {name.casefold() for name in names if len(name) <= _MAX_PART}
    return HEAD in folded and not folded.isdisjoint(_PARTS)


def is_repository(folder: int, *, also: str = "") -> bool:
    """Return whether git takes an open folder for a repository, or would if it also had the name `also`."""
    if also.casefold() != HEAD and not _exists(folder, "HEAD"):
        return False
    return makes_repository(["HEAD", also, *(name for name in _PARTS if _exists(folder, name))])


def repository_around(folder: Path) -> Path | None:
    """Return the repository that a folder is or is a part of. A work tree is no part, even inside its folder."""
    for above in (folder, *folder.parents):
        if is_repository_name(above.name):
            return above
        if above != folder and folder.relative_to(above).parts[0] not in _OWN_FOLDERS:
            continue
        with suppress(OSError), closing_fd(os.open(above, FOLDER_FLAGS)) as fd:
            if is_repository(fd):
                return above
    return None


def find_repositories(top: int) -> tuple[dict[Names, Identity | None], list[Names]]:
    """Return the repositories below an open folder by path, and the paths of those with a file `commondir`.

    That file names another folder for their settings. An unreadable folder counts as a repository; its identity is
    `None` if only the path is known.
    """
    places, unreadable, with_commondir = dict[Names, Identity | None](), list[Names](), list[Names]()
    for names, fd, entries in _walk(top, frozenset(), unreadable, repair=False):
        if names and makes_repository(entries):
            places[names] = _identity(fd, ".")
            with_commondir += [names] if _has_commondir(fd, ".") else []
            entries.clear()  # those inside belong to it
        for name in [name for name in entries if is_repository_name(name)]:
            del entries[name]
            with suppress(FileNotFoundError):
                # A pipe or a socket is no repository, and nothing can keep a command from replacing it.
                if (found := _identity(fd, name)).mode in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
                    places[*names, name] = found
                    with_commondir += [(*names, name)] if _has_commondir(fd, name) else []
    for names in unreadable:
        places[names] = None
        with suppress(OSError):
            places[names] = _identity(top, "/".join(names))
    return places, with_commondir


def disable_new(top: int, known: frozenset[Identity]) -> tuple[list[str], dict[str, str]]:
    """Rename what makes repositories below an open folder, except known ones.

    Return the renamed paths, which may not be text, and the reason for each that failed. An unreadable folder is made
    readable: its owner could get into it by name.
    """
    renamed, failed, unreadable = list[str](), dict[str, str](), list[Names]()
    for names, fd, entries in _walk(top, known, unreadable, repair=True):
        wrong = {name for name in entries if is_repository_name(name)}
        if makes_repository(entries):
            wrong |= {name for name in entries if name.casefold() == HEAD}
        for name in sorted(wrong):
            path = "/".join((*names, name))
            try:
                is_folder = entries.pop(name)
                if _identity(fd, name) not in known:
                    entries[_disable(fd, name)] = is_folder  # there may be more inside
                    renamed.append(path)
            except FileNotFoundError:
                continue
            except OSError as exc:
                failed[path] = exc.strerror or type(exc).__name__
    return renamed, failed | {"/".join(names): "it cannot be read" for names in unreadable}


def _disable(folder: int, name: str) -> str:
    """Rename a file or folder so that it makes no repository, and return its new name."""
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
        _grant_owner_access(folder)
    for number in count():
        new = f"{name}{DISABLED}{number or ''}"
        with suppress(FileExistsError):
            rename_to_free_name(folder, name, folder, new)
            return new
    raise AssertionError


def _walk(
    top: int, skip: frozenset[Identity], unreadable: list[Names], *, repair: bool
) -> Iterator[tuple[Names, int, dict[str, bool]]]:
    """Yield every folder below an open one, with the names in it and whether each is a folder.

    The walk goes into the folders that the caller leaves among the names. Symlinks are not followed, and paths that are
    too long for git are skipped. Unreadable folders are added to `unreadable` or, with `repair`, made readable.
    """
    waiting: list[Names] = [()]
    while waiting:
        names = waiting.pop()
        try:
            fd = best_opener()(top, names)
        except PermissionError:
            with suppress(OSError):
                if _identity(top, "/".join(names)) in skip:
                    continue
            if not repair or (reopened := _open_unreadable(top, names)) is None:
                unreadable.append(names)
                continue
            fd = reopened
        except OSError:  # gone meanwhile, or replaced
            continue
        with closing_fd(fd):
            if skip and _identity(fd, ".") in skip:
                continue
            with os.scandir(fd) as found:
                entries = {entry.name: entry.is_dir(follow_symlinks=False) for entry in found}
            yield names, fd, entries
        below = ((*names, name) for name, is_folder in entries.items() if is_folder)
        waiting += [each for each in below if sum(map(len, map(os.fsencode, each))) + len(each) - 1 <= _MAX_PATH_BYTES]


def _open_unreadable(top: int, names: Names) -> int | None:
    """Make a folder and those around it readable and open it; `None` if they belong to another user."""
    fd = os.open(".", _PATH_FLAGS, dir_fd=top)
    try:
        for name in (*names, "."):
            flags = _PATH_FLAGS if name != "." else FOLDER_FLAGS
            try:
                below = os.open(name, flags, dir_fd=fd)
            except PermissionError:
                _grant_owner_access(fd)
                below = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError:
        os.close(fd)
        return None
    return fd


def _grant_owner_access(folder: int) -> None:
    # By its path: `fchmod` fails for a descriptor that cannot read.
    os.chmod(f"/proc/self/fd/{folder}", stat.S_IMODE(os.fstat(folder).st_mode) | 0o700)  # noqa: PTH101


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _has_commondir(folder: int, name: str) -> bool:
    """Return whether a repository has its settings in another folder. Git uses none that it cannot read."""
    try:
        return _exists(folder, f"{name}/commondir")
    except OSError:
        return False


def _identity(folder: int, name: str) -> Identity:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else ""
    return Identity(status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), target)
