"""The toolsets that llm-do brings. Their modules are imported when a worker asks for them: most workers use few.

A toolset is added with a row here and its module; tools that rules speak of have a row in `policy/catalogue.py` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..core.tool import ToolEntry
from ..definitions.definition import WorkerDefinition


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


_ROWS = (
    ToolsetRow("files", "sandbox", "files", "FILE_TOOLS", needs_sandbox=True),
    ToolsetRow("worker_call", "allow_workers", "delegation", "worker_call"),
    ToolsetRow("shell", "toolsets", "shell", "shell", needs_sandbox=True),
    ToolsetRow("worker_create", "toolsets", "delegation", "worker_create"),
    ToolsetRow("mcp", "toolsets", "mcp.toolset", "McpFactory"),  # a mapping, which names a server
)
TABLE = {row.name: row for row in _ROWS}


def tools_of(definition: WorkerDefinition) -> list[ToolEntry[Any]]:
    """Return the tools that a worker file asks for. Where no root is writable, none of them writes."""
    tools: list[ToolEntry[Any]] = []
    for row in _ROWS:
        if row.is_wanted(definition):
            loaded = row.load()
            tools += loaded if isinstance(loaded, tuple) else (loaded,)
    roots = definition.sandbox.paths.values() if definition.sandbox is not None else ()
    is_writable = any(root.mode == "rw" for root in roots)
    return [tool for tool in tools if is_writable or tool.rule != "sandbox.write"]
