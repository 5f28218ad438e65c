"""The rule for names of entries. Only the standard library is imported."""

from __future__ import annotations

import re
from typing import Any

AMONG_FILES = ("generated", "worker")
"""Names that mean something else among the files of a project."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def is_name(name: Any) -> bool:
    """Whether an entry may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: Any) -> str:
    """`name`, if an entry may have it."""
    if not is_name(name):
        raise ValueError(
            f"{name!r} cannot be an entry's name: use letters, digits, '_' and '-', "
            "starting with a letter or a digit, 64 characters at most. Give one with name=..."
        )
    return str(name)
