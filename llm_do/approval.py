"""Approvals: who is asked whether a call may run, and what was granted for the session."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import anyio

from .errors import ApprovalDenied, EventLoopError
from .rules import by_default, judge, read_rules
from .trace import ApprovalOutcome
from .values import NoCanonicalForm, canonical, snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The answer of an approval callback."""

    approved: bool
    approve_for_session: bool = False
    """Do not ask again in this session when the same worker makes the same call with the same arguments."""
    note: str | None = None
    """A word to the caller; a model that is refused reads it."""

    def __post_init__(self) -> None:
        # "no" is true in Python: only a real bool may open a door.
        if not isinstance(self.approved, bool) or not isinstance(self.approve_for_session, bool):
            raise TypeError("ApprovalDecision.approved and .approve_for_session must be True or False.")


ApprovalCallback: TypeAlias = Callable[[str, dict[str, Any], str], ApprovalDecision | Awaitable[ApprovalDecision]]
"""Gets `(tool_name, payload, reason)` and decides. The payload is a copy: changing it changes nothing."""


def approve_all_callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    """Say yes to everything that is asked."""
    return ApprovalDecision(approved=True)


def strict_mode_callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
    """Say no to everything that is asked."""
    return ApprovalDecision(approved=False, note="strict mode refuses whatever needs an approval")


class _Question:
    __slots__ = ("answered", "outcome")

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.outcome: ApprovalOutcome | None = None


def _payload(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as somebody is shown them: nothing that they do to them is done to the call."""
    try:
        return deepcopy(arguments)
    except Exception:  # something in them cannot be copied, and stands for itself
        shown: dict[str, Any] = snapshot(arguments)
        return shown


class ApprovalController:
    """Asks the callback, and remembers what was approved for the session. One stands in each runtime."""

    def __init__(
        self, tool_rules: Mapping[str, Any] | None = None, approval_callback: ApprovalCallback | None = None
    ) -> None:
        self.rule_book = read_rules(tool_rules, "the session")
        self.approval_callback = approval_callback
        self._grants: set[Hashable] = set()
        self._questions: dict[Hashable, _Question] = {}

    async def decide(
        self,
        tool_name: str,
        arguments: dict[str, Any],
        reason: str,
        *,
        subject: Hashable,
        shown: dict[str, Any] | None = None,
        on_ask: Callable[[], None] = lambda: None,
    ) -> ApprovalOutcome:
        """Decide one call. `subject` says who calls what: equal names alone never share a grant.

        `shown` is what somebody sees, where that is more than the arguments. `on_ask` is called when somebody
        is really asked.

        Identical calls that arrive while a person is being asked wait for that answer; none runs early.
        """
        try:
            key = (subject, canonical(arguments))
        except NoCanonicalForm:
            return (await self._ask(tool_name, shown or arguments, reason, on_ask))[0]
        while key not in self._grants:
            if (question := self._questions.get(key)) is None:
                return await self._ask_once(key, tool_name, shown or arguments, reason, on_ask)
            await question.answered.wait()
            if question.outcome is not None:
                return question.outcome
        return ApprovalOutcome(approved=True, by="grant")

    async def _ask_once(
        self, key: Hashable, tool_name: str, arguments: dict[str, Any], reason: str, on_ask: Callable[[], None]
    ) -> ApprovalOutcome:
        question = self._questions[key] = _Question()
        try:
            question.outcome, for_session = await self._ask(tool_name, arguments, reason, on_ask)
            if for_session:
                self._grants.add(key)
            return question.outcome
        finally:
            # Whoever asked may have been cancelled: then the next in line finds no outcome, and asks.
            del self._questions[key]
            question.answered.set()

    async def _ask(
        self, tool_name: str, arguments: dict[str, Any], reason: str, on_ask: Callable[[], None]
    ) -> tuple[ApprovalOutcome, bool]:
        """The outcome, and whether it holds for the session."""
        if self.approval_callback is None:
            return ApprovalOutcome(
                approved=False,
                by="nobody",
                note="nobody can be asked: the runtime has no approval_callback",
            ), False
        on_ask()
        try:
            decision = self.approval_callback(tool_name, _payload(arguments), reason)
            if inspect.isawaitable(decision):
                decision = await decision
        except (Exception, asyncio.CancelledError) as exc:  # whatever goes wrong while asking, the answer is no
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            what = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            note = f"the approval callback failed: {what}"
            return ApprovalOutcome(approved=False, by="error", note=note), False
        if not isinstance(decision, ApprovalDecision):
            note = f"the approval callback must return an ApprovalDecision, it returned {decision!r:.80}"
            return ApprovalOutcome(approved=False, by="error", note=note), False
        outcome = ApprovalOutcome(approved=decision.approved, by="callback", note=decision.note)
        return outcome, decision.approved and decision.approve_for_session

    # -- outside a runtime ---------------------------------------------------------------------------

    async def maybe_run_async(self, tool_name: str, payload: dict[str, Any], func: Callable[[], T | Awaitable[T]]) -> T:
        """Run `func` if the rules, or the person they ask, allow `tool_name` with this payload."""
        await self._permit(tool_name, payload)
        result = func()
        return await result if inspect.isawaitable(result) else result

    def maybe_run(self, tool_name: str, payload: dict[str, Any], func: Callable[[], T]) -> T:
        """The same for synchronous code. Where an event loop runs, the callback must be a plain function."""
        permitting = self._permit(tool_name, payload)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(permitting)
            return func()
        if inspect.iscoroutinefunction(self.approval_callback):
            permitting.close()
            raise EventLoopError(
                "The approval callback is async, and an event loop runs: use `await maybe_run_async(...)`."
            )
        try:
            permitting.send(None)
        except StopIteration:
            return func()
        permitting.close()
        raise EventLoopError("Somebody else is being asked, and an event loop runs: use `await maybe_run_async(...)`.")

    async def _permit(self, tool_name: str, payload: dict[str, Any]) -> None:
        ruling = judge(tool_name, session=self.rule_book) or by_default(tool_name)
        if ruling.disposition == "allow":
            return
        outcome = ApprovalOutcome(approved=False, by="rule", note=ruling.because)
        if ruling.disposition == "ask":
            outcome = await self.decide(tool_name, payload, ruling.because, subject=tool_name)
        if not outcome.approved:
            raise ApprovalDenied(f"{tool_name} was refused: {outcome.note or 'no'}.", note=outcome.note)
