"""Copies of values that stay as they are when their owner changes the originals."""

from collections.abc import Mapping, Sequence, Set
from copy import copy, deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from .fields import parts_of

ATOMS: frozenset[type] = frozenset(
    {str, int, float, bool, type(None), bytes, complex, Decimal, date, datetime, time, timedelta, UUID}
)
"""Types whose values never change."""


def snapshot(value: Any) -> Any:
    """Return a copy of a value that does not change with it.

    Containers, pydantic models and dataclasses are copied. Any other object stands for itself: a database connection
    cannot be copied, and a reader wants to see its identity.
    """
    if type(value) is dict:  # the usual case: a call's arguments, which are texts and numbers
        for item in value.values():
            if type(item) not in ATOMS:
                break
        else:
            return value.copy()
    try:
        return _copy(value, {})
    except Exception:  # a call must not fail because its arguments cannot be copied
        return value


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy in which identical objects stay identical."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if id(value) in memo:
        return memo[id(value)]
    result: Any
    if kind is dict:
        result = memo[id(value)] = {}
        result.update((key, item if type(item) in ATOMS else _copy(item, memo)) for key, item in value.items())
        return result
    if kind is list:
        result = memo[id(value)] = []
        result.extend(item if type(item) in ATOMS else _copy(item, memo) for item in value)
        return result
    if kind is tuple or kind is set or kind is frozenset:
        return kind(item if type(item) in ATOMS else _copy(item, memo) for item in value)
    if isinstance(value, (str, bytes, int, float, Enum, type)):
        return value
    if isinstance(value, BaseModel | Sequence) or parts_of(value) is not None:
        return _copy_object(value, memo)
    return value


def _copy_object(value: Any, memo: dict[int, Any]) -> Any:
    try:
        # Most objects can be copied in depth. One that fails stays in the memo, and is not tried again.
        result = memo[id(value)] = deepcopy(value)
        return result
    except Exception:
        memo[id(value)] = value
    try:
        result = copy(value)
        if isinstance(value, Mapping | Set | Sequence) and not hasattr(value, "__dict__"):
            return result
        memo[id(value)] = result
        for name, item in list(vars(value).items()):
            object.__setattr__(result, name, _copy(item, memo))
        return result
    except Exception:  # it cannot be copied at all, and stands for itself
        memo[id(value)] = value
        return value
