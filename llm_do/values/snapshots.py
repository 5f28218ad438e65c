"""Copies of argument values that nobody can change later, and keys that tell values apart."""

from collections import deque
from collections.abc import Mapping, Sequence, Set
from copy import copy, deepcopy
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

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
