"""Where workers are defined: finding files by name, reading them, and writing those that are generated."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from ..definitions.definition import WorkerDefinition, dump_worker, parse_worker
from ..errors import DuplicateEntryError, WorkerFileError
from ..machine.files import Owners, lock_folder, put_in_place, read_file, temporary_beside
from ..policy.catalogue import is_standard_tool
from ..values.names import AMONG_FILES, is_name
from .layout import WORKERS

T = TypeVar("T")

BY_PROJECT = "(project)"
"""The creator of a worker that a person made, with Python or the command line. No worker can be called so."""

GENERATED = "generated"
"""The folder below `workers/` for workers that were not written by a person."""

SEAL = ".seal"
"""How the names of the files end that tell who created a generated worker, and what was written then."""


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """Where a worker is defined."""

    path: Path
    format: Literal["md", "yaml"]
    generated: bool = False
    in_folder: bool = False

    @property
    def own_tools(self) -> Path | None:
        """The file with the worker's own tools, where it has a folder of its own."""
        return self.path.parent / "tools.py" if self.in_folder else None

    @property
    def seal(self) -> Path:
        """The file that tells who created a generated worker. What the worker's own file says of it is not believed."""
        return self.path.with_name(f".{self.path.stem}{SEAL}")


class Fresh:
    """Keeps what was made from files, until one of them changes."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Hashable, object]] = {}

    def get(self, key: Hashable, sources: tuple[Path, ...], make: Callable[[], T], more: Hashable = None) -> T:
        """What is kept under a key, or what `make` makes of the sources now. `more` counts like another source."""
        stamp = (more, *(_stamp(path) for path in sources))
        kept = self._kept.get(key)
        if kept is None or kept[0] != stamp:
            kept = self._kept[key] = (stamp, make())
        return kept[1]  # type: ignore[return-value]


class WorkerFiles:
    """The files below `workers/` of a project. Nothing is read before it is needed."""

    def __init__(self, root: Path, only: Path | None = None, owners: Owners | None = None) -> None:
        """`only` is a lone file, in place of all others. With `owners`, no file of other users is read."""
        self._root = root
        self._only = only
        self._owners = owners
        self.folder = root / WORKERS
        self._fresh = Fresh()

    def shown(self, path: Path) -> str:
        """A path as messages name it."""
        return str(path.relative_to(self._root))

    def names(self) -> list[str]:
        """The names of all workers that have a file. No file is read."""
        if self._only is not None:
            return [self._only.stem]
        folder = self.folder
        found = {path.stem for pattern in ("*.md", "*.yaml") for path in folder.glob(pattern)}
        found |= {path.name for path in folder.glob("*") if not path.suffix and _has_worker(path)}
        found |= {path.stem for path in (folder / GENERATED).glob("*.yaml")}
        return sorted(name for name in found if is_name(name) and name not in AMONG_FILES)

    def stamp(self) -> Hashable:
        """Return something that changes when any worker is added, changed or removed. No file is read."""
        if self._only is not None:
            return _stamp(self._only)
        return tuple((entry.name, _stamp(entry)) for entry in _inside(self.folder, depth=2))

    def links(self) -> list[Path]:
        """Return the symlinks in `workers/` that may lead to files of workers; a lone file in any case."""
        if self._only is not None:
            return [self._only]
        return [Path(entry.path) for entry in _inside(self.folder, depth=2) if entry.is_symlink()]

    def find(self, name: str) -> WorkerFile | None:
        """The file of a worker, if there is one. A file that a person wrote stands before a generated one."""
        if not is_name(name) or name in AMONG_FILES:
            return None
        if self._only is not None:
            return (
                WorkerFile(self._only, "md" if self._only.suffix == ".md" else "yaml")
                if name == self._only.stem
                else None
            )
        folder = self.folder
        candidates = [
            WorkerFile(folder / f"{name}.md", "md"),
            WorkerFile(folder / f"{name}.yaml", "yaml"),
            WorkerFile(folder / name / "worker.md", "md", in_folder=True),
            WorkerFile(folder / name / "worker.yaml", "yaml", in_folder=True),
        ]
        if (folder / f"{name}.yml").is_file():
            raise WorkerFileError(f"workers/{name}.yml: a worker's file ends with .yaml or .md. Rename it.")
        found = [file for file in candidates if os.path.lexists(file.path)]  # what is no file is an error to tell
        if len(found) > 1:
            both = " and ".join(self.shown(file.path) for file in found)
            raise DuplicateEntryError(f"Worker {name!r} has two files: {both}. Remove one.")
        generated = self.generated(name)
        return found[0] if found else generated if os.path.lexists(generated.path) else None

    def generated(self, name: str) -> WorkerFile:
        """Return where the file of a generated worker is, or would be."""
        return WorkerFile(self.folder / GENERATED / f"{name}.yaml", "yaml", generated=True)

    def read(self, name: str, file: WorkerFile) -> tuple[WorkerDefinition, str]:
        """What a file says, and the digest of the very bytes that say it."""
        if is_standard_tool(name):
            raise WorkerFileError(
                f"{self.shown(file.path)}: {name!r} is a tool that llm-do brings, and rules could not tell them apart. "
                "Rename the worker."
            )

        def read() -> tuple[WorkerDefinition, str]:
            if self._only is None:  # a lone file is the one that the user named
                check_owner(file.path, self._root, self._owners)
            try:
                content = read_file(file.path)
            except OSError as exc:
                raise WorkerFileError(f"{self.shown(file.path)} cannot be read: {exc.strerror or exc}.") from exc
            definition = parse_worker(content, name=name, path=self.shown(file.path), format=file.format)
            return definition, _digest(content)

        return self._fresh.get(file, (file.path,), read)

    def creator(self, name: str, file: WorkerFile) -> str | None:
        """Return who created a generated worker, by its seal; `None` if it has no seal, or was changed since."""
        if (creator := self._sealed(name, file)) is None:
            with lock_folder(file.path.parent):  # unless both are being replaced just now
                creator = self._sealed(name, file)
        return creator

    def _sealed(self, name: str, file: WorkerFile) -> str | None:
        seal = self._fresh.get(file.seal, (file.seal,), lambda: _read_seal(file.seal))
        return seal[1] if seal is not None and seal[0] == self.read(name, file)[1] else None

    def store(self, definition: WorkerDefinition, *, force: bool, by_model: bool) -> None:
        """Write the file of a generated worker, all of it or nothing, and the seal that tells who created it."""
        file = self.generated(definition.name)
        shown, content = self.shown(file.path), dump_worker(definition).encode()
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(file.path.parent):
            exists = file.path.exists()
            if exists and not force:
                raise WorkerFileError(f"{shown}: the worker exists. With force it would be replaced.")
            if exists and by_model:
                old, _ = self.read(definition.name, file)
                if old.locked or self._sealed(definition.name, file) != definition.created_by:
                    raise WorkerFileError(f"{shown}: the worker is locked, or another one's. It stays.")
            for old_seal in file.path.parent.glob(f".*{SEAL}"):  # of workers that were deleted, or promoted
                if not old_seal.with_name(old_seal.name[1 : -len(SEAL)] + ".yaml").exists():
                    old_seal.unlink()
            sealed = definition.created_by
            if by_model and sealed == BY_PROJECT:
                sealed = None
            seal = "" if sealed is None else seal_of(content, sealed)
            # Both are on the disk before one is put in place: a full disk leaves all as it was.
            with temporary_beside(file.path, content) as new, temporary_beside(file.seal, seal.encode()) as new_seal:
                # The seal comes second: of a file that could not be replaced, the old seal stays good.
                try:
                    put_in_place(new, file.path, replace=force)
                except FileExistsError:
                    raise WorkerFileError(f"{shown}: the worker exists. With force it would be replaced.") from None
                if sealed is None:
                    file.seal.unlink(missing_ok=True)
                else:
                    put_in_place(new_seal, file.seal, replace=True)


def check_owner(path: Path, root: Path, owners: Owners | None) -> None:
    """Refuse a file of a project that another user could have written."""
    if owners is not None and (why := owners.refusal(path)) is not None:
        raise WorkerFileError(f"{path.relative_to(root)} is not used: {why}")


def _has_worker(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in ("worker.md", "worker.yaml"))


def _stamp(path: Path | os.DirEntry[str]) -> Hashable:
    try:
        stat = path.stat()
    except OSError:  # reading it will say what is wrong
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _inside(folder: Path | os.DirEntry[str], depth: int) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and, down to a depth, in those below it."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # no folder, or none that anything could be found in
        return
    for entry in entries:
        yield entry
        if depth > 1 and entry.is_dir():
            yield from _inside(entry, depth - 1)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def seal_of(content: bytes, creator: str) -> str:
    """Return the seal of a file: who created the worker, and the digest of the bytes that were written then."""
    return json.dumps({"created_by": creator, "sha256": _digest(content)}) + "\n"


def _read_seal(path: Path) -> tuple[str, str] | None:
    """The digest and the creator. What is no seal is none, whatever it is."""
    try:
        seal = json.loads(read_file(path))
        return str(seal["sha256"]), str(seal["created_by"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
