"""Adapters for entries of users' own classes, and the lookup of entries by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from pydantic_ai import Tool
from pydantic_ai.agent import AbstractAgent

from ..arguments.inputs import OpenParameters
from ..arguments.parameters import Parameters
from ..arguments.signatures import model_parameters
from ..definitions.call_graph import reachable_from
from ..errors import DuplicateEntryError
from ..values.canonical import SameObject
from ..values.names import check_name
from ..values.texts import quote
from .entry import Entry, EntryBase, check_repeat


class AdaptedEntry(EntryBase):
    """An entry of a user's own class. Its attributes are read at each use, since they may change."""

    def __init__(self, target: Entry[Any]) -> None:
        check_entry(target, "this runtime")
        self.target = target
        input_type = getattr(target, "input_type", None)
        self.parameters = (
            OpenParameters(target.name) if input_type is None else model_parameters(target.name, input_type)
        )
        self.secret_fields = None if input_type is None else self.parameters.secret_fields
        self.identity = SameObject(target)
        self.repeat = check_repeat(getattr(target, "repeat", "never"), target.name)

    name: Any = property(attrgetter("target.name"))
    kind: Any = property(attrgetter("target.kind"))
    requires_approval: Any = property(attrgetter("target.requires_approval"))
    model: Any = property(attrgetter("target.model"))
    description: Any = property(lambda self: getattr(self.target, "description", None))
    schema_out: Any = property(lambda self: getattr(self.target, "schema_out", None))
    needs_run_context: Any = property(lambda self: getattr(self.target, "needs_run_context", True))

    async def call(self, input_data: Any, ctx: Any, run_ctx: Any) -> Any:
        return await self.target.call(input_data, ctx, run_ctx)

    def __repr__(self) -> str:
        return repr(self.target)


_ADAPTED: WeakValueDictionary[int, AdaptedEntry] = WeakValueDictionary()
"""The adapters in use, by the id of their targets, which they keep alive."""


def adapt(entry: Entry[Any]) -> EntryBase:
    """Return the entry itself if it is an `EntryBase`, else its only adapter."""
    if isinstance(entry, EntryBase):
        return entry
    adapter = _ADAPTED.get(id(entry))
    if adapter is None or adapter.target is not entry:
        adapter = _ADAPTED[id(entry)] = AdaptedEntry(entry)
    return adapter


def parameters_of(entry: Entry[Any]) -> Parameters:
    """Return the parameters of an entry. Those of a user's own class without `input_type` are those of a worker."""
    return adapt(entry).parameters


def rule_name(entry: Entry[Any]) -> str:
    """Return the name that rules use for an entry."""
    adapted = adapt(entry)
    return adapted.rule or adapted.name


def describe(entry: Entry[Any]) -> str:
    """Return the kind, the name and the source of an entry, for error messages."""
    source = adapt(entry).source
    return f"{entry.kind} {entry.name!r}" + (f" from {source}" if source else "")


def check_entry(thing: Any, owner: str) -> None:
    """Raise `TypeError` if `thing` is not an entry, and say how to make it one."""
    if isinstance(thing, type):
        raise TypeError(f"{thing.__name__} is a class, so {owner} cannot call it. Give an instance.")
    if all(hasattr(thing, member) for member in ("name", "kind", "requires_approval", "model", "call")):
        return
    if isinstance(thing, AbstractAgent):
        raise TypeError(f"{owner} cannot call {about_agent(thing)}")
    if isinstance(thing, Tool):
        raise TypeError(f"{owner} cannot call the PydanticAI tool {thing.name!r} as it is. Use ToolEntry(tool=...).")
    hint = " Decorate it with @entry, or use ToolEntry.from_function." if callable(thing) else ""
    raise TypeError(f"{quote(thing)} is not an entry, so {owner} cannot call it.{hint}")


def about_agent(agent: AbstractAgent[Any, Any]) -> str:
    """Return the end of an error about a PydanticAI agent that was passed as an entry."""
    name = agent.name or "name"
    return (
        f"the PydanticAI agent {agent.name!r} as it is: its requests and tools would be outside of the runtime. "
        f"Write WorkerEntry(name={name!r}, instructions=..., tools=[...]) in its place, or run the agent in a function "
        "with @entry."
    )


@runtime_checkable
class ExplainsNames(Protocol):
    """A mapping of entries that can explain why a name in the code of the project is not among them."""

    def explain_name(self, name: str) -> str | None: ...


def index_by_name(entries: Iterable[Entry[Any]], owner: str = "this runtime") -> dict[str, Entry[Any]]:
    """Return entries by name. Raise for two of one name, and for anything that is not an entry."""
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
    """Return values as a list. Raise for a single value, even if Python could iterate over it, as over a text."""
    if isinstance(values, str) or hasattr(values, "call") or not isinstance(values, Iterable):
        raise TypeError(f"The {what} must be a list, got {quote(values)}.")
    return list(values)


def entries_below(entries: Iterable[Entry[Any]]) -> Iterator[Entry[Any]]:
    """Yield entries, their own tools, the own tools of these, and so on."""
    return reachable_from(entries, lambda entry: adapt(entry).own_entries.values(), id)


def reachable(entry: Entry[Any]) -> dict[str, Entry[Any]]:
    """Return an entry and all below it, by name. Names that two entries below it have are left out."""
    check_entry(entry, "this runtime")
    entries: dict[str, Entry[Any]] = {check_name(entry.name): entry}
    ambiguous: set[str] = set()
    for tool in entries_below([entry]):
        if entries.setdefault(tool.name, tool) is not tool and entries[tool.name] is not entry:
            ambiguous.add(tool.name)
    return {name: tool for name, tool in entries.items() if name not in ambiguous}
