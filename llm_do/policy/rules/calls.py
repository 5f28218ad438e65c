"""Calls as rules see them, and the conditions on the call path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that a call would do. A move has two paths, and a pipeline several commands: each is judged."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that rules speak of."""
    text: str | None = None
    """The case in words, if a call has several."""
    needs_shell: str | None = None
    """The part of a command that only a shell can run."""
    name: str | None = None
    """The name by which rules speak of this case, if it is not that of the call: a move reads as well."""


@dataclass(frozen=True)
class Call:
    name: str
    """The name by which rules speak of it."""
    cases: Sequence[Case] = (Case(),)
    caller: str | None = None
    """The worker that calls; `None` is Python."""
    path: Sequence[str] = ()
    """The names of the calls above it, from the top."""
    creators: Sequence[str] = ()
    """The creator of the worker that calls, its creator and so on: rules on a creator hold for what it creates."""
    generated: bool = False
    """Whether a worker that a model made is on the path."""
    qualified_name: str | None = None
    """`server/tool`, by which rules can speak of a tool of a server as well."""

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The values of all conditions on the call path."""
        return {name: condition.fact(self) for name, condition in CALL_CONDITIONS.items()}


class CallCondition(NamedTuple):
    types: frozenset[str]
    """The JSON types of the values that it can be compared with."""
    fact: Callable[[Call], Any]
    """Returns the value to compare."""
    is_entry: bool = False
    """Whether the values are names of workers and functions."""
    fits_any: bool = False
    """Whether one of several values is enough even for an `allow`: who is on the call path is known."""


CALL_PREFIX = "call."
CALL_CONDITIONS: Mapping[str, CallCondition] = {
    "call.caller": CallCondition(
        frozenset({"string", "null"}), lambda call: [call.caller, *call.creators], is_entry=True
    ),
    "call.depth": CallCondition(frozenset({"integer"}), lambda call: len(call.path)),
    "call.generated": CallCondition(frozenset({"boolean"}), lambda call: call.generated),
    "call.through": CallCondition(
        frozenset({"string"}), lambda call: [*call.path, *call.creators], is_entry=True, fits_any=True
    ),
}
"""The conditions by name. A new one is a row here, and in docs/rules.md."""
