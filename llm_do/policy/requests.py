"""Approval requests and the answers to them, as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ..privacy.display import format_arguments, visible
from .rules import Grant, Ruling

EXACTLY = "exactly these arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """What somebody is asked."""

    tool_name: str
    """The name by which rules speak of the tool."""
    payload: dict[str, Any]
    """The arguments, and what else there is to see. A copy: changing it changes nothing."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments alone, as they can be edited."""
    reason: str
    """Which rule asks, why, and the path of calls."""
    entry: str
    """The name of the tool itself."""
    worker: str | None = None
    """The worker that calls; `None` is Python."""
    call_path: str = ""
    """The names of the calls above, and of this one."""
    ruling: Ruling | None = None
    """What asks, with the rule and where it stands."""
    offers: tuple[Grant, ...] = ()
    """Wider permissions that can be given for the session, each with all that it covers as its text."""
    before: Mapping[str, str | None] = field(default_factory=dict)
    """The texts of files that the call would change, by path; `None` is no file. Those that are no text are left out.
    If another text is there when the call runs, it does not run but is asked about again."""
    question: str | None = None
    """Where it is about no call: what is asked, in place of whether one may run. The answer is yes or no."""
    count: int = 1
    """The number of identical calls that wait, this one included. Who is asked has to be shown it: see `all_calls`."""
    ungranted: tuple[str, ...] = ()
    """Arguments that a yes for the session leaves open: it is for any value of them."""

    @property
    def session_grant(self) -> str:
        """Which arguments a yes for the session is for, in words."""
        *names, last = self.ungranted or ("",)
        both = f"{', '.join(names)} and {last}" if names else last
        return f"these arguments and any {both}" if both else EXACTLY

    def text(self, *, full: bool = False) -> str:
        """The request as a person may see it: nothing in it can hide, or do anything to a screen.

        Long values are cut in the middle, unless `full`.
        """
        path = f"\n  call path: {visible(self.call_path)}" if self.call_path else ""
        because = visible(str(self.ruling.because if self.ruling is not None else self.reason))
        why = visible(self.ruling.reason) if self.ruling is not None and self.ruling.reason else None
        shown = format_arguments(self.payload, full=full)
        indented = "".join(f"\n  {line}" for line in shown.splitlines())
        calls = f"{self.count:,} identical calls of " if self.count > 1 else ""
        return f"{calls}{visible(self.entry)} ({visible(self.tool_name)}){path}\n  rule: {because}" + (
            f"\n  reason: {why}{indented}" if why else indented
        )


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The answer to an approval request."""

    approved: bool
    """Yes or no."""
    approve_for_session: bool = False
    """Do not ask again in this session when the same worker makes the same call with the same arguments.

    Those that the request has in `ungranted` may differ: a yes to reading a file is for every part of it.
    """
    note: str | None = None
    """A word to the caller; a model that is refused reads it."""
    grant: Grant | None = None
    """One of the offers of the request: do not ask again in this session for any call that it covers."""
    arguments: dict[str, Any] | None = None
    """Arguments to run with, in place of those that were asked about. They are validated and judged again."""
    end_run: bool = False
    """Refuse all identical calls that wait, and end the run: the caller gets no chance to go on."""
    all_calls: bool = False
    """Answer all `count` calls of the request, be it yes or no. Otherwise one is answered, and the next is asked about.

    Calls that were not counted are asked about next in any case. A plain callback sees no count, and answers one call.
    """

    def __post_init__(self) -> None:
        # "no" is true in Python: only a real bool may open a door.
        for flag in ("approved", "approve_for_session", "end_run", "all_calls"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"ApprovalDecision.{flag} must be True or False.")
        if self.end_run and self.approved:
            raise ValueError("ApprovalDecision: what is approved does not end the run.")
        if not self.approved and (self.arguments is not None or self.grant is not None or self.approve_for_session):
            raise ValueError("ApprovalDecision: what is refused has neither arguments nor a grant for the session.")


ApprovalCallback: TypeAlias = Callable[[str, dict[str, Any], str], ApprovalDecision | Awaitable[ApprovalDecision]]
"""Gets `(tool_name, payload, reason)` and decides. The payload is a copy: changing it changes nothing."""


class Approver(Protocol):
    """In place of a callback: it sees the whole request, with the rule that asks, the offers and the count.

    An approver that shows one question at a time has the attribute `one_at_a_time = True`. Then it is asked when it has
    answered the question before, and the request is made at that moment: it counts the calls that wait by then, and is
    not made at all where a grant covers the call by then.
    """

    def ask(self, request: ApprovalRequest, /) -> ApprovalDecision | Awaitable[ApprovalDecision]:
        """Decide. What it raises, and anything but a decision, refuses."""


def approve_all_callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    """Say yes to everything that is asked."""
    return ApprovalDecision(approved=True)


def strict_mode_callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    """Say no to everything that is asked."""
    return ApprovalDecision(approved=False, note="strict mode refuses whatever needs an approval")


@dataclass(slots=True, frozen=True, kw_only=True)
class ApprovalOutcome:
    """How the approval of one call was decided."""

    approved: bool
    """Whether the call could run."""
    by: Literal["callback", "grant", "rule", "nobody", "error"]
    """A callback, an earlier decision for the session, a rule, nobody to ask, or a callback that failed."""
    note: str | None = None
    """What the person who decided had to say."""
    rule: str | None = None
    """Who allowed it, denied it, or wanted somebody to be asked; with the file and the line of a rule in a file."""
    grant: str | None = None
    """What holds for the rest of the session: given with this decision, or, where `by` is "grant", used for it."""
    edited: bool = False
    """Whether the call ran with other arguments than those that were asked about."""
    count: int = 1
    """The number of identical calls that the answer was for, this one included."""
    at: float = field(default=0.0, compare=False)
    """When it was decided, in seconds since the epoch."""
