"""Tools of toolsets, MCP servers and capabilities: whose they are, and whether they may be there.

Rules go by names. The names of this project, and of the tools that llm-do brings, are its own, so a foreign tool that
takes one is an error, whenever it turns up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ..errors import RuleError, ToolsetError
from ..policy.rules import RuleBook, Shape, is_tool_name, shape_of
from ..values.json_schema import MOST_TOOL_PARTS, subschemas
from .context import Context

PREFIX_HINT = "Give its tools a prefix: `prefix:` in a worker file, toolset.prefixed(...) in Python."

OMIT_HINT = "Change it at the server, or leave it out with toolset.filtered(...) in Python."
MOST_TOOLS = 1_000


def server_of(tool: ToolsetTool[Any]) -> str | None:
    """Return the name of the server, or the toolset, that a tool comes from, if it has one that rules can use."""
    name = _origin(tool.toolset).id
    return name if name is not None and is_tool_name(name) else None


def _origin(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return the toolset inside of wrappers that says what it is."""
    while isinstance(toolset, WrapperToolset) and type(toolset).label is WrapperToolset.label:
        toolset = toolset.wrapped
    return toolset


def qualified_name(name: str, tool: ToolsetTool[Any]) -> str | None:
    """Return `server/tool`, if the server has a name."""
    server = server_of(tool)
    return None if server is None else f"{server}/{name}"


def fingerprint(tool: ToolDefinition) -> str:
    """Return a digest of what a tool says of itself. A grant is for a tool that still says the same."""
    description = [tool.name, tool.description, tool.parameters_json_schema]
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=repr).encode()).hexdigest()


def shapes_of(tools: Mapping[str, ToolsetTool[Any]]) -> dict[str, Shape]:
    """Return the arguments of tools by all names that rules can use for them."""
    shapes: dict[str, Shape] = {}
    for name, tool in tools.items():
        shapes[name] = shape_of(tool.tool_def.parameters_json_schema)
        if (qualified := qualified_name(name, tool)) is not None:
            shapes[qualified] = shapes[name]
    return shapes


def check_servers(tools: Mapping[str, ToolsetTool[Any]], books: Iterable[RuleBook]) -> None:
    """Raise `RuleError` for a rule that names a server of which there are two."""
    origins: dict[str, AbstractToolset[Any]] = {}
    for tool in tools.values():
        server, origin = server_of(tool), _origin(tool.toolset)
        if server is None or origins.setdefault(server, origin) is origin:
            continue
        if rule := next((name for book in books for name in book.rules if name.startswith(f"{server}/")), None):
            raise RuleError(f"{rule}: there are two servers named {server!r}. Give them names, or an id, of their own.")


def check_names(tools: Mapping[str, ToolsetTool[Any]], ctx: Context, own_names: Collection[str] = ()) -> None:
    """Raise `ToolsetError` for a tool whose name means something else, or that cannot be a tool at all."""
    worker = ctx.frame.entry
    if len(tools) > MOST_TOOLS:
        raise ToolsetError(f"Worker {worker.name!r} is brought {len(tools)} tools, and {MOST_TOOLS} are the most.")
    for name, tool in tools.items():
        if (problem := _problem(name, tool, ctx, own_names)) is not None:
            raise ToolsetError(f"{_origin(tool.toolset).label} brings worker {worker.name!r} {problem}")


def _problem(name: str, tool: ToolsetTool[Any], ctx: Context, own_names: Collection[str]) -> str | None:
    if not is_tool_name(name):
        safe_name = ascii(name) if len(name) <= 128 else f"<text of {len(name):,} characters>"
        return (
            f"a tool with a name that models and rules cannot use: {safe_name}. A name has letters, digits, '_', '-' "
            f"and '.', 128 at most. {OMIT_HINT}"
        )
    if name in own_names:
        return f"a tool that it has itself: {name}. {PREFIX_HINT}"
    if (meaning := ctx.runtime.rule_checks.meaning_of(name, ctx.frame.inherited.rules)) is not None:
        return f"a tool named {name!r}, and that name means {meaning}. {PREFIX_HINT}"
    return _schema_problem(name, tool.tool_def.parameters_json_schema)


def _schema_problem(name: str, schema: Any) -> str | None:
    if len(list(islice(subschemas(schema), MOST_TOOL_PARTS + 1))) > MOST_TOOL_PARTS:
        return f"the tool {name!r}, whose schema has more than {MOST_TOOL_PARTS} parts. {OMIT_HINT}"
    kinds: Iterable[tuple[str, type]] = (("properties", dict), ("$defs", dict), ("required", list))
    for key, kind in kinds if isinstance(schema, dict) else ():
        if not isinstance(schema.get(key, kind()), kind):
            return f"the tool {name!r}, whose schema is not valid: {key!r} is no {kind.__name__}. {OMIT_HINT}"
    return None
