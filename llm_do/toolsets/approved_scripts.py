"""The files in writable roots that a command runs: what a person approves is their content, not only their names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from ..errors import PathChanged, PathDenied, PathMissing
from ..sandbox import FileState, Pins, Root, SandboxManager
from ..sandbox.commands.command_line import Command
from ..sandbox.commands.scripts import find_executed_files

_WORK = "/work"
_SYSTEM = frozenset(
    ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "dev", "proc", "tmp", "var", "run")
)
"""Folders beside /work in which there may be symlinks."""
_PROCESS = re.compile(r"proc/.*\b(?:cwd|root|fd)/|dev/fd/.*/")
_SHOWN = 12
"""How many characters of a digest are shown."""

Place = Callable[[str], tuple[Root, str] | None]
"""From a word of a command to the root and the path that it means, if it is in a writable root."""


def pin_programs(command: Command, manager: SandboxManager, *, unsandboxed: bool) -> Pins:
    """Return the files that a command runs, as they are now."""
    found = _found(command, manager, unsandboxed=unsandboxed)
    return Pins({name: _state(root, path) for name, (root, path) in found.items()}, exact=True)


def check_no_others(pins: Pins, command: Command, manager: SandboxManager, *, unsandboxed: bool) -> None:
    """Refuse to run a file that was not there, or did not look like a program, when the command was approved."""
    for name in _found(command, manager, unsandboxed=unsandboxed):
        if name not in pins.files:
            raise PathChanged(f"{name!r} has changed since it was looked at, and nothing was run.")


def _found(command: Command, manager: SandboxManager, *, unsandboxed: bool) -> dict[str, tuple[Root, str]]:
    """Return where the files are that a command runs, by the names that a person is shown."""
    place = _on_host(manager) if unsandboxed else _in_sandbox(manager)
    found = filter(None, map(place, find_executed_files(command, lambda word: _mode(place(word)))))
    return {f"{root.name}/{path}": (root, path) for root, path in found}


def shown_programs(pins: Pins) -> dict[str, str]:
    """The files with as much of their digests as a person can compare."""
    return {
        path: f"{len(state.content or b'')} bytes, SHA-256 {(state.digest or '')[:_SHOWN]}"
        for path, state in pins.files.items()
    }


def check_programs(files: Mapping[str, FileState], manager: SandboxManager) -> None:
    """Refuse to run what is not what was approved. It can still be replaced right after this."""
    for path, state in files.items():
        root, rest = manager.parse(path)
        if root.state(rest) != state:
            raise PathChanged(f"{path!r} has changed since it was looked at, and nothing was run.")


def _in_sandbox(manager: SandboxManager) -> Place:
    """How words are understood in /work, where each root is under its name."""

    def place(word: str) -> tuple[Root, str] | None:
        path = join(_WORK, word)
        _check_way(path, manager)
        path = "/" + normpath(path).lstrip("/")  # two slashes at the start would stay
        name, _, rest = path.removeprefix(f"{_WORK}/").partition("/")
        root = manager.roots.get(name) if path.startswith(f"{_WORK}/") and rest else None
        if root is None or root.config.suffixes is not None or not _is_writable(root.folder / rest, manager):
            return None
        return root, rest

    return place


def _check_way(path: str, manager: SandboxManager) -> None:
    """Refuse a path in the sandbox that may lead into a root in a way that its names do not tell."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    ways = ("/".join(names[:end]) for end, name in enumerate(names) if name == "..")
    if _PROCESS.match("/".join(names)) or any(_is_detour(way, manager) for way in ways):
        raise PathDenied(
            f"{path!r} may lead to a program through a symlink. Write its path from {_WORK}, without '..'."
        )


def _is_detour(way: str, manager: SandboxManager) -> bool:
    """Whether the folder above a path may be another one than its names tell."""
    top, _, below = normpath(f"/{way}").lstrip("/").partition("/")
    name, _, rest = below.partition("/")
    if f"/{top}" != _WORK:
        return top in _SYSTEM
    root = manager.roots.get(name)
    return bool(root is not None and rest and stat.S_ISLNK(_mode((root, rest)) or 0))


def _on_host(manager: SandboxManager) -> Place:
    """How words are understood in the project's folder."""

    def place(word: str) -> tuple[Root, str] | None:
        path = Path("/" + os.path.normpath(manager.base / word).lstrip("/"))
        for root in manager.roots.values():
            if root.config.mode == "rw" and path.is_relative_to(root.folder) and path != root.folder:
                return root, str(path.relative_to(root.folder))
        return None

    return place


def _is_writable(path: Path, manager: SandboxManager) -> bool:
    """Whether a file is in a folder that can be written, perhaps by the name of another root."""
    return any(path.is_relative_to(root.folder) for root in manager.roots.values() if root.config.mode == "rw")


def _mode(place: tuple[Root, str] | None) -> int | None:
    """The mode of a file, or of a symlink, which may lead to one."""
    if place is None:
        return None
    root, path = place
    try:
        mode = root.mode(path)
    except PathMissing:
        return None
    except PathDenied:  # there is a symlink on the way, or it may not be looked at
        return stat.S_IFLNK | 0o777
    return mode if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else None


def _state(root: Root, path: str) -> FileState:
    state = root.state(path)
    if state.content is None:
        raise PathDenied(
            f"{root.quoted_path(path)} cannot be approved as a program, since another one could run in its place: it "
            f"is a symlink, or has more than {root.config.max_file_bytes} bytes. Name the file itself."
        )
    return state


def with_programs(shown: dict[str, Any], pins: Pins | None) -> dict[str, Any]:
    """What a person sees of a call, with the files that it runs."""
    return {**shown, "files": shown_programs(pins)} if pins is not None and pins.files else shown
