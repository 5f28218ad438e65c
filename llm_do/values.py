"""Copies of argument values that nobody can change later, and keys that tell values apart."""

import json
from collections import deque
from collections.abc import Hashable, Mapping, Sequence, Set
from copy import copy, deepcopy
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from .fields import fields_of
from .texts import described, encodable, quoted

ATOMS: frozenset[type] = frozenset(
    {str, int, float, bool, type(None), bytes, complex, Decimal, date, datetime, time, timedelta, UUID}
)
"""Types whose values never change."""


def snapshot(value: Any) -> Any:
    """What `value` is now, whatever its owner does to it later.

    Containers of every kind, pydantic models and dataclasses are copied. Any other object stands for
    itself: a database connection cannot be copied, and its identity is what a reader wants to see.
    """
    if type(value) is dict:  # the usual case: a call's arguments, which are texts and numbers
        for item in value.values():
            if type(item) not in ATOMS:
                break
        else:
            return value.copy()
    try:
        return _copy(value, {})
    except Exception:  # whatever it is made of, a call must not fail because it is written down
        return value


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """A copy, in which things that are the same thing stay the same thing."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if kind is dict:
        made = memo[id(value)] = {}
        made.update((key, item if type(item) in ATOMS else _copy(item, memo)) for key, item in value.items())
        return made
    if kind is list:
        made = memo[id(value)] = []
        made.extend(item if type(item) in ATOMS else _copy(item, memo) for item in value)
        return made
    if kind is tuple or kind is set or kind is frozenset:
        return kind(item if type(item) in ATOMS else _copy(item, memo) for item in value)
    if isinstance(value, (str, bytes, int, float, Enum, type)):
        return value
    if isinstance(value, BaseModel | Mapping | Set | Sequence | deque | bytearray) or is_dataclass(value):
        return _copy_object(value, memo)
    return value


def _copy_object(value: Any, memo: dict[int, Any]) -> Any:
    try:
        # What copies itself all the way down. What refuses stands in the memo, and is not tried again.
        made = memo[id(value)] = deepcopy(value)
        return made
    except Exception:
        memo[id(value)] = value
    try:
        made = copy(value)
        if isinstance(value, Mapping | Set | Sequence | deque) and not hasattr(value, "__dict__"):
            return made
        memo[id(value)] = made
        for name, item in list(vars(value).items()):
            object.__setattr__(made, name, _copy(item, memo))
        return made
    except Exception:  # it refuses even that, and stands for itself
        memo[id(value)] = value
        return value


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
    """The value has no form by which two equal values could be recognised."""


def canonical(value: Any) -> Hashable:
    """A key that is equal for equal values of the same type, and only for those.

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


def shorten(value: Any, limit: int = 80) -> str:
    """Return a value without secrets in one line, cut in the middle when it is long. Errors use `quoted`."""
    if type(value) is dict:
        text = ", ".join(f"{key}={described(item)}" for key, item in value.items())
    else:
        text = described(value)
    text = text.replace("\n", "\\n")
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


_LONGEST_VALUE = 200


def shown(value: Any) -> str:
    """A value of a file as an error message shows it."""
    text = "nothing" if value is None else json.dumps(value, default=described, ensure_ascii=False, skipkeys=True)
    text = encodable(text)
    return text if len(text) <= _LONGEST_VALUE else quoted(value, _LONGEST_VALUE)
