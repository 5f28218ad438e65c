"""The files in writable roots that a command runs: what a person approves is their content, not only their names."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from ..commands import Command
from ..errors import PathChanged, PathDenied, PathMissing
from ..sandbox import FileState, Pins, Root, SandboxManager
from ..scripts import files_run

_WORK = "/work"
_SHOWN = 12
"""How many characters of a digest are shown."""

Place = Callable[[str], tuple[Root, str] | None]
"""From a word of a command to the root and the path that it means, if it is in a writable root."""


def pin_programs(command: Command, manager: SandboxManager, *, unsandboxed: bool) -> Pins:
    """The files that a command runs, as they are now."""
    place = _on_host(manager) if unsandboxed else _in_sandbox(manager)
    found = (place(word) for word in files_run(command, lambda word: _mode(place(word))))
    states = {f"{root.name}/{path}": _state(root, path) for root, path in filter(None, found)}
    return Pins(states, programs=True)


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
        path = normpath(join(_WORK, word))
        name, _, rest = path.removeprefix(f"{_WORK}/").partition("/")
        root = manager.roots.get(name) if path.startswith(f"{_WORK}/") and rest else None
        if root is None or root.config.suffixes is not None or not _is_writable(root.folder / rest, manager):
            return None
        return root, rest

    return place


def _on_host(manager: SandboxManager) -> Place:
    """How words are understood in the project's folder."""

    def place(word: str) -> tuple[Root, str] | None:
        path = Path(os.path.normpath(manager.base / word))
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
    return mode if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else None


def _state(root: Root, path: str) -> FileState:
    state = root.state(path)
    if state.content is None:
        raise PathDenied(
            f"{root.shown(path)} cannot be approved as a program, since another one could run in its place: it is a "
            f"symlink, or has more than {root.config.max_file_bytes} bytes. Name the file itself."
        )
    return state


def with_programs(shown: dict[str, Any], pins: Pins | None) -> dict[str, Any]:
    """What a person sees of a call, with the files that it runs."""
    return {**shown, "files": shown_programs(pins)} if pins is not None and pins.files else shown
