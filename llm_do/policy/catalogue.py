"""The catalogue of llm-do's own tools: the names by which rules speak of them, and what follows from these.

Only the standard library is imported.
"""

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
    toolset: str | None
    """The name under `toolsets` in worker files, if they have one."""
    tools: tuple[str, ...]
    """The names that models see."""
    arguments: Mapping[str, str]
    """The arguments that conditions can be on, and the kind of each."""


_READ = ("read_file", "list_files", "find_files", "search_files")
_WRITE = ("write_file", "edit_file", "move_file", "delete_file")

CATALOGUE = (
    ToolGroup("sandbox.read", "allow", "files", _READ, {"path": "path"}),
    ToolGroup("sandbox.write", "ask", "files", _WRITE, {"path": "path"}),
    ToolGroup("shell", "ask", "shell", ("shell",), {"command": "command", "timeout": "number"}),
    ToolGroup("worker.call", "allow", None, ("worker_call",), {"worker": "string", "attachments": "path"}),
    ToolGroup(
        "worker.create",
        "ask",
        "worker_create",
        ("worker_create",),
        {"name": "string", "tools": "string", "force": "boolean"},
    ),
    ToolGroup("mcp.sampling", "ask", None, (), {"server": "string", "max_tokens": "number"}),
)

DEFAULTS: Mapping[str, Disposition] = {group.rule: group.default for group in CATALOGUE}
ARGUMENTS: Mapping[str, Mapping[str, str]] = {group.rule: group.arguments for group in CATALOGUE}
RULE_NAMES: Mapping[str, str] = {tool: group.rule for group in CATALOGUE for tool in group.tools}
"""The name in rules of each tool. No entry, and no tool of others, can have the name of one."""
TOOLSETS = tuple(dict.fromkeys(group.toolset for group in CATALOGUE if group.toolset is not None))
PREFIXES = tuple(sorted({f"{rule.partition('.')[0]}." for rule in DEFAULTS if "." in rule}))
"""How the names in rules begin that are not the name of a tool."""

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
