"""Find and read the files of workers, and write those of generated workers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from ..definitions.definition import WorkerDefinition
from ..definitions.file_format import dump_worker, parse_worker
from ..errors import DuplicateEntryError, WorkerFileError
from ..machine.files import Owners, lock_folder, read_file, temporary_beside
from ..policy.catalogue import is_standard_tool
from .layout import GENERATED, WORKERS, files_of, is_worker_name, scan, worker_names

T = TypeVar("T")

BY_PROJECT = "(project)"
"""The creator of a worker that a person made, with Python or the command line. No worker can have this name."""
SEAL = ".seal"
"""The suffix of files that record the creator of a generated worker, and the digest of its file."""


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """Where a worker is defined."""

    path: Path
    generated: bool = False
    own_tools: Path | None = None
    """The file with the worker's own tools, which need not exist. `None` if it has no folder of its own."""

    @property
    def seal(self) -> Path:
        """The file that records the creator of a generated worker: its own file is not trusted."""
        return self.path.with_name(f".{self.path.stem}{SEAL}")


class FileCache:
    """A cache of values that are made from files: a value is dropped when one of its files changes."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[Hashable, object]] = {}

    def get(self, key: Hashable, sources: tuple[Path, ...], make: Callable[[], T], more: Hashable = None) -> T:
        """Return the value of a key, and make it if it is new, or a source or `more` changed."""
        stamp = (more, *(stamp_of(path) for path in sources))
        cached = self._values.get(key)
        if cached is None or cached[0] != stamp:
            cached = self._values[key] = (stamp, make())
        return cached[1]  # type: ignore[return-value]


class WorkerFiles:
    """The files below `workers/` of a project."""

    def __init__(self, root: Path, only: Path | None = None, owners: Owners | None = None) -> None:
        """With `only`, use this file and no other. With `owners`, refuse files of other users."""
        self._root = root
        self._only = only
        self._owners = owners
        self.folder = root / WORKERS
        self._cache = FileCache()

    def display_path(self, path: Path) -> str:
        """Return a path as messages name it."""
        return str(path.relative_to(self._root))

    def names(self) -> list[str]:
        """Return the names of all workers that have a file. No file is read."""
        if self._only is not None:
            return [self._only.stem]
        return worker_names(self._root)

    def stamp(self) -> Hashable:
        """Return a value that changes when any worker is added, changed or removed. No file is read."""
        return tuple((entry.name, stamp_of(entry)) for entry in self._entries())

    def links(self) -> list[Path]:
        """Return the symlinks in `workers/`, and a lone file in any case: they may lead elsewhere."""
        return [Path(entry) for entry in self._entries() if self._only is not None or entry.is_symlink()]

    def _entries(self) -> Iterator[Path | os.DirEntry[str]]:
        """Yield what is in `workers/` and in the folders there, or the lone file."""
        if self._only is not None:
            yield self._only
            return
        for entry in scan(self.folder):
            yield entry
            if entry.is_dir():
                yield from scan(entry)

    def find(self, name: str) -> WorkerFile | None:
        """Return the file of a worker, if it has one: the one that a person wrote, before a generated one."""
        if not is_worker_name(name):
            return None
        if self._only is not None:
            return WorkerFile(self._only) if name == self._only.stem else None
        found = files_of(self._root, name)
        if (self.folder / f"{name}.yml").is_file():
            raise WorkerFileError(f"workers/{name}.yml: a worker's file ends with .yaml or .md. Rename it.")
        if len(found) > 1:
            both = " and ".join(map(self.display_path, found))
            raise DuplicateEntryError(f"Worker {name!r} has two files: {both}. Remove one.")
        if not found:
            return None
        folder = found[0].parent
        own_tools = folder / "tools.py" if folder == self.folder / name else None
        return WorkerFile(found[0], folder == self.folder / GENERATED, own_tools)

    def generated(self, name: str) -> WorkerFile:
        """Return the file of a generated worker, which need not exist."""
        return WorkerFile(self.folder / GENERATED / f"{name}.yaml", generated=True)

    def read(self, name: str, file: WorkerFile) -> tuple[WorkerDefinition, str]:
        """Return the definition in a file, and the digest of the bytes that were read."""
        if is_standard_tool(name):
            raise WorkerFileError(
                f"{self.display_path(file.path)}: {name!r} is the name of a built-in tool, and rules could not tell "
                "them apart. Rename the worker."
            )

        def read() -> tuple[WorkerDefinition, str]:
            if self._only is None:  # a lone file is the one that the user named
                check_owner(file.path, self._root, self._owners)
            try:
                content = read_file(file.path)
            except OSError as exc:
                raise WorkerFileError(f"{self.display_path(file.path)} cannot be read: {exc.strerror or exc}.") from exc
            kind: Literal["md", "yaml"] = "md" if file.path.suffix == ".md" else "yaml"
            definition = parse_worker(content, name=name, path=self.display_path(file.path), format=kind)
            return definition, _digest(content)

        return self._cache.get(file, (file.path,), read)

    def creator(self, name: str, file: WorkerFile) -> str | None:
        """Return who created a generated worker; `None` if its file has no seal, or was changed since."""
        if (creator := self._sealed(name, file)) is None:
            with lock_folder(file.path.parent):  # another process may be replacing both
                creator = self._sealed(name, file)
        return creator

    def _sealed(self, name: str, file: WorkerFile) -> str | None:
        seal = self._cache.get(file.seal, (file.seal,), lambda: _read_seal(file.seal))
        return seal[1] if seal is not None and seal[0] == self.read(name, file)[1] else None

    def store(self, definition: WorkerDefinition, *, force: bool, by_model: bool) -> None:
        """Write the file of a generated worker atomically, and then the seal that records its creator."""
        file = self.generated(definition.name)
        where, data = self.display_path(file.path), dump_worker(definition).encode()
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(file.path.parent):
            exists = file.path.exists()
            if exists and not force:
                raise WorkerFileError(f"{where}: the worker exists already. Use force to replace it.")
            if exists and by_model:
                old, _ = self.read(definition.name, file)
                if old.locked or self._sealed(definition.name, file) != definition.created_by:
                    raise WorkerFileError(f"{where}: the worker is locked, or of another creator. Choose another name.")
            for seal in file.path.parent.glob(f".*{SEAL}"):  # of workers that were deleted, or promoted
                if not seal.with_name(seal.name[1 : -len(SEAL)] + ".yaml").exists():
                    seal.unlink()
            sealed = definition.created_by
            if by_model and sealed == BY_PROJECT:
                sealed = None
            seal_data = b"" if sealed is None else seal_of(data, sealed).encode()
            # Both are on the disk before one is put in place: a full disk changes nothing.
            with temporary_beside(file.path, data) as new, temporary_beside(file.seal, seal_data) as new_seal:
                # The seal comes second: if the file cannot be replaced, its old seal must stay.
                try:
                    if force:
                        new.replace(file.path)
                    else:
                        os.link(new, file.path)
                except FileExistsError:  # another process was faster
                    raise WorkerFileError(f"{where}: the worker exists already. Use force to replace it.") from None
                if sealed is None:
                    file.seal.unlink(missing_ok=True)
                else:
                    new_seal.replace(file.seal)


def check_owner(path: Path, root: Path, owners: Owners | None) -> None:
    """Refuse a file of a project that another user could have written."""
    if owners is not None and (why := owners.refusal(path)) is not None:
        raise WorkerFileError(f"{path.relative_to(root)} is not used: {why}")


def stamp_of(path: Path | os.DirEntry[str]) -> Hashable:
    """Return a value that changes when a file does. No program can set `st_ctime_ns`."""
    try:
        stat = path.stat()
    except OSError:  # reading it will say what is wrong
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def seal_of(content: bytes, creator: str) -> str:
    """Return the seal of a file: who created the worker, and the digest of the file."""
    return json.dumps({"created_by": creator, "sha256": _digest(content)}) + "\n"


def _read_seal(path: Path) -> tuple[str, str] | None:
    """Return the digest and the creator; `None` for any file that is not a seal."""
    try:
        seal = json.loads(read_file(path))
        return str(seal["sha256"]), str(seal["created_by"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
