"""The toolsets of the catalogue, whose modules are imported when a worker asks for them: most workers use few."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..core.tool import ToolEntry
from ..definitions.definition import WorkerDefinition
from ..policy.catalogue import CATALOGUE

_PLACES = {row.name: row.place for row in CATALOGUE}


def load(toolset: str) -> Any:
    """Import the module of a toolset, and return the tool, the tuple of tools or the factory there."""
    module, _, attribute = _PLACES[toolset].partition(":")
    return getattr(import_module(f".{module}", __package__), attribute)


def tools_of(definition: WorkerDefinition) -> list[ToolEntry[Any]]:
    """Return the tools that a worker file asks for. Where no root is writable, none of them writes."""
    tools: list[ToolEntry[Any]] = []
    for row in CATALOGUE:
        if row.name in definition.toolsets if row.key == "toolsets" else getattr(definition, row.key):
            loaded = load(row.name)
            tools += loaded if isinstance(loaded, tuple) else (loaded,)
    roots = definition.sandbox.paths.values() if definition.sandbox is not None else ()
    is_writable = any(root.mode == "rw" for root in roots)
    return [tool for tool in tools if is_writable or tool.rule != "sandbox.write"]
