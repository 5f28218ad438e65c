"""Copies of argument values that nobody can change later, and keys that tell values apart."""

from collections.abc import Hashable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

ATOMS: frozenset[type] = frozenset(
    {str, int, float, bool, type(None), bytes, complex, Decimal, date, datetime, time, timedelta, UUID}
)
"""Types whose values never change."""


def snapshot(value: Any) -> Any:
    """What `value` is now, whatever its owner does to it later.

    Containers, pydantic models and dataclasses are copied. Any other object stands for itself: a
    database connection cannot be copied, and its identity is what a reader wants to see.
    """
    try:
        if type(value) is dict:  # the usual case: a call's arguments
            return {key: item if type(item) in ATOMS else _copy(item) for key, item in value.items()}
        return _copy(value)
    except RecursionError:  # a structure that contains itself
        return _deepcopy_or_same(value)


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return {key: item if type(item) in ATOMS else _copy(item) for key, item in value.items()}
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return kind(item if type(item) in ATOMS else _copy(item) for item in value)
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return _deepcopy_or_same(value)
    return value


def _deepcopy_or_same(value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception:  # it holds something that refuses to be copied
        return value


class NoCanonicalForm(Exception):
    """The value has no form by which two equal values could be recognised."""


def canonical(value: Any) -> Hashable:
    """A key that is equal for equal values of the same type, and only for those.

    1, 1.0, True and "1" have four different keys. Raises `NoCanonicalForm` for objects whose meaning
    cannot be read off their data.
    """
    kind = type(value)
    if kind is float:
        return float, repr(value)  # 0.0 and -0.0 are equal, and nan is not equal to itself
    if kind in ATOMS:
        return kind, value
    if kind is dict:
        return dict, frozenset((canonical(key), canonical(item)) for key, item in value.items())
    if kind is list or kind is tuple:
        return kind, tuple(canonical(item) for item in value)
    if kind is set or kind is frozenset:
        return kind, frozenset(canonical(item) for item in value)
    if isinstance(value, Enum):
        return kind, value.name
    if isinstance(value, PurePath):
        return kind, str(value)
    if isinstance(value, BaseModel):
        return kind, canonical(dict(value))
    if is_dataclass(value) and not isinstance(value, type):
        return kind, tuple(canonical(getattr(value, field.name)) for field in fields(value))
    raise NoCanonicalForm(kind.__name__)


def shorten(value: Any, limit: int = 80) -> str:
    """A one-line rendering of `value` for people, cut in the middle when it is long."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}={item!r}" for key, item in value.items())
    else:
        text = repr(value)
    text = text.replace("\n", "\\n")
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
