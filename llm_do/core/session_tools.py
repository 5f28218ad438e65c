"""The tools of a session: toolsets by name, and what rules can name, also of toolsets, servers and capabilities.

Rules go by names, so it is an error if a foreign tool has the name of an entry of the project or of a tool of llm-do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.capabilities import NativeTool
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ..definitions.call_graph import called_names
from ..errors import LlmDoError, RuleError, ToolsetError, did_you_mean
from ..policy.catalogue import is_built_in
from ..policy.rules import RuleBook, Shape, check_rules, is_tool_name, shape_of
from ..values.canonical import SameObject
from ..values.json_schema import MOST_TOOL_PARTS, subschemas
from .adapt import adapt, describe, entries_below, rule_name
from .entry import Entry, EntryBase, ToolsetFactory
from .frame import CallFrame

PREFIX_HINT = "Give its tools a prefix: `prefix:` in a worker file, toolset.prefixed(...) in Python."
OMIT_HINT = "Change it at the server, or leave it out with toolset.filtered(...) in Python."
MOST_TOOLS = 1_000


class ToolsetResolver:
    """Factories of toolsets by name. The scope of a call makes the toolsets."""

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


@runtime_checkable
class HasRules(Protocol):
    """Entries with rules that hold in every session, which know the names that rules can use."""

    def rule_book(self) -> RuleBook | None: ...

    def check_rules(self, book: RuleBook) -> None: ...

    def with_rule_name(self, name: str) -> Entry[Any] | None: ...


class RuleChecks:
    """Checks rules against the tools of a session: a rule on an unknown tool or parameter is an error."""

    def __init__(self, entries: Mapping[str, Entry[Any]], session_rules: RuleBook | None) -> None:
        self._entries = entries
        self._checked: set[Hashable] = set()
        if session_rules is not None and isinstance(entries, HasRules):
            entries.check_rules(session_rules)
        elif session_rules is not None and entries:
            check_rules(session_rules, SessionTools(entries))

    def check_worker(self, worker: EntryBase, foreign: Mapping[str, Shape], above: Sequence[RuleBook] = ()) -> None:
        """Check a worker's rules against all its tools, and those `above` it against `foreign`, of its toolsets."""
        book = worker.rule_book
        if book is not None and (foreign or SameObject(book) not in self._checked):
            check_rules(book, SessionTools(self._entries, worker, foreign))
            self._checked.add(SameObject(book))
        self.check_rules_for(foreign, [other for other in above if other is not book])

    def check_toolsets(self, tools: Mapping[str, ToolsetTool[Any]], frame: CallFrame) -> None:
        """Check the names of the tools of a worker's toolsets, and the rules on them."""
        self.check_names(tools, frame, frame.entry.own_entries)
        if rules := frame.inherited.rules:
            _check_servers(tools, rules)
            self.check_worker(frame.entry, shapes_of(tools), rules)

    def check_rules_for(self, foreign: Mapping[str, Shape], books: Iterable[RuleBook]) -> None:
        for book in books:
            check_rules(book, SessionTools({}, None, foreign), only=foreign)

    def check_names(self, tools: Mapping[str, ToolsetTool[Any]], frame: CallFrame, own_names: Collection[str]) -> None:
        """Raise `ToolsetError` for a foreign tool whose name is taken, or whose name or schema is not valid."""
        worker, books = frame.entry.name, frame.inherited.rules
        if len(tools) > MOST_TOOLS:
            raise ToolsetError(f"Worker {worker!r} is brought {len(tools)} tools, and {MOST_TOOLS} are the most.")
        for name, tool in tools.items():
            if (problem := self._problem(name, tool, books, own_names)) is not None:
                raise ToolsetError(f"{_origin(tool.toolset).label} brings worker {worker!r} {problem}")

    def _problem(
        self, name: str, tool: ToolsetTool[Any], books: Iterable[RuleBook], own_names: Collection[str]
    ) -> str | None:
        if not is_tool_name(name):
            safe_name = ascii(name) if len(name) <= 128 else f"<text of {len(name):,} characters>"
            return (
                f"a tool with a name that models and rules cannot use: {safe_name}. A name has letters, digits, '_', "
                f"'-' and '.', 128 at most. {OMIT_HINT}"
            )
        if name in own_names:
            return f"a tool that it has itself: {name}. {PREFIX_HINT}"
        if (meaning := self._meaning_of(name, books)) is not None:
            return f"a tool named {name!r}, and that name means {meaning}. {PREFIX_HINT}"
        return _schema_problem(name, tool.tool_def.parameters_json_schema)

    def _meaning_of(self, name: str, books: Iterable[RuleBook]) -> str | None:
        """Describe what a name means already; `None` if a foreign tool may have it.

        Tools of providers, and the own tools of other workers, count only if a rule has the name.
        """
        if is_built_in(name):
            return "a tool of llm-do's own"
        if name in self._entries:
            return "an entry of the project"
        if not any(name in book.rules for book in books):
            return None
        if name in NATIVE_TOOL_TYPES:
            return "a tool of the model's provider"
        entry = self._find_by_rule_name(name)
        return None if entry is None else f"{describe(entry)} in rules"

    def _find_by_rule_name(self, name: str) -> Entry[Any] | None:
        if isinstance(self._entries, HasRules):
            return self._entries.with_rule_name(name)
        tools = entries_below(self._entries.values())
        return next((tool for tool in tools if name in (tool.name, rule_name(tool))), None)


class SessionTools:
    """The tools of a session that rules can name: a worker's own, those of the project, and foreign ones."""

    def __init__(
        self,
        entries: Mapping[str, Entry[Any]],
        worker: EntryBase | None = None,
        foreign: Mapping[str, Shape] | None = None,
    ) -> None:
        self._entries = entries
        self._worker = worker
        self._foreign = foreign
        # A registry would have to read every file for its tools: it is only asked for names.
        roots = [*(entries.values() if isinstance(entries, dict) else ()), *([] if worker is None else [worker])]
        self._tools = [adapt(entry) for entry in entries_below(roots) if entry is not worker]
        self.rule_names: Mapping[str, str] = {tool.name: rule_name(tool) for tool in self._tools}
        self.servers: Collection[str] = {name.partition("/")[0] for name in foreign or () if "/" in name}

    def shapes(self, name: str) -> Sequence[Shape] | None:
        shapes = [shape_of(tool.parameters.vocabulary.shape) for tool in self._tools if rule_name(tool) == name]
        if self._foreign is not None and name in self._foreign:
            shapes.append(self._foreign[name])
        if not shapes and not isinstance(self._entries, dict):
            with suppress(LlmDoError):
                shapes.append(shape_of(adapt(self._entries[name]).parameters.vocabulary.shape))
        if not shapes and name in NATIVE_TOOL_TYPES:
            shapes.append({})
        return shapes or None

    def names(self) -> Iterable[str]:
        return {*self._entries, *map(rule_name, self._tools), *(self._foreign or ())}

    def may_grow(self) -> bool:
        worker = self._worker
        if worker is not None and (_has_capabilities(worker) or (self._foreign is None and worker.toolsets)):
            return True
        return any(entry.toolsets or _has_capabilities(entry) for entry in (*self._tools, *self._reachable_by_name()))

    def _reachable_by_name(self) -> Iterator[EntryBase]:
        """Yield the entries that can be called from here by name, at any depth."""
        names_seen: set[str] = set()
        waiting = [*([] if self._worker is None else [self._worker]), *self._tools]
        while waiting:
            entry = waiting.pop()
            for name in called_names(entry, self._entries) - names_seen:
                names_seen.add(name)
                with suppress(LlmDoError, KeyError):  # its call raises this again
                    waiting.append(adapt(self._entries[name]))
                    yield waiting[-1]


def _has_capabilities(worker: EntryBase) -> bool:
    """Return whether an entry is a worker whose tools may change with every request."""
    return not all(isinstance(each, NativeTool) for each in worker.capabilities)


def server_of(tool: ToolsetTool[Any]) -> str | None:
    """Return the name of the server, or the toolset, that a tool comes from, if it has one that rules can use."""
    name = _origin(tool.toolset).id
    return name if name is not None and is_tool_name(name) else None


def _origin(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return the toolset inside wrappers that have no label of their own."""
    while isinstance(toolset, WrapperToolset) and type(toolset).label is WrapperToolset.label:
        toolset = toolset.wrapped
    return toolset


def qualified_name(name: str, tool: ToolsetTool[Any]) -> str | None:
    """Return `server/tool`, if the server has a name."""
    server = server_of(tool)
    return None if server is None else f"{server}/{name}"


def fingerprint(tool: ToolDefinition) -> str:
    """Return a digest of a tool's own description, on which grants depend."""
    description = [tool.name, tool.description, tool.parameters_json_schema]
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=repr).encode()).hexdigest()


def shapes_of(tools: Mapping[str, ToolsetTool[Any]]) -> dict[str, Shape]:
    """Return the shapes of the arguments of tools, by all names that rules can use."""
    shapes: dict[str, Shape] = {}
    for name, tool in tools.items():
        shapes[name] = shape_of(tool.tool_def.parameters_json_schema)
        if (qualified := qualified_name(name, tool)) is not None:
            shapes[qualified] = shapes[name]
    return shapes


def _check_servers(tools: Mapping[str, ToolsetTool[Any]], books: Iterable[RuleBook]) -> None:
    """Raise `RuleError` for a rule on a server if two have its name."""
    origins: dict[str, AbstractToolset[Any]] = {}
    for tool in tools.values():
        server, origin = server_of(tool), _origin(tool.toolset)
        if server is None or origins.setdefault(server, origin) is origin:
            continue
        if rule := next((name for book in books for name in book.rules if name.startswith(f"{server}/")), None):
            raise RuleError(f"{rule}: there are two servers named {server!r}. Give them names, or an id, of their own.")


def _schema_problem(name: str, schema: Any) -> str | None:
    if len(list(islice(subschemas(schema), MOST_TOOL_PARTS + 1))) > MOST_TOOL_PARTS:
        return f"the tool {name!r}, whose schema has more than {MOST_TOOL_PARTS} parts. {OMIT_HINT}"
    kinds: Iterable[tuple[str, type]] = (("properties", dict), ("$defs", dict), ("required", list))
    for key, kind in kinds if isinstance(schema, dict) else ():
        if not isinstance(schema.get(key, kind()), kind):
            return f"the tool {name!r}, whose schema is not valid: {key!r} is no {kind.__name__}. {OMIT_HINT}"
    return None


_ELSEWHERE = {
    "Files come with `sandbox`": ("read", "write", "edit", "multiedit", "grep", "glob", "ls", "notebookedit"),
    "Commands come with `toolsets: [shell]`": ("bash", "shell", "terminal"),
    "The provider's own tools come with `native`": ("websearch", "webfetch", "web_search", "web_fetch"),
    "Other workers are named here themselves": ("agent", "task"),
}
"""Names of tools in other systems, by what offers the same here."""


def no_such_tool(tool: str, names_known: Iterable[str]) -> str:
    """Return the error about an unknown name in `tools`."""
    for where, names in _ELSEWHERE.items():
        if tool.partition("(")[0].lower() in names:
            return f"there is no tool {tool!r}. {where}: see docs/migrating.md."
    return f"there is no tool {tool!r}.{did_you_mean(tool, names_known)}"
