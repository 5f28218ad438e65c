"""The files of a project that decide what runs. Only the standard library is imported."""

from __future__ import annotations

import os
from pathlib import Path

WORKERS = "workers"
"""The folder of worker files."""
CONFIG = "llm-do.toml"
CODE = ("tools.py", "tools/__init__.py")
"""The files that can have the project's functions; the first that is there counts."""


def deciding_files(root: Path) -> list[Path]:
    """Return the paths that decide what a project runs, whether they are there or not."""
    return [root / WORKERS, root / CONFIG, *(root / name for name in CODE)]


def tools_file(root: Path) -> Path | None:
    """Return the file with the functions of a project."""
    # A path that exists and is no file raises an error when it is read.
    return next((path for name in CODE if os.path.lexists(path := root / name)), None)
