"""The toolsets that llm-do brings. Their modules are imported when a worker asks for them: most workers use few.

A toolset is added with a row here and its module; tools that rules speak of have a row in `policy/catalogue.py` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.entries import ToolEntry
from ..core.entry import ToolsetFactory
from ..definitions.definition import McpToolset, WorkerDefinition
from ..policy.catalogue import TOOLSETS


@dataclass(frozen=True, slots=True)
class ToolsetRow:
    """A toolset: how a worker file asks for it, and where its tools are."""

    name: str
    """Its name under `toolsets`, or that of its only tool."""
    key: str
    """The key of worker files that asks for it."""
    module: str
    attribute: str
    """The tool, the tuple of tools, or the factory."""
    needs_sandbox: bool = False

    def is_wanted(self, definition: WorkerDefinition) -> bool:
        """Return whether a worker file asks for it."""
        return self.name in definition.toolsets if self.key == "toolsets" else bool(getattr(definition, self.key))

    def load(self) -> Any:
        """Import its module, and return what is there."""
        return getattr(import_module(f".{self.module}", __package__), self.attribute)


TABLE = (
    ToolsetRow("files", "sandbox", "files", "FILE_TOOLS", needs_sandbox=True),
    ToolsetRow("worker_call", "allow_workers", "delegation", "worker_call"),
    ToolsetRow("shell", "toolsets", "shell", "shell", needs_sandbox=True),
    ToolsetRow("worker_create", "toolsets", "delegation", "worker_create"),
)
_MCP = ToolsetRow("mcp", "toolsets", "mcp.toolset", "McpFactory")


def tools_of(definition: WorkerDefinition) -> list[ToolEntry[Any]]:
    """Return the tools that a worker file asks for. Where no root is writable, none of them writes."""
    tools: list[ToolEntry[Any]] = []
    for row in TABLE:
        if row.is_wanted(definition):
            found = row.load()
            tools += found if isinstance(found, tuple) else (found,)
    roots = definition.sandbox.paths.values() if definition.sandbox is not None else ()
    is_writable = any(root.mode == "rw" for root in roots)
    return [tool for tool in tools if is_writable or tool.rule != "sandbox.write"]


def without_sandbox(definition: WorkerDefinition) -> str | None:
    """Return the toolset that a worker file names without the sandbox that it needs."""
    named = (row.name for row in TABLE if row.needs_sandbox and row.name in definition.toolsets)
    return next(named, None) if definition.sandbox is None else None


def is_built_in(toolset: str | McpToolset) -> bool:
    """Return whether an item of `toolsets` names a toolset of llm-do, in place of a factory or a server."""
    return isinstance(toolset, str) and toolset in TOOLSETS


def mcp_factory(declared: McpToolset, base: Path) -> ToolsetFactory:
    """Return the factory of an MCP server's tools."""
    made: ToolsetFactory = _MCP.load()(declared, base)
    return made
