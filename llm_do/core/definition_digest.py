"""Digests of definitions: what tells the prompt, the settings or the code of an entry from a changed one."""

from __future__ import annotations

import inspect
import re
from types import CodeType
from typing import Any

from ..values.canonical import digest, digest_of_text
from ..values.texts import json_text
from .entry import EntryBase

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""The place of an object in memory, which is another one in each process."""

_WORKER_FIELDS = (
    *("instructions", "description", "model", "compatible_models", "output_schema", "model_settings", "limits"),
    *("on_cut_off", "allow_workers", "tool_rules", "retries", "requires_approval"),
)


def definition_of(entry: EntryBase) -> str:
    """Return the digest of an entry's definition, which is made once."""
    if (definition := vars(entry).get("_definition_digest")) is None:
        definition = definition_digest(entry)
        object.__setattr__(entry, "_definition_digest", definition)
    return str(definition)


def definition_digest(entry: EntryBase) -> str:
    """Return a digest of an entry's definition. Parts that can be told by their type alone count by that."""
    schema = json_text(entry.parameters.json_schema)
    if entry.kind == "worker":
        fields = {name: getattr(entry, name, None) for name in _WORKER_FIELDS}
        tools = [tool if isinstance(tool, str) else tool.name for tool in entry.tools]
        output_type = _ADDRESS.sub("", str(getattr(entry, "output_type", None)))
        return digest([entry.name, schema, fields, tools, output_type])[0]
    function = getattr(getattr(entry, "tool", None), "function", None)
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return digest_of_text(f"{entry.kind} {qualified_name_of(entry)} {schema} {_text_of_code(code)}")


def qualified_name_of(entry: EntryBase) -> str:
    """Return the name of an entry with where it comes from: a module, a server, or a class of the user's own."""
    function: Any = getattr(getattr(entry, "tool", None), "function", None)
    if function is not None:
        function = inspect.unwrap(function)
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', entry.name)}"
    return entry.qualified_name or entry.name


def _text_of_code(code: CodeType | None) -> str:
    """Return what a function does, without where it stands: moving it changes nothing."""
    if code is None:
        return ""
    constants = list(map(_text_of_constant, code.co_consts))
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {constants} {code.co_names} {code.co_varnames}"


def _text_of_constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _text_of_code(constant)
    text, exact = digest(constant)
    return text if exact else repr(constant)  # the bounds of a slice
