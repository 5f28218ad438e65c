"""Toolsets of a worker: llm-do's own, MCP servers, factories, and tools that the model's provider runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool

from ..errors import did_you_mean, summarize
from ..policy.catalogue import TOOLSETS
from ..values.texts import quote_json
from .fields import Argument, Flag, Name, Reference, Section, Word, is_reference
from .shapes import wrap_text

_ToolsetName = Annotated[str, WithJsonSchema({"enum": list(TOOLSETS), "type": "string"})]


def _read_command(value: Any) -> Any:
    if isinstance(value, str) and len(value.split()) > 1:
        raise ValueError(f"{value!r} is not run by a shell: write {json.dumps(value.split())}.")
    return wrap_text(value)


Command = Annotated[
    tuple[Argument, ...], BeforeValidator(_read_command, json_schema_input_type=str | list[str]), Field(min_length=1)
]


class McpServer(Section):
    """A server that is started with a command, or reached at a URL."""

    command: Command | None = None
    args: tuple[Argument, ...] = ()
    env: dict[Argument, Argument] | None = None
    cwd: Argument | None = None
    url: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    headers: dict[str, str] | None = None
    start_timeout: Annotated[float, Field(strict=True, gt=0)] = 30
    """Seconds that it may take to start, and to list its tools."""
    roots: tuple[Word, ...] = ()
    """Names of the worker's roots that are announced to the server. This is information: it grants nothing."""
    progress: Flag = False
    """True if it may report the progress of calls."""
    sampling: Flag = False
    """True if it may ask the worker's model. The rule `mcp.sampling` decides about each request."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either 'command' or 'url'.")
        for key in ("headers",) if self.url is None else ("args", "env", "cwd"):
            if getattr(self, key):
                raise ValueError(f"{key!r} does not go with {'command' if self.url is None else 'url'!r}.")
        return self


class McpToolset(Section):
    """The tools of an MCP server."""

    mcp: McpServer
    name: Name | None = None
    """The server's name in rules, as in `github/create_issue`."""
    prefix: Name | None = None
    """The prefix of its tools' names."""


def _read_toolset(value: Any) -> str | McpToolset:
    if not isinstance(value, str):
        return McpToolset.model_validate(value)
    if value not in TOOLSETS and not is_reference(value):
        raise ValueError(
            f"{value!r} is not a toolset.{did_you_mean(value, TOOLSETS)} "
            "Others are 'module:factory', 'file.py:factory', {mcp: {command: [...]}} and {mcp: {url: ...}}."
        )
    return value


@cache
def _native_adapter(kind: str) -> TypeAdapter[AbstractNativeTool]:
    return TypeAdapter(NATIVE_TOOL_TYPES[kind])


def native_tool(item: str | Mapping[str, Any]) -> AbstractNativeTool:
    """Return the provider's tool that an item of `native` names: a kind, or `kind` and settings."""
    settings = {"kind": item} if isinstance(item, str) else dict(item)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in NATIVE_TOOL_TYPES:
        hint = did_you_mean(str(kind), NATIVE_TOOL_TYPES)
        raise ValueError(
            f"{quote_json(item)} is not a native tool.{hint} Write a kind, or {{kind: ..., setting: ...}}."
        )
    known = [field.name for field in dataclasses.fields(NATIVE_TOOL_TYPES[kind])]
    for key in settings:
        if key not in known:
            raise ValueError(f"{kind} has no setting {key!r}.{did_you_mean(str(key), known)}")
    try:
        return _native_adapter(kind).validate_python(settings, extra="forbid")
    except ValidationError as error:
        raise ValueError(f"{kind}: {summarize(error)}.") from None


def _check_native(value: Any) -> Any:
    native_tool(value if isinstance(value, str | Mapping) else {"kind": value})
    return value


def _write_toolset(toolset: str | McpToolset) -> str | dict[str, Any]:
    return toolset if isinstance(toolset, str) else toolset.model_dump(mode="json", exclude_defaults=True)


Toolset = Annotated[
    str | McpToolset,
    PlainValidator(_read_toolset, json_schema_input_type=_ToolsetName | Reference | McpToolset),
    PlainSerializer(_write_toolset),
]
_KINDS = {"enum": sorted(NATIVE_TOOL_TYPES)}
Native = Annotated[
    str | dict[str, Any],
    PlainValidator(_check_native),
    WithJsonSchema({"anyOf": [_KINDS, {"type": "object", "properties": {"kind": _KINDS}, "required": ["kind"]}]}),
]
