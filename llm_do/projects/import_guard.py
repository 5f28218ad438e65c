"""The guard of imports: no module in a folder that a worker can write is loaded, whatever its form.

A worker that could bring code into this process could do all that the process can. So every import is checked before
anything of the module runs: source, bytecode with or without its source, extension modules, packages, archives, and
what is reached through symlinks.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Protocol
from weakref import ref

from ..machine.files import MAX_CODE, read_file

_MAX_LINKS = 40  # the kernel follows no more in one path


class Watched(Protocol):
    """A project with workers that can write files."""

    root: Path

    def writable_folders(self, files: Sequence[Path]) -> list[Path]:
        """Return the folders that its workers can write; none if `files` are out of their reach anyway."""


class ImportGuard(MetaPathFinder):
    """The first finder: it finds what the others find, and refuses what workers can write."""

    def __init__(self) -> None:
        self._projects: tuple[ref[Watched], ...] = ()
        """Always replaced, never changed: other threads may import meanwhile."""
        self._lock = threading.Lock()

    def watch(self, project: Watched) -> None:
        """Refuse modules that workers of a project can write, as long as the project exists."""
        with self._lock:
            self._projects = (*(each for each in self._projects if each() is not None), ref(project))
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._projects:
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            if (spec := finder.find_spec(fullname, path, target)) is not None:
                self.check(spec)
                return spec
        return None

    def check(self, spec: ModuleSpec) -> None:
        """Raise `ImportError` for a module that a worker could have written."""
        if not spec.has_location or spec.origin is None:  # such as a namespace, which runs nothing
            return
        # Bytecode runs in place of its source.
        bytecode = None if isinstance(spec.loader, SourceOnlyLoader) else spec.cached
        files = [file for file in map(Path, filter(None, (spec.origin, bytecode))) if not _is_of_python(file)]
        for project in filter(None, [each() for each in self._projects] if files else ()):
            folders = project.writable_folders(files)
            for file in files:
                if folder := first_around(file, folders):
                    shown = file.relative_to(project.root) if file.is_relative_to(project.root) else file
                    raise ImportError(
                        f"{shown} is not run: workers can change what is in {folder.name}/. "
                        "Move it, or make their root read only",
                        name=spec.name,
                        path=str(file),
                    )


class SourceOnlyLoader(SourceFileLoader):
    """Loads a module from its source only: bytecode beside it could do something else."""

    def get_code(self, fullname: str) -> CodeType:
        try:
            source = read_file(Path(self.path), MAX_CODE)
        except OSError as exc:
            raise ImportError(f"{Path(self.path).name} cannot be read: {exc.strerror or exc}", name=fullname) from exc
        code: CodeType = self.source_to_code(source, self.path)
        return code


GUARD = ImportGuard()
"""The only guard, since a process has one list of finders."""


def python_folders() -> list[Path]:
    """Return the folders of this Python, its libraries and llm-do, from which any code in this process may import."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), str(Path(__file__).parents[1])]
    found += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    found += [sys.pycache_prefix] if sys.pycache_prefix is not None else []
    return [Path(folder).absolute() for folder in dict.fromkeys(found)]


def python_code_in(folder: Path) -> Path | None:
    """Return a folder from which Python imports, if a worker that can write `folder` could put code there."""
    for other in python_folders():
        if is_within(other, folder) or is_within(folder, other):
            return other
    # Many programs import from the folder that they are started in. Folders below it are left to the guard.
    return next((path for path in map(Path, sys.path) if is_within(path, folder)), None)


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder, lies in it, or is reached through it."""
    return first_around(path / "_", [folder]) is not None


def first_around(file: Path, folders: Iterable[Path]) -> Path | None:
    """Return the first of the folders through which a path leads: the file, or a symlink on the way, is in it."""
    return next(iter(all_around(file, folders)), None)


def all_around(file: Path, folders: Iterable[Path]) -> list[Path]:
    """Return the folders through which a path leads."""
    # By inode too: a folder has several names after a bind mount, or on a disk that ignores case.
    if not (folders := list(folders)):
        return []
    ways = set(_folders_on_the_way(file))
    inodes = {_inode(way) for way in ways} - {None}
    return [folder for folder in folders if folder in ways or _inode(folder) in inodes]


def _folders_on_the_way(path: Path) -> Iterator[Path]:
    """Yield the real folders whose entries decide what a path means, as the kernel goes through them."""
    at, waiting, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            at = at.parent
            continue
        yield at
        at = at / name
        if links == _MAX_LINKS or not at.is_symlink():
            continue
        try:
            target = at.readlink()
        except OSError:  # it was replaced meanwhile
            continue
        links += 1
        at = Path("/") if target.is_absolute() else at.parent
        waiting += [part for part in reversed(target.parts) if part != "/"]


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_of_python(file: Path) -> bool:
    """Return whether a file belongs to Python: `WritableFolders` refuses roots in and around these folders."""
    return str(file).startswith(_prefixes()) and os.path.realpath(file).startswith(_prefixes())


@cache
def _prefixes() -> tuple[str, ...]:
    folders = {path for folder in python_folders() for path in (folder, folder.resolve())}
    return tuple(f"{folder}{os.sep}" for folder in folders)
