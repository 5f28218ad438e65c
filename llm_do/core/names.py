"""Names of entries and toolsets: which are allowed, whose they are, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.toolsets import AbstractToolset

from ..definitions.call_graph import reachable_from
from ..errors import DuplicateEntryError, ToolsetError, did_you_mean
from ..values.names import check_name
from ..values.texts import quote
from .adapt import adapt, check_entry, describe
from .entry import Entry, ToolsetFactory


@runtime_checkable
class ExplainsNames(Protocol):
    """Entries that know why a name means none of them, though the code of the project has it."""

    def explain_name(self, name: str) -> str | None: ...


def index_by_name(entries: Iterable[Entry[Any]], owner: str = "this runtime") -> dict[str, Entry[Any]]:
    """Index entries by name. Raise for two of one name, and for anything that is no entry."""
    by_name: dict[str, Entry[Any]] = {}
    for entry in as_list(entries, f"entries of {owner}"):
        check_entry(entry, owner)
        check_name(entry.name)
        other = by_name.setdefault(entry.name, entry)
        if other is not entry:
            raise DuplicateEntryError(
                f"Two entries of {owner} are named {entry.name!r}: {describe(other)}, and {describe(entry)}."
            )
    return by_name


def as_list(values: Any, what: str) -> list[Any]:
    """Return values as a list, or raise for a single one, which Python would take for another iterable."""
    if isinstance(values, str) or hasattr(values, "call") or not isinstance(values, Iterable):
        raise TypeError(f"The {what} must be a list, got {quote(values)}.")
    return list(values)


def entries_below(entries: Iterable[Entry[Any]]) -> Iterator[Entry[Any]]:
    """Yield entries, and all in the trees below them."""
    return reachable_from(entries, lambda entry: adapt(entry).own_entries.values(), id)


def reachable(entry: Entry[Any]) -> dict[str, Entry[Any]]:
    """Return an entry and all that it reaches, by name, without names that mean two entries."""
    check_entry(entry, "this runtime")
    entries: dict[str, Entry[Any]] = {check_name(entry.name): entry}
    ambiguous: set[str] = set()
    for tool in entries_below([entry]):
        if entries.setdefault(tool.name, tool) is not tool and entries[tool.name] is not entry:
            ambiguous.add(tool.name)
    return {name: tool for name, tool in entries.items() if name not in ambiguous}


class ToolsetResolver:
    """Names of toolsets, and the factories behind them. It makes nothing: a call's scope does."""

    def __init__(self, factories: Mapping[str, ToolsetFactory] | None = None) -> None:
        self._factories = dict(factories or {})

    def resolve(self, toolset: str | ToolsetFactory, worker: str) -> ToolsetFactory:
        """Return the factory that a worker declares, by name or as an object."""
        if isinstance(toolset, str):
            if toolset not in self._factories:
                raise ToolsetError(
                    f"There is no toolset named {toolset!r}, which worker {worker!r} uses."
                    f"{did_you_mean(toolset, self._factories)} "
                    f"Define it with Runtime(toolsets={{{toolset!r}: factory}})."
                )
            return self._factories[toolset]
        if isinstance(toolset, AbstractToolset):
            raise ToolsetError(
                f"Worker {worker!r} was given the toolset {toolset.label} itself. Toolsets hold state and "
                "connections, so each call makes its own: give a factory, such as `lambda ctx: MyToolset()`."
            )
        if not callable(toolset):
            raise ToolsetError(f"Worker {worker!r}: {toolset!r} is neither the name of a toolset nor a factory.")
        return toolset


_ELSEWHERE = {
    "Files come with `sandbox`": ("read", "write", "edit", "multiedit", "grep", "glob", "ls", "notebookedit"),
    "Commands come with `toolsets: [shell]`": ("bash", "shell", "terminal"),
    "The provider's own tools come with `native`": ("websearch", "webfetch", "web_search", "web_fetch"),
    "Other workers are named here themselves": ("agent", "task"),
}
"""Names of tools in other systems, by where the same is found here."""


def no_such_tool(tool: str, names_known: Iterable[str]) -> str:
    """Return the error about an unknown name in `tools`."""
    for where, names in _ELSEWHERE.items():
        if tool.partition("(")[0].lower() in names:
            return f"there is no tool {tool!r}. {where}: see docs/migrating.md."
    return f"there is no tool {tool!r}.{did_you_mean(tool, names_known)}"
