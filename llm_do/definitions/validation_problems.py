"""Errors of pydantic as problems with a line of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import did_you_mean
from ..values.texts import shown
from .yaml_lines import Document, Place, Problem

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "string_too_short": "some text",
    "too_short": "a list that is not empty",
}


def problems_of(error: ValidationError, document: Document, model: type[BaseModel]) -> Iterator[Problem]:
    """Yield the errors that pydantic found in a document, except where the document has a problem already."""
    # A list can have half a million wrong items.
    for details in islice(error.errors(include_url=False), 1000):
        at = document.place(details["loc"])
        if not document.is_spoiled(at):
            yield Problem(document.lines.get(at, 1), _message(details, at, model))


def _message(error: ErrorDetails, at: Place, model: type[BaseModel]) -> str:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        *parents, key = at
        within = f" in {_label(parents)}" if parents else ""
        return f"unknown key {key!r}{within}.{did_you_mean(str(key), _fields_at(parents, model))}"
    label = f"{_label(at or error['loc'])}: "
    if kind == "missing":
        return f"{label}needs {error['loc'][-1]!r}."
    if kind == "value_error":
        return f"{label}{error['ctx']['error']}"
    if kind not in _EXPECTED:
        return f"{label}{error['msg'].replace('Input should be', 'must be')}, got {shown(value)}."
    hint = ""
    if _EXPECTED[kind] == "a list" and isinstance(value, str):
        hint = f"; write {json.dumps([word.strip() for word in value.split(',')])}"
    elif kind == "string_type" and isinstance(value, bool | int | float):
        hint = "; put it in quotes"
    return f"{label}must be {_EXPECTED[kind]}, got {shown(value)}{hint}."


def _label(at: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).removeprefix(".")


def _fields_at(at: Sequence[str | int], model: type[BaseModel]) -> list[str]:
    """Return the keys that a mapping in the file may have."""
    found: type[BaseModel] | None = model
    for part in at:
        if found and part in found.model_fields:
            found = _model_in(found.model_fields[str(part)].annotation)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in an annotation, such as that of `dict[str, Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := _model_in(arg))), None)
