"""The files in writable roots that a command runs: a person approves their content, not only their names."""

from __future__ import annotations

import os
import re
import stat
from functools import partial
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
_DIGEST_CHARACTERS = 12  # enough for a person to compare


def pin_programs(command: Command, manager: SandboxManager, *, unsandboxed: bool) -> Pins:
    """Return the files that a command runs, as they are now."""
    programs = _find_programs(command, manager, unsandboxed=unsandboxed)
    return Pins({name: _state(root, path) for name, (root, path) in programs.items()}, exact=True)


def check_programs(pins: Pins, command: Command, manager: SandboxManager, *, unsandboxed: bool) -> None:
    """Refuse to run a file that did not exist, or did not look like a program, when the command was approved."""
    # A sandbox has copies of the approved files. Without one, they must be unchanged, and can still be replaced later.
    changed = [name for name in _find_programs(command, manager, unsandboxed=unsandboxed) if name not in pins.files]
    for path, state in pins.files.items() if unsandboxed else ():
        root, rest = manager.parse(path)
        if root.state(rest) != state:
            changed.append(path)
    if changed:
        raise PathChanged(f"{changed[0]!r} has changed since it was looked at, and nothing was run.")


def _find_programs(command: Command, manager: SandboxManager, *, unsandboxed: bool) -> dict[str, tuple[Root, str]]:
    """Return the files that a command runs by the paths that a person sees."""
    locate = partial(_locate_on_host if unsandboxed else _locate_in_sandbox, manager)
    located = filter(None, map(locate, find_executed_files(command, lambda word: _mode(locate(word)))))
    return {f"{root.name}/{path}": (root, path) for root, path in located}


def add_programs(view: dict[str, Any], pins: Pins | None) -> dict[str, Any]:
    """Add the files that a call runs, and the start of their digests, to what a person sees of it."""
    if pins is None or not pins.files:
        return view
    files = {
        path: f"{len(state.content or b'')} bytes, SHA-256 {(state.digest or '')[:_DIGEST_CHARACTERS]}"
        for path, state in pins.files.items()
    }
    return {**view, "files": files}


def _locate_in_sandbox(manager: SandboxManager, word: str) -> tuple[Root, str] | None:
    """Return the file that a word means in /work, where roots have their names, if it is in a writable one."""
    path = join(_WORK, word)
    _check_path(path, manager)
    path = "/" + normpath(path).lstrip("/")  # two slashes at the start would stay
    name, _, rest = path.removeprefix(f"{_WORK}/").partition("/")
    root = manager.roots.get(name) if path.startswith(f"{_WORK}/") and rest else None
    if root is None or root.config.suffixes is not None or not _is_writable(root.folder / rest, manager):
        return None
    return root, rest


def _check_path(path: str, manager: SandboxManager) -> None:
    """Refuse a path in the sandbox that may lead into a root through a symlink."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    parents = ("/".join(names[:end]) for end, name in enumerate(names) if name == "..")
    if _PROCESS.match("/".join(names)) or any(_may_redirect(parent, manager) for parent in parents):
        raise PathDenied(
            f"{path!r} may lead to a program through a symlink. Write its path from {_WORK}, without '..'."
        )


def _may_redirect(path: str, manager: SandboxManager) -> bool:
    """Return whether `..` after a path may lead elsewhere than its names say, through a symlink."""
    top, _, below = normpath(f"/{path}").lstrip("/").partition("/")
    name, _, rest = below.partition("/")
    if f"/{top}" != _WORK:
        return top in _SYSTEM
    root = manager.roots.get(name)
    return bool(root is not None and rest and stat.S_ISLNK(_mode((root, rest)) or 0))


def _locate_on_host(manager: SandboxManager, word: str) -> tuple[Root, str] | None:
    """Return the file that a word means in the project's folder, if it is in a writable root."""
    path = Path("/" + os.path.normpath(manager.base / word).lstrip("/"))
    for root in manager.roots.values():
        if root.config.mode == "rw" and path.is_relative_to(root.folder) and path != root.folder:
            return root, str(path.relative_to(root.folder))
    return None


def _is_writable(path: Path, manager: SandboxManager) -> bool:
    """Return whether a file is in a folder that can be written, perhaps as another root."""
    return any(path.is_relative_to(root.folder) for root in manager.roots.values() if root.config.mode == "rw")


def _mode(place: tuple[Root, str] | None) -> int | None:
    """Return the mode of a file, or of a symlink, which may lead to a file; `None` for anything else."""
    if place is None:
        return None
    root, path = place
    try:
        mode = root.mode(path)
    except PathMissing:
        return None
    except PathDenied:  # a symlink is on the way, or the path is protected
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
