"""The plan of a call: what it would do, for rules to judge, and what a person who is asked about it sees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import LlmDoError
from ..sandbox import FileState, Pins, SandboxManager
from .rules import Call, Case, Grant, Ruling


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The effects of a call with certain arguments, for rules to judge.

    A tool that knows more of it than its arguments say returns a subclass. Its methods are called once, in this order,
    when a person is asked; for arguments that a person edited, only `pins` is.
    """

    cases: Sequence[Case] = (Case(),)
    """The effects of the call, each of which the rules judge."""
    ungranted: Collection[str] = ()
    """Arguments that a grant for the session leaves open: it is for this call with any value of them."""

    def pins(self, ruling: Ruling) -> Pins | None:
        """Return the files that the question is about, as they are now. If they change, it is asked again."""
        return None

    def view(self, ruling: Ruling, pins: Pins | None) -> dict[str, Any] | None:
        """Return all that a person must see; `None` is the arguments alone. Raise if the call cannot be made."""
        return None

    def offers(self, ruling: Ruling) -> Sequence[Grant]:
        """Return grants for the session that are wider than one for these arguments."""
        return ()


class Judgement(NamedTuple):
    plan: Plan
    call: Call
    """The call as the rules saw it."""
    ruling: Ruling


def pin_files(manager: SandboxManager, paths: Iterable[str], *, exact: bool = False) -> Pins:
    """Return files as they are now. One that cannot be read is equal to no other, and refused when it is read."""
    states: dict[str, FileState] = {}
    for path in paths:
        root, rest = manager.parse(path)
        try:
            states[path] = root.state(rest)
        except LlmDoError as exc:
            states[path] = FileState(str(exc))
    return Pins(states, exact)


UNPLANNED = Plan()
"""The plan of a call that no rule speaks of by its arguments."""
