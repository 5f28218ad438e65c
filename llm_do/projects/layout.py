"""Where the files of a project are. Only the standard library is imported."""

from __future__ import annotations

import os
from pathlib import Path

from ..values.names import AMONG_FILES, is_name

WORKERS = "workers"
"""The folder of worker files."""
GENERATED = "generated"
"""The folder below `workers/` for workers that no person wrote."""
CONFIG = "llm-do.toml"
CODE = ("tools.py", "tools/__init__.py")
"""The files that can have the project's functions; the first that exists counts."""
_SUFFIXES = (".md", ".yaml")


def deciding_files(root: Path) -> list[Path]:
    """Return the paths that decide what a project runs, whether they exist or not."""
    return [root / WORKERS, root / CONFIG, *(root / name for name in CODE)]


def tools_file(root: Path) -> Path | None:
    """Return the file with the functions of a project."""
    # A path that exists and is no file raises an error when it is read.
    return next((path for name in CODE if os.path.lexists(path := root / name)), None)


def is_worker_name(name: object) -> bool:
    """Return whether a file can define a worker of this name."""
    return is_name(name) and name not in AMONG_FILES


def worker_names(root: Path) -> list[str]:
    """Return the names of all workers that have a file. No file is read."""
    entries = [Path(entry.path) for entry in scan(root / WORKERS)]
    found = {path.stem for path in entries if path.suffix in _SUFFIXES}
    found |= {path.name for path in entries if not path.suffix and _has_worker(path)}
    found |= {path.stem for entry in scan(root / WORKERS / GENERATED) if (path := Path(entry.path)).suffix == ".yaml"}
    return sorted(filter(is_worker_name, found))


def files_of(root: Path, name: str) -> list[Path]:
    """Return the files of a worker: one, unless something is wrong. A generated file counts if it is the only one."""
    if not is_worker_name(name):
        return []
    folder = f"{root}/{WORKERS}"
    written = [f"{folder}/{path}{suffix}" for path in (name, f"{name}/worker") for suffix in _SUFFIXES]
    # Not with `Path`: every call of a worker does this.
    found = [path for path in written if os.path.lexists(path)]
    generated = f"{folder}/{GENERATED}/{name}.yaml"
    return [Path(path) for path in found or ([generated] if os.path.lexists(generated) else [])]


def _has_worker(folder: Path) -> bool:
    return any(os.path.lexists(folder / f"worker{suffix}") for suffix in _SUFFIXES)


def scan(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it cannot be read."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []
