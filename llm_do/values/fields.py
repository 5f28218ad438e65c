"""Fields of pydantic models and dataclasses, and the extra values that a caller added to them.

A class that allows extra values (`extra="allow"`) takes any key that is not the name a field is given by. Such a key
may be the field's own name: with `amount: int = Field(alias="sum")`, `{"sum": 5000, "amount": 1}` is a model whose
field `amount` is 5000, and whose extra value `amount` is 1. So the two are never put into one mapping. Everything that
judges, shows, compares or records values reads them here.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

EXTRA = "[extra]"
"""The label of extra values. A key that is spelled like this stands in quotes."""


class Fields(NamedTuple):
    """The values of a pydantic model or a dataclass."""

    declared: dict[str, Any]
    """The values of its fields, by their names in Python."""
    extra: dict[str, Any]
    """All other values, by their keys."""


def fields_of(value: Any) -> Fields | None:
    """Return the fields of a model or a dataclass as the object stores them, without its own code; else `None`."""
    if isinstance(value, BaseModel):
        return Fields(value.__dict__, getattr(value, "__pydantic_extra__", None) or {})
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    stored = getattr(value, "__dict__", {})
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    declared = {name: stored[name] if name in stored else getattr(value, name) for name in names}
    # A dataclass has no separate place for extra values. Attributes that Python code has set are no fields either.
    return Fields(declared, {name: item for name, item in stored.items() if name not in declared})


def parts_of(value: Any) -> Fields | Mapping[Any, Any] | Collection[Any] | None:
    """Return the fields of a model or a dataclass, and a mapping, list, tuple or set itself; else `None`."""
    if isinstance(value, dict | list | tuple | set | frozenset):
        return value
    if (fields := fields_of(value)) is not None:
        return fields
    return value if isinstance(value, Mapping | Set) else None


def items_of(value: Any) -> Iterable[Any]:
    """Return all parts of a value, if it has any, without the keys of mappings."""
    parts = parts_of(value)
    if isinstance(parts, Fields):
        return (*parts.declared.values(), *parts.extra.values())
    return parts.values() if isinstance(parts, Mapping) else parts or ()


def aliases(info: FieldInfo, *, roots: bool = False) -> Iterator[str]:
    """Yield the aliases of a field; with `roots`, also the first key of a path to it."""
    alias = info.validation_alias if info.validation_alias is not None else info.alias
    for choice in alias.choices if isinstance(alias, AliasChoices) else [alias]:
        path = choice.path if isinstance(choice, AliasPath) else [choice]
        if isinstance(path[0], str) and (roots or len(path) == 1):
            yield path[0]


def alias_map(kind: Any) -> Mapping[str, tuple[str, ...]]:
    """Return the aliases of the fields of a model, a dataclass or a TypedDict, by their names in Python."""
    return _alias_map(kind)  # mypy takes a `type[Any]` for something that cannot be hashed


@lru_cache(maxsize=1024)
def _alias_map(kind: Any) -> Mapping[str, tuple[str, ...]]:
    infos: Mapping[str, FieldInfo] | None = getattr(kind, "__pydantic_fields__", None)
    if infos is not None:
        return {name: tuple(aliases(info)) for name, info in infos.items()}
    if not dataclasses.is_dataclass(kind) and not is_typeddict(kind):
        return {}
    # pydantic knows the fields of these only while it makes a schema, in the same order with and without aliases.
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        names, other = (list(_properties(adapter.json_schema(by_alias=by_alias))) for by_alias in (False, True))
    except Exception:  # an annotation that pydantic does not know
        return {}
    return {name: (alias,) for name, alias in zip(names, other, strict=True)} if len(names) == len(other) else {}


def _properties(schema: dict[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:  # a type that contains itself
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    properties: Mapping[str, Any] = schema.get("properties", {})
    return properties


def separate_extra(value: Any) -> Any:
    """Return a value for a JSON text: models and dataclasses with extra values become mappings that keep these apart.

    A value without extra values is returned as it is, so that its class serializes it.
    """
    return _separate(value, set())


def _separate(value: Any, inside: set[int]) -> Any:
    if isinstance(value, str | bytes | int | float | type(None)) or id(value) in inside:
        return value
    parts = parts_of(value)
    if parts is None:
        return value
    inside.add(id(value))
    try:
        if isinstance(value, RootModel):  # it is serialized as what is inside
            root = _separate(value.root, inside)
            return value if root is value.root else root
        if isinstance(parts, Fields):
            declared = _separate(parts.declared, inside)
            if not parts.extra and declared is parts.declared:
                return value
            extra = {EXTRA: _separate(parts.extra, inside)} if parts.extra else {}
            return {**_serialized_names(type(value), declared), **extra}
        # What the items become cannot be in a set.
        items = list(parts) if isinstance(parts, Set) else parts
        separate = replace_items(items, lambda _, item: _separate(item, inside))
        return value if separate is items else separate
    except Exception:  # a mapping of some class that cannot be read
        return f"<{type(value).__name__} that cannot be shown>"
    finally:
        inside.discard(id(value))


def _serialized_names(kind: type, declared: dict[str, Any]) -> dict[str, Any]:
    infos: Mapping[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    names = {name: (infos[name].serialization_alias if name in infos else None) or name for name in declared}
    renamed = {names[name]: item for name, item in declared.items()}
    return renamed if len(renamed) == len(declared) else declared


def replace_items(value: Any, replace: Callable[[Any, Any], Any], key: Callable[[Any], Any] = lambda key: key) -> Any:
    """Return a container, a model or a dataclass with other items: itself if all are the same, else a copy.

    `replace` takes the key, the index or the name of each item and the item. `key` replaces the keys of mappings and of
    extra values. Of any other value, the result is `None`.
    """
    match parts_of(value):
        case None:
            return None
        case Fields() as fields:
            return _replace_fields(value, fields, replace, key)
        case Mapping():
            pairs = [(key(old), replace(old, item)) for old, item in value.items()]
            is_same = all(new is old and item is value[old] for (new, item), old in zip(pairs, value, strict=True))
            return value if is_same else dict(pairs)
    old = list(value)
    items = [replace(index, item) for index, item in enumerate(old)]
    if all(map(operator.is_, items, old)):
        return value
    if hasattr(value, "_make"):
        return value._make(items)
    return next((kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind)), list)(items)


def _replace_fields(value: Any, fields: Fields, replace: Callable[[str, Any], Any], key: Callable[[str], str]) -> Any:
    declared = {name: item for name, old in fields.declared.items() if (item := replace(name, old)) is not old}
    extra = {key(name): replace(name, old) for name, old in fields.extra.items()}
    has_new_extra = any(fields.extra.get(name, extra) is not item for name, item in extra.items())
    if not declared and not has_new_extra:
        return value
    result = copy.copy(value)
    for name, item in declared.items():  # without the validators of its class
        object.__setattr__(result, name, item)
    if has_new_extra and isinstance(value, BaseModel):
        object.__setattr__(result, "__pydantic_extra__", extra)
    elif has_new_extra:
        for name in fields.extra:
            del result.__dict__[name]
        result.__dict__.update(extra)
    return result
