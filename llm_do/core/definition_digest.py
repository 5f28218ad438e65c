"""Digests of definitions, which differ when the prompt, the settings or the code of an entry has changed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from ..privacy.secret_fields import hide_credentials
from ..values.canonical import NoCanonicalForm, SameObject, canonical, digest, digest_of_key, digest_of_text
from ..values.texts import json_text
from .adapt import adapt
from .entry import EntryBase

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NAMED_AT_RANDOM = re.compile(f"{_ADDRESS.pattern}|<locals>")
"""Found in texts of types and functions that do not tell two of them apart."""

_WORKER_FIELDS = (
    *("instructions", "description", "compatible_models", "output_schema", "model_settings", "limits"),
    *("on_cut_off", "allow_workers", "tool_rules", "retries", "requires_approval"),
)
"""The fields of a worker that its digest depends on, besides its model."""

_DEFINED_BY_FIELDS = (f"{__package__}.worker", f"{__package__}.tool")
"""The modules of the classes of entries that are fully described by their fields."""


class ToolOfToolset(NamedTuple):
    """The identity of a tool of a foreign toolset, which is made anew for each call."""

    toolset: Hashable
    """The identity of the toolset: its factory, as `SameObject`."""
    name: str
    qualified_name: str | None
    fingerprint: str


class DefinitionDigest(NamedTuple):
    text: str
    is_exact: bool
    """Whether all other entries of this name have another digest."""


def definition_digest(entry: EntryBase) -> DefinitionDigest:
    """Return the digest of an entry's definition, which is made once; an inexact one if the definition has no key."""
    made: DefinitionDigest | None = vars(entry).get("_definition_digest")
    if made is None:
        try:
            key = definition_key(SameObject(entry)), _key_beside_grants(entry)
            made = DefinitionDigest(digest_of_text(digest_of_key(key)), is_exact=True)
        except Exception:  # definitions contain users' code
            made = DefinitionDigest(_inexact_digest(entry), is_exact=False)
        object.__setattr__(entry, "_definition_digest", made)
    return made


def _key_beside_grants(entry: EntryBase) -> Hashable:
    """Return a key of what else affects the answers of a worker, but no grants."""
    tools, output = _definitions_of_tools(entry), str(entry.output_type)
    has_secrets = any(getattr(toolset, "has_secrets", False) for toolset in entry.toolsets)
    if has_secrets or not all(tool.is_exact for tool in tools) or _NAMED_AT_RANDOM.search(output):
        raise NoCanonicalForm(entry.name)
    return output, tuple(tool.text for tool in tools), _key_of([entry.toolsets, entry.capabilities])


def _definitions_of_tools(entry: EntryBase) -> list[DefinitionDigest]:
    # Tools of the project count by their names.
    return [
        DefinitionDigest(tool, is_exact=True) if isinstance(tool, str) else definition_digest(adapt(tool))
        for tool in entry.tools
    ]


def _inexact_digest(entry: EntryBase) -> str:
    schema = json_text(entry.parameters.json_schema)
    if entry.kind == "worker":
        fields = {name: _field(entry, name) for name in (*_WORKER_FIELDS, "model")}
        output_type = _ADDRESS.sub("", str(getattr(entry, "output_type", None)))
        tools = [tool.text for tool in _definitions_of_tools(entry)]
        return digest([entry.name, schema, fields, tools, output_type])[0]
    function = getattr(getattr(entry, "tool", None), "function", None)
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return digest_of_text(f"{entry.kind} {qualified_name_of(entry)} {schema} {_text_of_code(code)}")


def definition_key(identity: Hashable) -> Hashable:
    """Return a key of a worker or a tool that differs when it has changed, and is the same in other processes.

    It has the code of functions with what they close over, and global names as names. Raises an exception if a part has
    no key: an object of a user's class has code and state of its own.
    """
    if isinstance(identity, ToolOfToolset) and isinstance(identity.toolset, SameObject):
        factory = identity.toolset.target
        if getattr(factory, "has_secrets", False):
            raise NoCanonicalForm("the toolset is made with secrets")
        return identity[1:], _key_of(factory)
    entry = identity.target if isinstance(identity, SameObject) else None
    if isinstance(entry, EntryBase) and type(entry).__module__ in _DEFINED_BY_FIELDS:
        return entry.kind, json_text(entry.parameters.json_schema), _key_of(_parts_of(entry))
    raise NoCanonicalForm(type(identity).__name__)


def _parts_of(entry: EntryBase) -> list[Any]:
    if entry.kind == "worker":
        worker: Any = entry
        model = getattr(entry.model, "model_id", entry.model)
        # The same path in another folder is another file.
        paths = {} if worker.sandbox is None else worker.sandbox.paths
        roots = {name: [root.folder(worker.base.absolute()), dict(root)] for name, root in paths.items()}
        prompt = entry.input_type.to_prompt if entry.writes_prompt else None
        tools = [tool if isinstance(tool, str) else tool.name for tool in entry.tools]
        fields = (*_WORKER_FIELDS, "attachment_policy", "generated", "creators")
        return [entry.name, model, prompt, tools, [_field(entry, name) for name in fields], roots]
    tool: Any = vars(entry)["tool"]
    declared = [entry.rule, entry.effects, entry.requires_approval, entry.plan]
    return [entry.name, entry.description, tool.function, tool.args_validator, declared]


def _key_of(value: Any) -> Hashable:
    """Return the canonical key of a value that may be or contain functions."""
    if isinstance(value, FunctionType):
        closed_over = [cell.cell_contents for cell in value.__closure__ or ()]
        if any(isinstance(each, list | dict | set) for each in closed_over):
            raise NoCanonicalForm(f"{value.__qualname__} closes over what can change")
        inner = [value.__defaults__, value.__kwdefaults__, closed_over]
        return FunctionType, value.__module__, value.__qualname__, _text_of_code(value.__code__), _key_of(inner)
    if isinstance(value, MethodType):
        return MethodType, _key_of([value.__func__, value.__self__])
    if isinstance(value, partial):
        return partial, _key_of([value.func, value.args, value.keywords])
    if type(value) in (list, tuple):
        return type(value), tuple(map(_key_of, value))
    if type(value) is dict:
        return dict, frozenset((_key_of(key), _key_of(item)) for key, item in value.items())
    if isinstance(value, Path):
        return Path, str(value.absolute())
    if isinstance(value, type):
        return type, value
    # The key of a callable object is made of its fields and the code of its class.
    return (canonical(value), _key_of(type(value).__call__)) if callable(value) else canonical(value)


def _field(entry: EntryBase, name: str) -> Any:
    """Return a field of a worker, without credentials: a new API key does not change the definition."""
    value = getattr(entry, name, None)
    return hide_credentials(value) if name == "model_settings" and value else value


def qualified_name_of(entry: EntryBase) -> str:
    """Return the name of an entry with its module or its server, if it has one."""
    function: Any = getattr(getattr(entry, "tool", None), "function", None)
    if function is not None:
        function = inspect.unwrap(function)
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', entry.name)}"
    return entry.qualified_name or entry.name


def _text_of_code(code: CodeType | None) -> str:
    """Return the text of code without line numbers, so that moving it changes nothing."""
    if code is None:
        return ""
    constants = list(map(_text_of_constant, code.co_consts))
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {constants} {code.co_names} {code.co_varnames}"


def _text_of_constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _text_of_code(constant)
    text, exact = digest(constant)
    return text if exact else repr(constant)  # the bounds of a slice
