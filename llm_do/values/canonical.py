"""Keys that tell values apart: equal for equal values of one type, and for no others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from datetime import datetime, time
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from .fields import Fields, fields_of
from .snapshots import ATOMS


class SameObject:
    """Compares and hashes by the identity of `target`, and keeps it alive so that its id is not used again."""

    __slots__ = ("target",)

    def __init__(self, target: object) -> None:
        self.target = target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.target is self.target

    def __hash__(self) -> int:
        return id(self.target)


class NoCanonicalForm(Exception):
    """Raised for a value that cannot be compared with others by its data."""


def canonical(value: Any) -> Hashable:
    """Return a key that is equal for equal values of the same type, and only for those.

    1, 1.0, True and "1" have four different keys. Raises `NoCanonicalForm` for data that contains itself, and for
    objects that hold more than their data shows.
    """
    try:
        return _key(value)
    except RecursionError:
        raise NoCanonicalForm("it contains itself") from None


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind in _EQUAL_MEANS_SAME:
        return kind, value
    if kind in ATOMS and _is_stable(value):
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
    if (fields := _exact_fields(value)) is not None:
        return kind, _key(fields.declared), _key(fields.extra), _set_fields(value)
    raise NoCanonicalForm(kind.__name__)


_EQUAL_MEANS_SAME = frozenset({str, int, bool, type(None), bytes})


def _is_stable(value: Any) -> bool:
    """Return whether the `repr` of an atom is equal in every process: not of a time whose time zone has none."""
    zone = value.tzinfo if isinstance(value, datetime | time) else None
    return zone is None or type(zone).__repr__ is not object.__repr__


def _exact_fields(value: Any) -> Fields | None:
    """Return the fields of a model or a dataclass; `None` where the object holds more than these."""
    make: Any = type(value).__new__
    if make is not object.__new__:  # that of a list or a text, for instance, whose items are no fields
        return None
    fields = fields_of(value)
    if isinstance(value, BaseModel):
        return None if value.__pydantic_private__ else fields
    return None if fields is not None and fields.extra else fields


def _set_fields(value: Any) -> tuple[str, ...]:
    """Return the fields of a model that were set: a patch with `None` is not a patch without a value."""
    return tuple(sorted(value.model_fields_set)) if isinstance(value, BaseModel) else ()


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are the same in type and content, as far as that can be told without their own code."""
    if left is right:
        return True
    try:
        return canonical(left) == canonical(right)
    except NoCanonicalForm:
        return False


def digest_of_key(key: Hashable) -> str:
    """Return a digest of a canonical key, equal in every process, in which classes count by their names."""
    try:
        text = _text_of_key(key)
    except (RecursionError, ValueError):  # it has a number of thousands of digits
        raise NoCanonicalForm("it is too large") from None
    # It is long: a model that may choose what is digested must not find two values with one digest.
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=32).hexdigest()


def _text_of_key(key: Any) -> str:
    if isinstance(key, type):
        if "<locals>" in key.__qualname__:  # a function may make many of one name
            raise NoCanonicalForm(_name(key))
        return f"<{_name(key)}>"
    if isinstance(key, tuple):
        return f"({','.join([_text_of_key(item) for item in key])})"
    if isinstance(key, frozenset):
        return f"{{{','.join(sorted(_text_of_key(item) for item in key))}}}"
    return repr(key)


def digest(value: Any, clean: Callable[[Any], Any] | None = None) -> tuple[str, bool]:
    """Return a digest of a value, equal in every process, and whether it tells the value from all others.

    It tells apart what `canonical` tells apart. A part that has no canonical form counts by its type alone. `clean`
    replaces the texts and numbers that are no part of it.
    """
    writer = _Writer(clean)
    try:
        text = writer.text(value)
    except (RecursionError, ValueError):  # it contains itself, or has a number of thousands of digits
        text = writer.name(type(value))
        writer.is_exact = False
    return digest_of_text(text), writer.is_exact


def digest_of_text(text: str) -> str:
    """Return a digest of a text, short enough for a key and long enough that no two are equal."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=10).hexdigest()


class _Writer:
    """Writes values as texts that are equal for equal values of the same type."""

    __slots__ = ("clean", "is_exact", "plain")

    def __init__(self, clean: Callable[[Any], Any] | None = None) -> None:
        self.clean = clean
        self.is_exact = True  # no other values have these texts
        self.plain = _WRITTEN_AS_REPR if clean is None else frozenset()  # written in dictionaries without a call

    def text(self, value: Any) -> str:
        if self.clean is not None and type(value) in ATOMS:
            value = self.clean(value)
        kind = type(value)
        if kind is bytes:  # they may be those of a large file
            return f"b'{hashlib.blake2b(value, digest_size=16).hexdigest()}'"
        if kind in ATOMS and _is_stable(value):
            return repr(value)
        if kind is dict:
            plain = self.plain
            pairs = [
                f"{key!r}:{item!r}"
                if type(key) is str and type(item) in plain
                else f"{self.text(key)}:{self.text(item)}"
                for key, item in value.items()
            ]
            pairs.sort()
            return "{" + ",".join(pairs) + "}"
        if kind is list or kind is tuple:
            items = ",".join([self.text(item) for item in value])
            return f"[{items}]" if kind is list else f"({items})"
        if kind is set or kind is frozenset:
            return f"{kind.__name__}{sorted(self.text(item) for item in value)}"
        if isinstance(value, Enum):
            return f"{self.name(kind)}({self.text(value.value)})"
        if isinstance(value, PurePath):
            return f"path {self.text(str(value))}"
        fields = _exact_fields(value)
        if fields is None:
            self.is_exact = False
            return self.name(kind)
        return f"{self.name(kind)}{self.text(fields.declared)}{self.text(fields.extra)}{_set_fields(value)}"

    def name(self, kind: type) -> str:
        """Return where a class is. A function may make many of one name."""
        if "<locals>" in kind.__qualname__:
            self.is_exact = False
        return _name(kind)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_WRITTEN_AS_REPR = frozenset({str, int, float, bool, type(None)})
