"""Match regular expressions that a server or a model wrote, in a time that neither they nor the text can stretch.

They run on the engine of pydantic-core, which does not backtrack. Its time is the size of the pattern times the length
of the text, so both are bounded as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

LONGEST = 2_000
"""The most characters of a pattern."""
LARGEST = 10_000
"""The most positions that a pattern has when its repetitions are spelled out."""
MOST_WORK = 5_000_000
"""The most positions times characters: about half a second in the worst case."""

MOST_PARTS = 1_000
"""The most schemas in a JSON Schema."""

_TOKEN = re.compile(
    r"""(?P<count>\{\s*(?P<least>\d*)\s*(?:,\s*(?P<most>\d*)\s*)?\})
      | (?P<open>\((?:\?(?:[a-zA-Z-]*:|P?<\w+>))?)
      | (?P<close>\))
      | (?P<none>[*+?|^$])
      | \\[pP]\{[^}]*\}|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.""",
    re.VERBOSE | re.DOTALL,
)
_IGNORES_SPACES = re.compile(r"\(\?[a-zA-Z-]*x[a-zA-Z-]*[:)]")


class UncheckablePattern(ValueError):
    """A pattern cannot be matched within bounds."""


class Pattern:
    """A pattern that can be matched within bounds."""

    __slots__ = ("_size", "_validator")

    def __init__(self, pattern: str) -> None:
        if len(pattern) > LONGEST:
            raise UncheckablePattern(f"it has more than {LONGEST} characters")
        if _IGNORES_SPACES.search(pattern):
            raise UncheckablePattern("the flag x is not supported")
        self._size = _size(pattern)
        if self._size > LARGEST:
            raise UncheckablePattern(f"its repetitions come to more than {LARGEST} positions")
        try:
            self._validator = SchemaValidator(core_schema.str_schema(pattern=pattern))
        except SchemaError as error:
            why = [line.strip() for line in str(error).splitlines() if line.strip().startswith("error:")]
            raise UncheckablePattern(why[0].removeprefix("error: ") if why else "it is too large") from None

    def matches(self, text: str) -> bool | None:
        """Whether some part of a text fits; `None` if the text is too long to tell."""
        if self._size * len(text) > MOST_WORK:
            return None
        return self._validator.isinstance_python(text)


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern, or raise `UncheckablePattern`."""
    return Pattern(pattern)


def _size(pattern: str) -> int:
    """Count the positions of a pattern with its repetitions spelled out."""
    groups, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            groups.append(0)
            last = 0
        elif token["close"]:
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif token["count"]:
            times = max(1, *(int(number[:9] or 0) for number in (token["least"], token["most"] or "")))
            groups[-1] += last * (times - 1)
            last *= times
        elif not token["none"]:
            last = 1
            groups[-1] += 1
    return max(1, sum(groups))


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


def check_bounds(schema: Any) -> None:
    """Raise `ValueError` for a JSON Schema that is too large, or has a pattern that cannot be matched within bounds."""
    for count, part in enumerate(subschemas(schema)):
        if count >= MOST_PARTS:
            raise ValueError(f"the JSON Schema has more than {MOST_PARTS} parts. Make it smaller.")
        by_name = part.get("patternProperties")
        for pattern in (part.get("pattern"), *(by_name if isinstance(by_name, dict) else ())):
            if isinstance(pattern, str):
                try:
                    compile_pattern(pattern)
                except UncheckablePattern as why:
                    shown = f"{pattern[:80]!r}"
                    raise ValueError(f"pattern: {shown} cannot be checked: {why}. Write a simpler one.") from None
