"""Walk JSON Schemas from anywhere, within bounds: references, unions and nested schemas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from .patterns import UncheckablePattern, compile_pattern, measure
from .texts import quote

MOST_CHECKED_PARTS = 1_000  # schemas in a worker's JSON Schema: each is checked before use, which takes long
MOST_TOOL_PARTS = 2_000  # schemas in the schema of a foreign tool: more, since they are counted and not checked
MOST_STEPS = 20_000  # to compile all patterns of a JSON Schema: about a second, and 150 MB

_HOLD_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_HOLD_VALUES = ("const", "enum", "default", "examples")

UNIONS = ("anyOf", "oneOf")
COMBINATIONS = (*UNIONS, "allOf")
CONTENTS = ("properties", "patternProperties", "additionalProperties", "items", "prefixItems", "additionalItems")


def resolve(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of a JSON Schema that a `$ref` in it refers to; `None` if there is none."""
    document, _, fragment = reference.partition("#")
    if document and document != root.get("$id"):
        return None
    if fragment and not fragment.startswith("/"):
        return next((part for part in subschemas(root) if part.get("$anchor") == fragment), None)
    target: Any = root
    for step in fragment.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, list):
            target = target[int(key)] if key.isdecimal() and int(key) < len(target) else None
        else:
            target = target.get(key) if isinstance(target, Mapping) else None
    return target


def follow(
    root: Mapping[str, Any], schemas: Iterable[Any], keywords: Sequence[str] = COMBINATIONS
) -> Iterator[Mapping[str, Any]]:
    """Yield schemas, and all those that references and some keywords in them lead to, each once."""
    waiting, ids = deque(schemas), set[int]()
    while waiting:
        part = waiting.popleft()
        if not isinstance(part, Mapping):
            yield {}  # for `true`, and for a reference to nothing
        elif id(part) not in ids:
            ids.add(id(part))
            yield part
            waiting.extend(_targets(root, part, keywords))


def leaves(root: Mapping[str, Any], schema: Any, keywords: Sequence[str] = UNIONS) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that a schema with references and unions comes down to."""
    return (part for part in follow(root, [schema], keywords) if not any(True for _ in _targets(root, part, keywords)))


def _targets(root: Mapping[str, Any], part: Mapping[str, Any], keywords: Sequence[str]) -> Iterator[Any]:
    if isinstance(reference := part.get("$ref"), str):
        yield resolve(root, reference)
    for key in keywords:
        inner = part.get(key)
        if isinstance(inner, list):
            yield from inner
        elif key in _HOLD_SCHEMAS_BY_NAME and isinstance(inner, dict):
            yield from inner.values()
        elif inner is not None:
            yield inner


def subschemas(schema: Any, *, with_values: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a JSON Schema and all schemas inside it; `with_values` all mappings, also those in an `enum`."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, dict):
            yield part
            for key, inner in part.items():
                if key in _HOLD_SCHEMAS_BY_NAME and isinstance(inner, dict) and not with_values:
                    waiting.extend(inner.values())
                elif with_values or key not in _HOLD_VALUES:
                    waiting.append(inner)


def mentions(schema: Any, keyword: str) -> bool:
    """Return whether a keyword is anywhere in a JSON Schema, also in a `default`: a `$ref` can lead there."""
    return any(keyword in part for part in subschemas(schema, with_values=True))


def check_bounds(schema: Any) -> None:
    """Raise `ValueError` for a JSON Schema that is too large, or has patterns that cannot be matched within bounds."""
    patterns: set[str] = set()
    steps = 0
    for count, part in enumerate(subschemas(schema)):
        if count >= MOST_CHECKED_PARTS:
            raise ValueError(f"the JSON Schema has more than {MOST_CHECKED_PARTS} parts. Make it smaller.")
        by_name = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
            if isinstance(pattern, str) and pattern not in patterns:
                patterns.add(pattern)
                steps += measure(pattern).steps_to_compile
                if steps > MOST_STEPS:
                    raise ValueError("the patterns of the JSON Schema are too large together. Write simpler ones.")
                try:
                    compile_pattern(pattern)
                except UncheckablePattern as why:
                    raise ValueError(
                        f"pattern: {quote(pattern)} cannot be checked: {why}. Write a simpler one."
                    ) from None
