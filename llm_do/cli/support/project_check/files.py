"""Files that look like workers and are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ....values.names import AMONG_FILES, NAME_RULE, is_name
from .project import Problem

_PLACES = "llm-do looks for workers/NAME.md, workers/NAME.yaml, and workers/NAME/worker.md or worker.yaml"


def find_stray_files(root: Path) -> Iterator[Problem]:
    """Yield files and folders in `workers/` that are silently no workers."""
    folder = root / "workers"
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        file = str(path.relative_to(root))
        if path.suffix in (".md", ".yaml", ".yml") and path.is_file():
            yield from _check_file_name(path, file)
        elif path.is_dir() and path.name not in ("generated", "__pycache__"):
            yield from _check_folder(path, file)
    for path in sorted((folder / "generated").glob("*")):
        if path.suffix in (".md", ".yml"):
            message = "a generated worker is a .yaml file, not this."
            yield Problem("warning", "no-worker-file", message, str(path.relative_to(root)))


def _check_folder(path: Path, file: str) -> Iterator[Problem]:
    names = [child.name for child in path.iterdir()]
    if "worker.md" in names or "worker.yaml" in names:
        if not is_name(path.name):
            yield Problem("error", "name", _explain_bad_name(path.name), file)
    elif any(name.endswith((".md", ".yaml", ".yml")) or name == "tools.py" for name in names):
        yield Problem("warning", "no-worker-file", f"there is no worker in this folder: {_PLACES}.", file)


def _check_file_name(path: Path, file: str) -> Iterator[Problem]:
    if path.suffix == ".yml":
        yield Problem("error", "name", "a worker's file ends with .yaml or .md. Rename it.", file)
    elif path.stem in AMONG_FILES:
        yield Problem("error", "name", f"no worker can be called {path.stem!r}. Rename it.", file)
    elif not is_name(path.stem):
        yield Problem("error", "name", _explain_bad_name(path.stem), file)


def _explain_bad_name(name: str) -> str:
    return f"{name!r} cannot be a worker's name: {NAME_RULE} Rename it."
