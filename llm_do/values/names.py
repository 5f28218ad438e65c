"""The rules for names of entries and for suffixes of files. Only the standard library is imported."""

from __future__ import annotations

import re
from typing import Any

AMONG_FILES = ("generated", "worker")  # these mean something else among the files of a project

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
NAME_RULE = "use letters, digits, '_' and '-', starting with a letter or a digit, 64 characters at most."
_NAME = re.compile(NAME_PATTERN)


def is_name(name: Any) -> bool:
    """Return whether an entry, a root or a project may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: Any, owner: str = "an entry", hint: str = " Give one with name=...") -> str:
    """Return a name, or raise `ValueError` if it does not follow the rule."""
    if not is_name(name):
        raise ValueError(f"{name!r} cannot be {owner}'s name: {NAME_RULE}{hint}")
    return str(name)


def check_suffix(suffix: str) -> str:
    """Return the suffix of a file name in lower case. Raise `ValueError` for any other text."""
    if len(suffix) < 2 or not suffix.startswith(".") or "/" in suffix:
        raise ValueError(f"{suffix!r} is not a suffix: write it with its dot, such as '.txt'.")
    return suffix.casefold()
