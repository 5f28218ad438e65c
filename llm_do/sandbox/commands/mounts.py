"""Folders as commands see them: protected paths in them are masked, and their repositories are read only."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import PathChanged, PathDenied, PathFailed
from ...machine.files import closing_fd
from ...privacy.display import visible
from ..roots.openat import FOLDER_FLAGS, best_opener
from ..roots.repositories import Identity, Names, disable_new, find_repositories
from ..roots.states import FileState
from .bwrap_program import WORK, Plan
from .masks import find_masks, host_mounts

logger = logging.getLogger("llm_do")

_MAX_REPOSITORIES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder that commands see as /work/NAME."""

    name: str
    folder: Path
    writable: bool
    fd: int | None = None
    """The folder, if it is open already. Then it is this one, whatever its path means by now."""
    protected: Sequence[Path] = ()
    """Absolute paths that commands must not see, in whichever mount they would show up."""


@dataclass(frozen=True, slots=True)
class OpenMount:
    """A mount whose folder is open."""

    mount: Mount
    fd: int
    folder: Path
    """The path of the open folder now: it may have been moved, with the protected paths in it."""

    @property
    def to(self) -> str:
        """The path at which commands see it."""
        return f"{WORK}/{self.mount.name}"


class RepositoryGuard:
    """Finds the repositories in the folders that a command can write, and disables those that the command makes."""

    def __init__(self, mounts: Sequence[OpenMount]) -> None:
        self._mounts = [mount for mount in mounts if mount.mount.writable]
        self.places: dict[str, Mapping[Names, Identity | None]] = {}
        """The repositories in each mount by their path."""
        for mount in self._mounts:
            name, found = mount.mount.name, find_repositories(mount.fd)
            self.places[name] = found.places
            if len(found.places) > _MAX_REPOSITORIES:
                raise PathDenied(
                    f"No command can run here: {name!r} has {len(found.places)} repositories, and {_MAX_REPOSITORIES} "
                    "can be kept read only. Make the root read only, or a smaller one."
                )
            for place in found.with_commondir:
                raise PathDenied(
                    f"No command can run here: {'/'.join((name, *place))!r} is a repository whose file 'commondir' "
                    "names another folder for its settings, and a command could put one there. Remove that file, or "
                    "make the root read only."
                )
        # By identity, to know them also where they are moved to.
        identities = (each for places in self.places.values() for each in places.values())
        self._known = frozenset(filter(None, identities))

    def disable_new(self) -> tuple[str, ...]:
        """Disable the repositories that are new, and return what was done about each."""
        notes = list[str]()
        for mount in self._mounts:
            root = mount.mount.name
            renamed, failed = disable_new(mount.fd, self._known)
            notes += [f"{root}/{visible(name)} was renamed: a repository that a command made" for name in renamed]
            notes += [
                f"{root}/{visible(name)}: {why}, so a repository there may run programs of its own"
                for name, why in failed.items()
            ]
        for each in notes:
            logger.warning("A command left a repository: %s.", each)
        return tuple(notes)


def plan_mounts(
    mounts: Sequence[OpenMount], guard: RepositoryGuard, stack: ExitStack, copies: Mapping[str, FileState]
) -> Plan:
    """Return the options for the mounts, the descriptors that they name, and the files to mask."""
    options, fds, files, places = list[str](), list[int](), list[str](), list[str]()
    mounted_copies, self_mounts = dict[str, FileState](), list[str]()
    mounts_of_host = host_mounts()

    def bind(fd: int, to: str, writable: bool) -> None:
        stack.callback(os.close, fd)
        fds.append(fd)
        places.append(to)
        options.extend(["--bind-fd" if writable else "--ro-bind-fd", str(fd), to])

    for each in mounts:
        mount, to = each.mount, each.to
        masks = find_masks(each.folder, _protected_paths(mounts, each), mounts_of_host, writable=mount.writable)
        if Path() in masks:
            options += _empty_folder(to)
            continue
        bind(os.dup(each.fd), to, mount.writable)
        # A folder around a mask must not be moved away, for another could take its place. A mount point cannot be.
        around = {above for name in masks for above in name.parents if above.parts} if mount.writable else set()
        for name in sorted(around):
            bind(best_opener()(each.fd, name.parts), f"{to}/{name}", True)
        for names, identity in guard.places.get(mount.name, {}).items():
            name = Path(*names)
            if not _is_masked(name, masks):
                for fd, below in _open_place(each.fd, names, identity):
                    bind(fd, "/".join((to, *below)), False)
                    self_mounts.append(places[-1])
        for path, state in copies.items():
            name, at = Path(*path.split("/")[1:]), f"{WORK}/{path}"
            if path.partition("/")[0] == mount.name and not _is_masked(name, masks):
                _check_file(each.fd, name, path)
                mounted_copies[at] = state
                places.append(at)
        for name in sorted(masks):
            places.append(f"{to}/{name}")
            if (each.folder / name).is_dir():
                options += _empty_folder(f"{to}/{name}")
            else:
                files.append(f"{to}/{name}")
    return Plan(options, fds, files, places, self_mounts, mounted_copies)


def _is_masked(name: Path, masks: Iterable[Path]) -> bool:
    return any(name == mask or mask in name.parents for mask in masks)


def _check_file(top: int, name: Path, path: str) -> None:
    """Refuse to mount a copy where no file is: bubblewrap would create one on the host."""
    with suppress(OSError):
        with closing_fd(best_opener()(top, name.parts[:-1])) as folder:
            if stat.S_ISREG(os.stat(name.name, dir_fd=folder, follow_symlinks=False).st_mode):
                return
    raise PathChanged(f"{path!r} has changed since it was looked at, and nothing was run.")


def _open_place(top: int, names: Names, identity: Identity | None) -> Iterator[tuple[int, Names]]:
    """Open a repository, or the nearest folder around it that can be opened. A symlink cannot be mounted on.

    One that is not there any more may be elsewhere, where the command could change it: then nothing is run.
    """
    for end in range(len(names), 0, -1):
        try:
            with closing_fd(best_opener()(top, names[: end - 1])) as parent:
                fd = os.open(names[end - 1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except PermissionError:
            continue
        except OSError:
            break
        status = os.fstat(fd)
        same = identity is None or (status.st_dev, status.st_ino) == (identity.device, identity.inode)
        if (same or end < len(names)) and (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            yield fd, names[:end]
            return
        os.close(fd)
        if same:
            return
        break
    raise PathFailed(f"{'/'.join(names)!r} changed while the sandbox was set up, so nothing was run. Try again.")


def open_mount(mount: Mount, stack: ExitStack) -> OpenMount:
    if "/" in mount.name or mount.name in ("", ".", ".."):
        raise PathDenied(f"{mount.name!r} cannot be the name of a mount.")
    fd = _open_folder(mount)
    stack.callback(os.close, fd)
    if os.fstat(fd).st_nlink == 0:
        raise PathDenied(f"The folder of {mount.name!r} cannot be mounted: it was removed.")
    return OpenMount(mount, fd, Path(f"/proc/self/fd/{fd}").readlink())


def _open_folder(mount: Mount) -> int:
    if mount.fd is not None:
        return os.dup(mount.fd)
    with closing_fd(os.open("/", FOLDER_FLAGS)) as slash:
        try:
            return best_opener()(slash, mount.folder.parts[1:])
        except OSError as exc:
            raise PathDenied(f"The folder of {mount.name!r} cannot be mounted: {exc.strerror}.") from None


def _protected_paths(mounts: Sequence[OpenMount], mount: OpenMount) -> set[Path]:
    """Return all protected paths and, if the folder of a mount was moved, where those in it are now."""
    found = {path for one in mounts for path in one.mount.protected}
    before = mount.mount.folder
    inside = (path.relative_to(before) for path in found if path.is_relative_to(before))
    return found | {mount.folder / name for name in inside}


def _empty_folder(folder: str) -> list[str]:
    return ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
