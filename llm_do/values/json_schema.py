"""JSON Schemas part by part: the schemas inside of one, and how many parts and patterns it may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .patterns import UncheckablePattern, compile_pattern, measure
from .texts import quote

MOST_CHECKED_PARTS = 1_000
"""The most schemas in a JSON Schema of a worker, all of which are checked before it is used: that takes long."""
MOST_TOOL_PARTS = 2_000
"""The most schemas in the schema of a foreign tool. They are more, since they are counted, and not checked."""
MOST_STEPS = 20_000
"""The most steps that it takes to compile all patterns of a JSON Schema: about a second, and 150 MB."""

_HOLD_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_HOLD_VALUES = ("const", "enum", "default", "examples")


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a JSON Schema and all schemas inside it. What are values there, such as an `enum`, is passed over."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, dict):
            yield part
            for key, inner in part.items():
                if key in _HOLD_SCHEMAS_BY_NAME and isinstance(inner, dict):
                    waiting.extend(inner.values())
                elif key not in _HOLD_VALUES:
                    waiting.append(inner)


def mentions(schema: Any, keyword: str) -> bool:
    """Whether a keyword is anywhere in a JSON Schema, also in values, such as a `default`: a `$ref` can lead there."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if keyword in part:
                return True
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return False


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
