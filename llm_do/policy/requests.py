"""Approval requests and the answers to them, as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ..privacy.display import format_arguments, visible
from ..values.canonical import digest
from .rules import Grant, Ruling


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A question to an approver: whether one call, or several identical ones, may run."""

    tool_name: str
    """The name by which rules speak of the tool."""
    payload: dict[str, Any]
    """The arguments, and anything else to see. A copy: changing it changes nothing."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments alone, as they can be edited."""
    reason: str
    """The rule that asks, its reason, and the call path."""
    entry: str
    """The name of the tool itself."""
    worker: str | None = None
    """The worker that calls; `None` is Python."""
    call_path: str = ""
    """The names of the calls above, and of this one."""
    ruling: Ruling | None = None
    """The ruling to ask, with the rule and its file and line."""
    offers: tuple[Grant, ...] = ()
    """Wider permissions that can be granted for the session. The text of each says all that it covers."""
    before: Mapping[str, str | None] = field(default_factory=dict)
    """The texts of files that the call would change, by path; `None` is no file. Binary files are left out.
    If a text has changed when the call would run, the question is asked again."""
    question: str | None = None
    """The question, where it is about no call. The answer is yes or no."""
    count: int = 1
    """The number of identical calls that wait, this one included. The person must see it: see `all_calls`."""
    ungranted: tuple[str, ...] = ()
    """Arguments that an approval for the session leaves open: it covers any value of them."""

    key: str | None = None
    """The key of the call, where one is needed. See `TraceEntry.key`."""
    files: Mapping[str, str | None] = field(default_factory=dict)
    """Digests of the files that the question is about, as they are now; `None` is no file."""

    @property
    def digest(self) -> str:
        """A digest of all that is shown, and of the files. A stored answer applies if its digest is equal."""
        offers = [offer.text for offer in self.offers]
        return digest(["", self.text(full=True), dict(self.before), offers, dict(self.files)])[0]

    @property
    def session_grant(self) -> str:
        """The arguments that an approval for the session covers, in words."""
        *names, last = self.ungranted or ("",)
        both = f"{', '.join(names)} and {last}" if names else last
        return f"these arguments and any {both}" if both else "exactly these arguments"

    def text(self, *, full: bool = False) -> str:
        """Return the request as text for a screen: nothing in it can hide, or control the terminal.

        Long values are cut in the middle, unless `full`.
        """
        path = f"\n  call path: {visible(self.call_path)}" if self.call_path else ""
        because = visible(str(self.ruling.because if self.ruling is not None else self.reason))
        why = visible(self.ruling.reason) if self.ruling is not None and self.ruling.reason else None
        lines = format_arguments(self.payload, full=full).splitlines()
        indented = "".join(f"\n  {line}" for line in lines)
        calls = f"{self.count:,} identical calls of " if self.count > 1 else ""
        return f"{calls}{visible(self.entry)} ({visible(self.tool_name)}){path}\n  rule: {because}" + (
            f"\n  reason: {why}{indented}" if why else indented
        )


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The answer to an approval request."""

    approved: bool
    """Whether the call may run."""
    approve_for_session: bool = False
    """Do not ask again in this session when the same worker makes the same call with the same arguments.
    Those in the request's `ungranted` may differ: approving the reading of a file covers every part of it."""
    note: str | None = None
    """A comment for the caller, which a model that is refused reads."""
    grant: Grant | None = None
    """One of the offers of the request: do not ask again in this session about any call that it covers."""
    arguments: dict[str, Any] | None = None
    """Arguments to run with in place of those of the request. They are validated and judged again."""
    end_run: bool = False
    """Refuse all identical calls that wait, and end the run: the caller gets no chance to go on."""
    all_calls: bool = False
    """Answer all `count` calls of the request alike. Otherwise one is answered, and the next one asks.
    Calls that join later always ask again. A plain callback sees no count, and answers one call."""

    def __post_init__(self) -> None:
        # "no" is true in Python: only a real bool may open a door.
        for flag in ("approved", "approve_for_session", "end_run", "all_calls"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"ApprovalDecision.{flag} must be True or False.")
        if self.end_run and self.approved:
            raise ValueError("ApprovalDecision: an approval cannot end the run. Set approved=False.")
        if not self.approved and (self.arguments is not None or self.grant is not None or self.approve_for_session):
            raise ValueError("ApprovalDecision: a refusal has neither arguments nor a grant. Leave these out.")


ApprovalCallback: TypeAlias = Callable[[str, dict[str, Any], str], ApprovalDecision | Awaitable[ApprovalDecision]]
"""Gets `(tool_name, payload, reason)` and decides. The payload is a copy: changing it changes nothing."""


class Approver(Protocol):
    """An alternative to a callback that sees the whole request, with the rule that asks, the offers and the count.

    An approver that handles one question at a time has the attribute `one_at_a_time = True`. Then each request is made
    after the answer to the one before: it counts the calls that wait then, and is dropped if a grant covers the call.
    """

    def ask(self, request: ApprovalRequest, /) -> ApprovalDecision | Awaitable[ApprovalDecision]:
        """Decide. An exception, and anything but a decision, refuses."""


def approve_all_callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    """Approve every request."""
    return ApprovalDecision(approved=True)


def strict_mode_callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    """Refuse every request."""
    return ApprovalDecision(approved=False, note="strict mode refuses whatever needs an approval")


@dataclass(slots=True, frozen=True, kw_only=True)
class ApprovalOutcome:
    """The record of the decision on one call."""

    approved: bool
    """Whether the call may run."""
    by: Literal["callback", "grant", "rule", "nobody", "error"]
    """A callback, a grant for the session, a rule, `nobody` without a callback, or `error` without a usable answer."""
    note: str | None = None
    """The comment of the person who decided, or the reason of the refusal."""
    rule: str | None = None
    """The rule that allowed, denied or asked; with the file and the line of a rule in a file."""
    grant: str | None = None
    """The grant for the session: the one given with this decision, or, where `by` is "grant", the one used for it."""
    edited: bool = False
    """Whether the call ran with other arguments than those of the request."""
    count: int = 1
    """The number of identical calls that got this answer, this one included."""
    at: float = field(default=0.0, compare=False)
    """When it was decided, in seconds since the epoch."""
