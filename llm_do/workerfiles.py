"""Where workers are defined: finding files by name, reading them, and writing those that are generated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from .definition import WorkerDefinition, dump_worker, parse_worker
from .errors import DuplicateEntryError, WorkerFileError
from .fileio import locked, write_atomically
from .names import is_name

T = TypeVar("T")

RESERVED = ("generated", "worker")
"""Names that mean something else among the files."""

BY_PROJECT = "(project)"
"""The creator of a worker that a person made, with Python or the command line. No worker can be called so.

A file can say so of itself, so it is believed only with a `WorkerFile.seal`.
"""

GENERATED = "generated"
"""The folder below `workers/` for workers that were not written by a person."""

SEAL = ".project"
"""How the names of the files end that tell which generated workers are the project's own, word for word."""


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
        """The file with the digest of what the project wrote, where the project created the worker."""
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

    def __init__(self, root: Path, only: Path | None = None) -> None:
        """`only` is a lone file, wherever it is, in place of all others."""
        self._root = root
        self._only = only
        self.folder = root / "workers"
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
        found |= {path.parent.name for pattern in ("*/worker.md", "*/worker.yaml") for path in folder.glob(pattern)}
        found |= {path.stem for path in (folder / GENERATED).glob("*.yaml")}
        return sorted(name for name in found if is_name(name) and name not in RESERVED)

    def find(self, name: str) -> WorkerFile | None:
        """The file of a worker, if there is one. A file that a person wrote stands before a generated one."""
        if not is_name(name) or name in RESERVED:
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
        found = [file for file in candidates if file.path.is_file()]
        if len(found) > 1:
            both = " and ".join(self.shown(file.path) for file in found)
            raise DuplicateEntryError(f"Worker {name!r} has two files: {both}. Remove one.")
        generated = self._generated(name)
        return found[0] if found else generated if generated.path.is_file() else None

    def _generated(self, name: str) -> WorkerFile:
        return WorkerFile(self.folder / GENERATED / f"{name}.yaml", "yaml", generated=True)

    def read(self, name: str, file: WorkerFile) -> tuple[WorkerDefinition, str]:
        """What a file says, and the digest of the very bytes that say it."""

        def read() -> tuple[WorkerDefinition, str]:
            content = file.path.read_bytes()
            definition = parse_worker(content, name=name, path=self.shown(file.path), format=file.format)
            return definition, _digest(content)

        return self._fresh.get(file, (file.path,), read)

    def is_projects_own(self, name: str, file: WorkerFile) -> bool:
        """Whether the project wrote every byte of a file that says it did."""
        if _text(file.seal) == self.read(name, file)[1]:
            return True
        with locked(file.path.parent):  # unless somebody is just replacing both
            definition, digest = self.read(name, file)
            return definition.created_by == BY_PROJECT and _text(file.seal) == digest

    def store(self, definition: WorkerDefinition, *, force: bool, by_model: bool) -> None:
        """Write the file of a generated worker, all of it or nothing. What the project creates gets a seal."""
        file = self._generated(definition.name)
        shown, text = self.shown(file.path), dump_worker(definition)
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.path.parent):
            exists = file.path.exists()
            if exists and not force:
                raise WorkerFileError(f"{shown}: the worker exists. With force it would be replaced.")
            if exists and by_model:
                old, _ = self.read(definition.name, file)
                if old.locked or old.created_by != definition.created_by:
                    raise WorkerFileError(f"{shown}: the worker is locked, or another one's. It stays.")
            for seal in file.path.parent.glob(f".*{SEAL}"):  # of workers that were deleted, or promoted
                if not seal.with_name(seal.name[1 : -len(SEAL)] + ".yaml").exists():
                    seal.unlink()
            by_project = definition.created_by == BY_PROJECT and not by_model
            if not by_project:
                file.seal.unlink(missing_ok=True)
            # The seal comes second: of a file that could not be replaced, the old seal stays good.
            try:
                write_atomically(file.path, text, replace=force)
            except FileExistsError:
                raise WorkerFileError(f"{shown}: the worker exists. With force it would be replaced.") from None
            if by_project:
                write_atomically(file.seal, _digest(text.encode()), replace=True)


def _stamp(path: Path) -> Hashable:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
