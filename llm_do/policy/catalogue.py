"""The catalogue of llm-do's own toolsets, for worker files and rules. Only the standard library is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..values.names import AMONG_FILES

Disposition: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class ToolGroup:
    """Tools that rules speak of by one name."""

    rule: str
    """The name in rules."""
    default: Disposition
    """The decision where no rule applies."""
    tools: tuple[str, ...]
    """The names that models see."""
    arguments: Mapping[str, str]
    """The arguments that conditions can be on, and the kind of each."""


@dataclass(frozen=True, slots=True)
class ToolsetRow:
    """A toolset: how a worker file asks for it, where its tools are, and how rules speak of them."""

    name: str
    """Its name under `toolsets` in worker files, or that of its only tool."""
    place: str
    """The module below `llm_do.toolsets`, and in it the tool, the tuple of tools or the factory."""
    groups: tuple[ToolGroup, ...]
    key: str = "toolsets"
    """The key of worker files that asks for it."""
    has_name: bool = True
    """Whether it can be named under `toolsets`."""
    needs_sandbox: bool = False


_READ = ("read_file", "list_files", "find_files", "search_files")
_WRITE = ("write_file", "edit_file", "move_file", "delete_file")
_FILE = {"path": "path"}
_CREATED = {"name": "string", "tools": "string", "force": "boolean"}

# A toolset is added with a row here, and its module.
CATALOGUE = (
    ToolsetRow(
        "files",
        "files:FILE_TOOLS",
        (ToolGroup("sandbox.read", "allow", _READ, _FILE), ToolGroup("sandbox.write", "ask", _WRITE, _FILE)),
        key="sandbox",
        needs_sandbox=True,
    ),
    ToolsetRow(
        "worker_call",
        "delegation:worker_call",
        (ToolGroup("worker.call", "allow", ("worker_call",), {"worker": "string", "attachments": "path"}),),
        key="allow_workers",
        has_name=False,
    ),
    ToolsetRow(
        "shell",
        "shell:shell",
        (ToolGroup("shell", "ask", ("shell",), {"command": "command", "timeout": "number"}),),
        needs_sandbox=True,
    ),
    ToolsetRow(
        "worker_create",
        "delegation:worker_create",
        (ToolGroup("worker.create", "ask", ("worker_create",), _CREATED),),
    ),
    ToolsetRow(
        "mcp",  # a mapping in worker files, which says what server it is
        "mcp.toolset:McpFactory",
        (ToolGroup("mcp.sampling", "ask", (), {"server": "string", "max_tokens": "number"}),),
        has_name=False,
    ),
)

_GROUPS = [group for row in CATALOGUE for group in row.groups]
DEFAULTS: Mapping[str, Disposition] = {group.rule: group.default for group in _GROUPS}
ARGUMENTS: Mapping[str, Mapping[str, str]] = {group.rule: group.arguments for group in _GROUPS}
RULE_NAMES: Mapping[str, str] = {tool: group.rule for group in _GROUPS for tool in group.tools}
"""The name in rules of each tool. No entry, and no tool of others, can have the name of one."""
TOOLSETS = tuple(row.name for row in CATALOGUE if row.has_name)
PREFIXES = tuple(sorted({f"{rule.partition('.')[0]}." for rule in DEFAULTS if "." in rule}))
"""The beginnings of names in rules that are not names of tools."""

_FOR_NEW_WORKERS = frozenset(
    (
        *TOOLSETS,
        # worker files, and the names in rules and conditions
        *("call", *(prefix.rstrip(".") for prefix in PREFIXES)),
        # tools of providers, and the tool by which a model gives its answer
        *("web_search", "x_search", "code_execution", "web_fetch", "image_generation", "memory", "mcp_server"),
        *("file_search", "advisor", "tool_search", "final_result"),
        # devices: on Windows, no file can be called so, whatever it ends with
        *("con", "prn", "aux", "nul"),
        *(f"{device}{number}" for device in ("com", "lpt") for number in range(10)),
    )
)


def is_standard_tool(name: str) -> bool:
    """Return whether a worker of this name could be mistaken for a tool that llm-do brings."""
    return name.casefold() in RULE_NAMES


def is_built_in(name: str) -> bool:
    """Return whether this name means a tool that llm-do brings, in every rule."""
    return name in RULE_NAMES or name.startswith(PREFIXES)


def is_reserved(name: str) -> bool:
    """Return whether no new worker may have this name, in upper or lower case."""
    return name.casefold() in (*AMONG_FILES, *RULE_NAMES, *_FOR_NEW_WORKERS)
