"""Keys that tell values apart: equal for equal values of one type, and for no others."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from .fields import fields_of
from .snapshots import ATOMS


class SameObject:
    """Compares and hashes by the identity of `target`, and keeps it alive so that its id stays its own."""

    __slots__ = ("target",)

    def __init__(self, target: object) -> None:
        self.target = target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.target is self.target

    def __hash__(self) -> int:
        return id(self.target)


class NoCanonicalForm(Exception):
    """Raised for a value without a form by which two equal values could be recognised."""


def canonical(value: Any) -> Hashable:
    """Return a key that is equal for equal values of the same type, and only for those.

    1, 1.0, True and "1" have four different keys. Raises `NoCanonicalForm` for objects whose meaning
    cannot be read off their data, and for data that contains itself.
    """
    try:
        return _key(value)
    except RecursionError:
        raise NoCanonicalForm("it contains itself") from None


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind in _EQUAL_MEANS_SAME:
        return kind, value
    if kind in ATOMS:
        return kind, repr(value)  # 0.0 and -0.0, or one instant in two time zones, are equal and not the same
    if kind is dict:
        return dict, frozenset((_key(key), _key(item)) for key, item in value.items())
    if kind is list or kind is tuple:
        return kind, tuple(_key(item) for item in value)
    if kind is set or kind is frozenset:
        return kind, frozenset(_key(item) for item in value)
    if isinstance(value, Enum):
        return kind, _key(value.value)
    if isinstance(value, PurePath):
        return kind, str(value)
    if isinstance(value, BaseModel) and value.__pydantic_private__:
        raise NoCanonicalForm(f"{kind.__name__} has private attributes")
    if (fields := fields_of(value)) is not None:
        if fields.extra and not isinstance(value, BaseModel):
            raise NoCanonicalForm(f"{kind.__name__} has more than its fields")
        return kind, _key(fields.declared), _key(fields.extra)
    raise NoCanonicalForm(kind.__name__)


_EQUAL_MEANS_SAME = frozenset({str, int, bool, type(None), bytes})


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are the same in type and content, as far as that can be told without their own code."""
    if left is right:
        return True
    try:
        return canonical(left) == canonical(right)
    except NoCanonicalForm:
        return False
