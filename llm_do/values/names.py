"""The rule for names of entries. Only the standard library is imported."""

from __future__ import annotations

import re
from typing import Any

AMONG_FILES = ("generated", "worker")
"""Names that mean something else among the files of a project."""

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
NAME_RULE = "use letters, digits, '_' and '-', starting with a letter or a digit, 64 characters at most."
_NAME = re.compile(NAME_PATTERN)


def is_name(name: Any) -> bool:
    """Return whether an entry, a root or a project may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: Any, owner: str = "an entry", hint: str = " Give one with name=...") -> str:
    """Return a name that follows the rule. Raise `ValueError` for any other."""
    if not is_name(name):
        raise ValueError(f"{name!r} cannot be {owner}'s name: {NAME_RULE}{hint}")
    return str(name)
