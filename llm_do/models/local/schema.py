"""The subset of JSON Schema that llama.cpp can enforce with a grammar.

Schemas come from anywhere, MCP servers too, and llama.cpp is not hardened: some schemas exhaust the memory, and others
are enforced in part. So only known keywords are passed on, and values are checked afterwards against the whole schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_ai.exceptions import UserError

from ...arguments.validation import schema_validator
from ...values.json_schema import resolve

_LARGEST_COUNT = 256
"""The most repetitions: a grammar spells them out."""
_LARGEST_INTEGER = 2**53
_MOST_PARTS = 5_000
_FORMATS = {"date", "date-time", "time", "uuid"}
# Only what llama.cpp matches like other engines: a dot, for instance, could match the quote that ends the string.
_LITERAL, _SET = r"[A-Za-z0-9 _,:/@#-]|\\[dw.\-/]", r"\[(?:[A-Za-z0-9_. -]|\\[dw.\-])+\]"
_PLAIN_PATTERN = re.compile(rf"\^(?:{_LITERAL}|{_SET}|[()|?*+]|\{{\d{{1,2}}(?:,\d{{1,2}})?\}})*\$")
_HUNDREDTHS = 100


def make_validator(schema: Mapping[str, Any]) -> Callable[[Any], str | None]:
    """Return a function that returns the error of a value, or `None`. An invalid schema accepts any value."""
    try:
        validate = schema_validator(dict(schema), foreign=True)
    except Exception:  # jsonschema raises many kinds of errors for invalid schemas
        return lambda value: None

    def problem(value: Any) -> str | None:
        try:
            return validate(value)
        except RecursionError:
            return "its schema has no end"

    return problem


class GrammarSchema:
    """The part of a schema that a grammar can enforce. Each target of a `$ref` becomes a definition."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Any] = {}
        self._parts_left = _MOST_PARTS
        try:
            converted = self._convert(_add_defaults({"type": "object"}, schema) if "$ref" not in schema else schema)
        except RecursionError:
            raise UserError(
                "A schema is nested too deeply for a local model. Simplify it, or use another model."
            ) from None
        self.schema = {**converted, "$defs": self._definitions} if self._definitions else converted

    def _convert(self, schema: Any) -> dict[str, Any]:
        self._count()
        if not isinstance(schema, Mapping):
            return {}  # `true` is a schema that accepts anything
        if isinstance(schema.get("$ref"), str):
            return self._refer(schema["$ref"])
        if isinstance(schema.get("allOf"), list):
            return self._convert(self._merge_all_of(schema))
        if "const" in schema:
            return {"const": schema["const"]}
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return {"enum": schema["enum"]}
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            return {"anyOf": [self._convert({**schema, "type": each}) for each in kind]}
        if not isinstance(schema.get("properties"), Mapping):
            for key in ("anyOf", "oneOf"):
                if isinstance(schema.get(key), list) and schema[key]:
                    defaults = {"type": kind} if isinstance(kind, str) else {}
                    return {"anyOf": [self._convert(_add_defaults(defaults, each)) for each in schema[key]]}
        return self._of_type(kind, schema)

    def _count(self) -> None:
        """Count a part of the schema. A recursive schema would have too many."""
        self._parts_left -= 1
        if self._parts_left < 0:
            raise UserError("A schema has too many parts for a local model. Simplify it, or use another model.")

    def _of_type(self, kind: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "object" or isinstance(schema.get("properties"), Mapping):
            return self._object(schema)
        if kind == "array" or "prefixItems" in schema:
            return self._array(schema)
        if kind == "string":
            return _string(schema)
        if kind in ("integer", "number"):
            return _integer(schema) if kind == "integer" else _number(schema)
        return {"type": kind} if kind in ("boolean", "null") else {}

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        declared = schema.get("properties")
        properties = declared if isinstance(declared, Mapping) else {}
        converted = {str(name): self._convert(each) for name, each in properties.items() if each is not False}
        required = schema.get("required")
        needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        for name in needed:
            converted.setdefault(name, {})
        others = schema.get("additionalProperties")
        if isinstance(others, Mapping):
            others = self._convert(others)
        elif converted or others is False or properties is declared:
            others = False  # the model must not invent fields
        else:
            others = True
        return {"type": "object", "properties": converted, "required": needed, "additionalProperties": others}

    def _array(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        items = schema.get("items")
        first = items if isinstance(items, list) else schema.get("prefixItems")
        if isinstance(first, list):
            return {"type": "array", "prefixItems": [self._convert(each) for each in first]}
        return {"type": "array", "items": self._convert(items), **_counts(schema, "minItems", "maxItems")}

    def _refer(self, pointer: str) -> dict[str, Any]:
        seen: set[str] = set()
        while pointer not in seen:
            seen.add(pointer)
            if pointer in self._names:
                return {"$ref": f"#/$defs/{self._names[pointer]}"}
            target = resolve(self._root, pointer)
            if not isinstance(target, Mapping):
                return {}
            if not isinstance(target.get("$ref"), str):
                name = self._names[pointer] = f"d{len(self._names)}"
                self._definitions[name] = {}
                self._definitions[name] = self._convert(target)
                return {"$ref": f"#/$defs/{name}"}
            pointer = target["$ref"]
        return {}  # a cycle

    def _merge_all_of(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for part in self._parts(schema, depth=8):
            for key, value in part.items():
                if key == "properties" and isinstance(value, Mapping):
                    merged[key] = {**merged.get(key, {}), **value}
                elif key == "required" and isinstance(value, list):
                    merged[key] = [*merged.get(key, []), *(name for name in value if name not in merged.get(key, []))]
                else:
                    merged.setdefault(key, value)
        return merged

    def _parts(self, schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            schema = resolve(self._root, schema["$ref"])
        if not isinstance(schema, Mapping) or not depth:
            return
        self._count()
        yield {key: value for key, value in schema.items() if key not in ("allOf", "$ref", "$defs", "definitions")}
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            yield from self._parts(part, depth - 1)


def _add_defaults(defaults: Mapping[str, Any], schema: Any) -> Any:
    return {**defaults, **schema} if isinstance(schema, Mapping) else schema


def _string(schema: Mapping[str, Any]) -> dict[str, Any]:
    if (pattern := _supported_pattern(schema.get("pattern"))) is not None:
        return {"type": "string", "pattern": pattern}
    if str(schema.get("format")) in _FORMATS:
        return {"type": "string", "format": schema["format"]}
    return {"type": "string", **_counts(schema, "minLength", "maxLength")}


def _supported_pattern(pattern: Any) -> str | None:
    r"""Return a pattern in the form that llama.cpp supports, or `None`. It would ignore one with `\d` or `\w`."""
    if not isinstance(pattern, str) or not _PLAIN_PATTERN.fullmatch(pattern):
        return None
    try:
        re.compile(pattern)
    except re.error:
        return None
    in_sets = re.sub(_SET, lambda found: found[0].replace(r"\d", "0-9").replace(r"\w", "A-Za-z0-9_"), pattern)
    return in_sets.replace(r"\d", "[0-9]").replace(r"\w", "[A-Za-z0-9_]")


def _counts(schema: Mapping[str, Any], *keys: str) -> dict[str, int]:
    """Return the bounds of a length that are valid together."""
    counts: dict[str, int] = {key: schema[key] for key in keys if _is_count(schema.get(key))}
    return counts if list(counts.values()) == sorted(counts.values()) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def _bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    low = max(_numeric(schema.get("minimum"), -math.inf), _numeric(schema.get("exclusiveMinimum"), -math.inf))
    high = min(_numeric(schema.get("maximum"), math.inf), _numeric(schema.get("exclusiveMaximum"), math.inf))
    return low, high


def _numeric(value: Any, otherwise: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def _integer(schema: Mapping[str, Any]) -> dict[str, Any]:
    low, high = _bounds(schema)
    result: dict[str, Any] = {"type": "integer"}
    if abs(low) < _LARGEST_INTEGER:
        result["minimum"] = math.floor(low) + 1 if low == schema.get("exclusiveMinimum") else math.ceil(low)
    if abs(high) < _LARGEST_INTEGER:
        result["maximum"] = math.ceil(high) - 1 if high == schema.get("exclusiveMaximum") else math.floor(high)
    return result if result.get("minimum", -math.inf) <= result.get("maximum", math.inf) else {"type": "integer"}


def _number(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return hundredths for a range of up to 1, such as a confidence: llama.cpp has no bounds of fractions."""
    low, high = _bounds(schema)
    if not 0 < high - low <= 1:
        return {"type": "number"}
    steps = [round(low + (high - low) * step / _HUNDREDTHS, 6) for step in range(_HUNDREDTHS + 1)]
    within = [step for step in steps if step not in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))]
    return {"enum": within}
