"""Masks: the places in a mounted folder where protected paths show up, by any name that a mount of the host gives."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...errors import PathDenied

_OCTAL = re.compile(r"\\([0-7]{3})")


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
    # Only at "\n": names may have other characters in them that Python takes for the end of a line.
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().decode(errors="surrogateescape").rstrip("\n").split("\n"):
        number, parent, disk, inside, at, *_ = line.split(" ")
        paths = PurePosixPath(_unescape(inside)), PurePosixPath(_unescape(at))
        found.append(HostMount(disk, *paths, int(number), int(parent)))
    return found


def find_self_mounts(mounts: Sequence[HostMount]) -> set[str]:
    """Return where a file or a folder is mounted on itself, and not on another that has taken its path."""
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
    """Return the paths below a folder, relative to it, that lead to protected ones. `.` is the folder as a whole.

    A missing path cannot be masked. A command could create it in a folder that it can write, so that is refused; and
    so is a symlink, which it could replace.
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
    # What is below a mask is gone with it.
    return {name for name in found if not any(other in name.parents for other in found)}


def _visible_names(real: Path, folder: Path, mounts: Sequence[HostMount]) -> set[Path]:
    """Return the names of a path in a folder: its own, and that in every mount which has it too."""
    home = _mount_of(real, mounts)
    if home is None:
        return {real.relative_to(folder)} if real.is_relative_to(folder) else set()
    inside = home.inside / real.relative_to(home.at)
    found = set()
    for mount in mounts:
        if mount.disk != home.disk:
            continue
        if inside.is_relative_to(mount.inside):
            visible = Path(mount.at / inside.relative_to(mount.inside))
        elif mount.inside.is_relative_to(inside):
            visible = Path(mount.at)  # the mount shows a part of it
        else:
            continue
        if folder.is_relative_to(visible):
            if folder == visible or _mount_of(folder, mounts) == mount:
                found.add(Path())
        elif visible.is_relative_to(folder) and _mount_of(visible, mounts) == mount:
            found.add(visible.relative_to(folder))
    return found


def _mount_of(path: Path, mounts: Sequence[HostMount]) -> HostMount | None:
    """Return the mount that a path is on: the deepest, and of two in one place the later."""
    around = [mount for mount in mounts if path.is_relative_to(mount.at)]
    return max(enumerate(around), key=lambda item: (len(item[1].at.parts), item[0]))[1] if around else None


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
