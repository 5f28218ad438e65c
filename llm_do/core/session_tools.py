"""The tools of a session that rules can name, and the check of rules against them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.capabilities import NativeTool
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

from ..definitions.call_graph import called_names
from ..errors import LlmDoError
from ..policy.catalogue import is_built_in
from ..policy.rules import RuleBook, Shape, check_rules, shape_of
from ..values.canonical import SameObject
from .adapt import adapt, describe, rule_name
from .entry import Entry, EntryBase
from .names import entries_below


@runtime_checkable
class HasRules(Protocol):
    """Entries with rules of their own, which hold in every session, and which know the names that rules can use."""

    def rule_book(self) -> RuleBook | None: ...

    def check_rules(self, book: RuleBook) -> None: ...

    def with_rule_name(self, name: str) -> Entry[Any] | None: ...


class RuleChecks:
    """Checks rules against the tools of a session: a rule on an unknown tool or parameter fails."""

    def __init__(self, entries: Mapping[str, Entry[Any]], session_rules: RuleBook | None) -> None:
        self._entries = entries
        self._checked: set[Hashable] = set()
        if session_rules is not None and isinstance(entries, HasRules):
            entries.check_rules(session_rules)
        elif session_rules is not None and entries:
            check_rules(session_rules, SessionTools(entries))

    def check_worker(self, worker: EntryBase, foreign: Mapping[str, Shape], above: Sequence[RuleBook] = ()) -> None:
        """Check the rules of a worker once all its tools are known, and those `above` where they concern it.

        `foreign` has the tools of its toolsets.
        """
        book = worker.rule_book
        if book is not None and (foreign or SameObject(book) not in self._checked):
            check_rules(book, SessionTools(self._entries, worker, foreign))
            self._checked.add(SameObject(book))
        self.check_rules_for(foreign, [other for other in above if other is not book])

    def check_rules_for(self, foreign: Mapping[str, Shape], books: Iterable[RuleBook]) -> None:
        """Check the rules on these tools, and no others."""
        for book in books:
            check_rules(book, SessionTools({}, None, foreign), only=foreign)

    def meaning_of(self, name: str, books: Iterable[RuleBook]) -> str | None:
        """Describe the meaning of a name in the project, so that no foreign tool can have it; `None` if it is free.

        Tools of providers, and the own tools of other workers, count only where a rule speaks of the name.
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
        """Return the entry of the project, or of one of its workers, that has this name in rules."""
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
        # A registry would have to read every file to tell what it has: it is asked for names only.
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
                with suppress(LlmDoError, KeyError):  # what is wrong with it is said when it is called
                    waiting.append(adapt(self._entries[name]))
                    yield waiting[-1]


def _has_capabilities(worker: EntryBase) -> bool:
    """Return whether an entry is a worker with tools that come and go with every request."""
    return not all(isinstance(each, NativeTool) for each in worker.capabilities)
