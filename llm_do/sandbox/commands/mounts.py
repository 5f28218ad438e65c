"""Folders as commands see them: protected paths in them are masked, and their repositories are read only.

A protected path is masked under every name that a mount of the host gives it.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ...errors import PathChanged, PathDenied, PathFailed
from ...machine.files import closing_fd
from ...privacy.display import visible
from ..roots.repositories import Identity, Names, disable_new, find_repositories
from ..roots.states import FileState
from ..roots.system_calls import FOLDER_FLAGS, best_opener

logger = logging.getLogger("llm_do")

WORK = "/work"
_MAX_REPOSITORIES = 200
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder that commands see as /work/NAME."""

    name: str
    folder: Path
    writable: bool
    fd: int | None = None
    """The open folder. It is used even if its path means another one by now."""
    protected: Sequence[Path] = ()
    """Absolute paths that commands must not see in any mount."""


@dataclass(frozen=True, slots=True)
class OpenMount:
    mount: Mount
    fd: int
    folder: Path
    """The present path of the open folder, which may have been moved, with the protected paths in it."""


@dataclass(slots=True)
class Plan:
    """The options of a sandbox, and the descriptors and files that they need."""

    options: list[str] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    """Descriptors that the options name."""
    files: list[str] = field(default_factory=list)
    """Files that an empty file masks."""
    places: list[str] = field(default_factory=list)
    """Where something must be mounted before the program starts."""
    self_mounts: list[str] = field(default_factory=list)
    """Places where a file or folder is mounted on itself, with other rights."""
    copies: dict[str, FileState] = field(default_factory=dict)
    """The content of private copies, by the place where they are mounted."""


class RepositoryGuard:
    """Finds the repositories in folders that a command can write, and disables those that the command makes."""

    def __init__(self, mounts: Sequence[OpenMount]) -> None:
        self._mounts = [mount for mount in mounts if mount.mount.writable]
        self.places: dict[str, Mapping[Names, Identity | None]] = {}
        """The repositories in each mount by their path."""
        for mount in self._mounts:
            name = mount.mount.name
            places, with_commondir = find_repositories(mount.fd)
            self.places[name] = places
            if len(places) > _MAX_REPOSITORIES:
                raise PathDenied(
                    f"No command can run here: {name!r} has {len(places)} repositories, and {_MAX_REPOSITORIES} "
                    "can be kept read only. Make the root read only, or a smaller one."
                )
            for place in with_commondir:
                raise PathDenied(
                    f"No command can run here: {'/'.join((name, *place))!r} is a repository whose file 'commondir' "
                    "names another folder for its settings, and a command could put one there. Remove that file, or "
                    "make the root read only."
                )
        # By identity: the command may move them.
        identities = (identity for found in self.places.values() for identity in found.values())
        self._known = frozenset(filter(None, identities))

    def disable_new(self) -> tuple[str, ...]:
        """Disable new repositories, and return what was done about each."""
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
    """Return the options for the mounts, and the descriptors and files that they need."""
    plan, mounts_of_host = Plan(), host_mounts()

    def bind(fd: int, to: str, writable: bool) -> None:
        stack.callback(os.close, fd)
        plan.fds.append(fd)
        plan.places.append(to)
        plan.options += ["--bind-fd" if writable else "--ro-bind-fd", str(fd), to]

    for each in mounts:
        mount, to = each.mount, f"{WORK}/{each.mount.name}"
        masks = find_masks(each.folder, _protected_paths(mounts, each), mounts_of_host, writable=mount.writable)
        if Path() in masks:
            plan.options += _empty_folder(to)
            continue
        bind(os.dup(each.fd), to, mount.writable)
        # A folder around a mask must not be moved away: another could take its place. A mount point cannot be moved.
        around = {above for name in masks for above in name.parents if above.parts} if mount.writable else set()
        for name in sorted(around):
            bind(best_opener()(each.fd, name.parts), f"{to}/{name}", True)
        for names, identity in guard.places.get(mount.name, {}).items():
            name = Path(*names)
            if not _is_masked(name, masks):
                for fd, below in _open_place(each.fd, names, identity):
                    bind(fd, "/".join((to, *below)), False)
                    plan.self_mounts.append(plan.places[-1])
        for path, state in copies.items():
            name, at = Path(*path.split("/")[1:]), f"{WORK}/{path}"
            if path.partition("/")[0] == mount.name and not _is_masked(name, masks):
                _check_file(each.fd, name, path)
                plan.copies[at] = state
                plan.places.append(at)
        for name in sorted(masks):
            plan.places.append(f"{to}/{name}")
            if (each.folder / name).is_dir():
                plan.options += _empty_folder(f"{to}/{name}")
            else:
                plan.files.append(f"{to}/{name}")
    return plan


def _is_masked(name: Path, masks: Iterable[Path]) -> bool:
    return any(name == mask or mask in name.parents for mask in masks)


def _check_file(top: int, name: Path, path: str) -> None:
    """Refuse to mount a copy in the place of no file: bubblewrap would create one on the host."""
    with suppress(OSError):
        with closing_fd(best_opener()(top, name.parts[:-1])) as folder:
            if stat.S_ISREG(os.stat(name.name, dir_fd=folder, follow_symlinks=False).st_mode):
                return
    raise PathChanged(f"{path!r} has changed since it was looked at, and nothing was run.")


def _open_place(top: int, names: Names, identity: Identity | None) -> Iterator[tuple[int, Names]]:
    """Open a repository, or the nearest folder around it that can be opened. A symlink cannot be mounted on."""
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
    # The repository may be elsewhere by now, where the command could change it.
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
    """Return all protected paths and, if the folder of a mount was moved, the present ones of those in it."""
    found = {path for one in mounts for path in one.mount.protected}
    before = mount.mount.folder
    inside = (path.relative_to(before) for path in found if path.is_relative_to(before))
    return found | {mount.folder / name for name in inside}


def _empty_folder(folder: str) -> list[str]:
    return ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]


@dataclass(frozen=True, slots=True)
class HostMount:
    """A mount of the host: the path `inside` a disk, and the path `at` which it is mounted."""

    disk: str
    inside: PurePosixPath
    at: PurePosixPath
    number: int
    parent: int
    """The number of the mount around it."""


def host_mounts(pid: int | str = "self") -> list[HostMount]:
    """Return the mounts of a process, the topmost last."""
    found = []
    # Not with `splitlines`: names may contain other characters that it takes for the end of a line.
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().decode(errors="surrogateescape").rstrip("\n").split("\n"):
        number, parent, disk, inside, at, *_ = line.split(" ")
        paths = PurePosixPath(_unescape(inside)), PurePosixPath(_unescape(at))
        found.append(HostMount(disk, *paths, int(number), int(parent)))
    return found


def find_self_mounts(mounts: Sequence[HostMount]) -> set[str]:
    """Return where a file or folder is mounted on itself, and not on another one that has taken its path."""
    numbered = {mount.number: mount for mount in mounts}
    found = set()
    for mount in mounts:
        around = numbered.get(mount.parent)
        if around is None or around.disk != mount.disk or not mount.at.is_relative_to(around.at):
            continue
        if mount.inside == around.inside / mount.at.relative_to(around.at):
            found.add(str(mount.at))
    return found


def find_masks(folder: Path, protected: Iterable[Path], mounts: Sequence[HostMount], *, writable: bool) -> set[Path]:
    """Return the paths below a folder, relative to it, that lead to protected ones. `.` is the whole folder.

    A writable folder is refused if a protected path in it is missing, which a command could create, or is a symlink,
    which a command could replace: neither can be masked.
    """
    found: set[Path] = set()
    for path in protected:
        link = path.parent.resolve() / path.name
        if writable and link.is_symlink() and link.is_relative_to(folder):
            link_name = str(link.relative_to(folder))
            raise PathDenied(f"No command can run here: {link_name!r} is protected, and a symlink cannot be covered.")
        for name in _visible_names(path.resolve(), folder, mounts):
            if os.path.lexists(folder / name):
                found.add(name)
            elif writable:
                raise PathDenied(
                    f"No command can run here: {str(name)!r} is protected and does not exist, so a command could "
                    "create it. Create it, or make the root read only."
                )
    # A mask hides everything below it.
    return {name for name in found if not any(other in name.parents for other in found)}


def _visible_names(real: Path, folder: Path, mounts: Sequence[HostMount]) -> set[Path]:
    """Return the names of a path in a folder: its own, and its names in other mounts."""
    home = _mount_of(real, mounts)
    if home is None:
        return {real.relative_to(folder)} if real.is_relative_to(folder) else set()
    inside = home.inside / real.relative_to(home.at)
    found = set()
    for mount in mounts:
        if mount.disk != home.disk:
            continue
        if inside.is_relative_to(mount.inside):
            place = Path(mount.at / inside.relative_to(mount.inside))
        elif mount.inside.is_relative_to(inside):
            place = Path(mount.at)  # the mount shows a part of it
        else:
            continue
        if folder.is_relative_to(place):
            if folder == place or _mount_of(folder, mounts) == mount:
                found.add(Path())
        elif place.is_relative_to(folder) and _mount_of(place, mounts) == mount:
            found.add(place.relative_to(folder))
    return found


def _mount_of(path: Path, mounts: Sequence[HostMount]) -> HostMount | None:
    """Return the mount that a path is on: the deepest, and the later of two in one place."""
    around = [mount for mount in mounts if path.is_relative_to(mount.at)]
    return max(enumerate(around), key=lambda item: (len(item[1].at.parts), item[0]))[1] if around else None


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
