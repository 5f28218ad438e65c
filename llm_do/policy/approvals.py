"""Ask whether calls may run, and remember what was granted for the session."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import anyio

from ..errors import ApprovalDenied, EventLoopError
from ..values.canonical import NoCanonicalForm, canonical
from ..values.snapshots import snapshot
from ..values.texts import quote, text_of
from .grants import SessionGrants, StoredGrant
from .requests import ApprovalCallback, ApprovalDecision, ApprovalOutcome, ApprovalRequest, Approver
from .rules import Call, Case, RuleBook, judge, read_rules

T = TypeVar("T")

_QUIET_TURNS = 3  # of the event loop, without another identical call: then the waiting calls are counted
_MOST_TURNS = 1_000  # then they are counted in any case


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision on one call, and what follows from it."""

    outcome: ApprovalOutcome
    arguments: dict[str, Any] | None = None
    """The arguments to run with, if they differ from those of the request."""
    end_run: bool = False


class _Place:
    """The place of one call in a line."""

    __slots__ = ("_event", "answer")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self.answer: Answer | None = None

    async def wait(self) -> None:
        """Wait for an answer, a grant, or the first place."""
        await self._event.wait()
        self._event = anyio.Event()

    def wake(self) -> None:
        self._event.set()


_Line: TypeAlias = list[_Place]
"""Identical calls that wait for an answer, in the order in which they came. The first one asks."""


async def _settle(line: _Line) -> None:
    """Wait until parallel calls have joined: those of one response start in one turn, and take equally many turns."""
    quiet = 0
    for _ in range(_MOST_TURNS):
        before = len(line)
        await asyncio.sleep(0)
        quiet = quiet + 1 if len(line) == before else 0
        if quiet == _QUIET_TURNS:
            return


def copy_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a copy that an approver may change without changing the call."""
    try:
        return deepcopy(arguments)
    except Exception:  # something in them cannot be copied, and is shared
        copied: dict[str, Any] = snapshot(arguments)
        return copied


def _refuse(by: Literal["nobody", "error"], note: str) -> tuple[ApprovalDecision, ApprovalOutcome]:
    return ApprovalDecision(approved=False), ApprovalOutcome(approved=False, by=by, note=note)


class ApprovalController:
    """Asks, and remembers what was approved for the session. Each runtime has one."""

    def __init__(
        self,
        tool_rules: Mapping[str, Any] | RuleBook | None = None,
        approval_callback: ApprovalCallback | Approver | None = None,
    ) -> None:
        self.rule_book = read_rules(tool_rules, "the session")
        self.approval_callback = approval_callback
        self._grants = SessionGrants()
        self._lines: dict[Hashable, _Line] = {}
        self._turn = anyio.Lock(fast_acquire=True)  # held while an approver with `one_at_a_time` has a question

    def stored_grants(self) -> list[StoredGrant]:
        """Return the grants of the session that another one can restore: see `StoredGrant`.

        Store them anew after each question: a second object with an equal definition takes grants away.
        """
        return self._grants.stored()

    def restore_grants(self, grants: Iterable[Any]) -> None:
        """Let stored grants hold in this session too: `StoredGrant` objects, or what JSON made of them.

        Raises `ValueError` for anything else. One that fits no question is without effect.
        """
        self._grants.restore(grants)

    async def decide(
        self,
        request: ApprovalRequest,
        arguments: dict[str, Any],
        call: Call,
        *,
        subject: Hashable,
        evidence: Hashable = None,
        on_ask: Callable[[ApprovalRequest], None] = lambda request: None,
        settle: bool = True,
    ) -> Answer:
        """Decide one call. Identical calls wait: the first one asks, and none runs before an answer covers it.

        `subject` identifies the caller and the tool: equal names alone never share a grant. `evidence` is anything else
        that the approver sees: calls that differ in it ask one by one, and share a grant. `on_ask` gets the
        request right before the approver does. `settle` lets calls that are under way join the line before they are
        counted, which takes a few turns of the event loop.
        """
        try:
            same: Hashable = (subject, canonical(arguments))
            key = canonical({name: value for name, value in arguments.items() if name not in request.ungranted})
        except NoCanonicalForm:
            key = same = None  # identical to no other call
        if (answer := self._find_grant(key, subject, call)) is not None:
            return answer
        self._grants.begin_question(subject, key, request.session_grant, request.offers)
        place_of = (same, evidence)
        place = _Place()
        line = [] if same is None else self._lines.setdefault(place_of, [])
        line.append(place)
        try:
            while place.answer is None:
                if (answer := self._find_grant(key, subject, call)) is not None:
                    return answer
                if line[0] is not place:
                    await place.wait()
                    continue
                async with self._in_turn():
                    if settle and self._shows_count:
                        await _settle(line)
                    if self._find_grant(key, subject, call) is None:
                        await self._ask_first(line, key, subject, request, on_ask)
            return place.answer
        finally:
            line.remove(place)
            if line:
                line[0].wake()
            else:
                self._lines.pop(place_of, None)

    async def confirm(self, request: ApprovalRequest) -> bool:
        """Ask a yes-or-no `question` that is about no call."""
        async with self._in_turn():
            decision, outcome = await self._ask(request, lambda request: None)
        return outcome.approved and decision.arguments is None

    def _in_turn(self) -> AbstractAsyncContextManager[Any]:
        return self._turn if getattr(self.approval_callback, "one_at_a_time", False) else nullcontext()

    def _find_grant(self, key: Hashable, subject: Hashable, call: Call) -> Answer | None:
        grant = self._grants.find(subject, key, call)
        return None if grant is None else Answer(ApprovalOutcome(approved=True, by="grant", grant=grant))

    @property
    def _shows_count(self) -> bool:
        return callable(getattr(self.approval_callback, "ask", None))

    async def _ask_first(
        self,
        line: _Line,
        key: Hashable,
        subject: Hashable,
        request: ApprovalRequest,
        on_ask: Callable[[ApprovalRequest], None],
    ) -> None:
        """Ask for the first call of a line, and answer all calls that the decision covers."""
        waiting = line[:] if self._shows_count else line[:1]
        decision, outcome = await self._ask(replace(request, count=len(waiting)), on_ask)
        if decision.arguments is None:  # edited arguments were not approved as they were asked for
            if decision.grant is not None:
                self._grants.add_offer(subject, decision.grant)
            if decision.approve_for_session and key is not None:
                self._grants.add_exact(subject, key, request.session_grant)
                outcome = replace(outcome, grant=outcome.grant or request.session_grant)
        is_for_all = decision.all_calls or decision.end_run
        outcome = replace(outcome, count=len(waiting) if is_for_all else 1)
        answered = line if decision.end_run else waiting if is_for_all else waiting[:1]
        still_here = set(line)
        for place in answered:
            if place in still_here:
                arguments = None if decision.arguments is None else copy_arguments(decision.arguments)
                place.answer = Answer(outcome, arguments, decision.end_run)
                place.wake()
        if decision.grant is not None or decision.approve_for_session:
            for place in line:
                place.wake()

    async def _ask(
        self, request: ApprovalRequest, on_ask: Callable[[ApprovalRequest], None]
    ) -> tuple[ApprovalDecision, ApprovalOutcome]:
        callback: Any = self.approval_callback
        if callback is None:
            return _refuse("nobody", "nobody can be asked: there is no approval_callback, and no terminal")
        on_ask(request)
        try:
            if callable(ask := getattr(callback, "ask", None)):
                decision = ask(request)
            else:
                decision = callback(request.tool_name, request.payload, request.reason)
            if inspect.isawaitable(decision):
                decision = await decision
        except (Exception, asyncio.CancelledError) as exc:  # a question that fails is answered with a refusal
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            problem = f"{type(exc).__name__}: {text}" if (text := text_of(exc)) else type(exc).__name__
            return _refuse("error", f"the approval callback failed: {problem}")
        if not isinstance(decision, ApprovalDecision):
            return _refuse("error", f"the approval callback must return an ApprovalDecision, got {quote(decision)}")
        if decision.grant is not None and not any(decision.grant is offer for offer in request.offers):
            return _refuse("error", "the approval callback granted what was not offered")
        grant = decision.grant.text if decision.grant is not None and decision.arguments is None else None
        return decision, ApprovalOutcome(approved=decision.approved, by="callback", note=decision.note, grant=grant)

    # -- outside a runtime ---------------------------------------------------------------------------

    async def maybe_run_async(self, tool_name: str, payload: dict[str, Any], func: Callable[[], T | Awaitable[T]]) -> T:
        """Run `func` if the rules, or the person they ask, allow `tool_name` with this payload."""
        await self._permit(tool_name, payload)
        result = func()
        return await result if inspect.isawaitable(result) else result

    def maybe_run(self, tool_name: str, payload: dict[str, Any], func: Callable[[], T]) -> T:
        """Run `func` in the same way from synchronous code. In an event loop, the callback must be a plain function."""
        permitting = self._permit(tool_name, payload, settle=False)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(permitting)
            return func()
        asking = getattr(self.approval_callback, "ask", self.approval_callback)
        if inspect.iscoroutinefunction(asking):
            permitting.close()
            raise EventLoopError(
                "The approval callback is async, and an event loop runs: use `await maybe_run_async(...)`."
            )
        try:
            permitting.send(None)
        except StopIteration:
            return func()
        permitting.close()
        raise EventLoopError("Another approval is pending, and an event loop runs: use `await maybe_run_async(...)`.")

    async def _permit(self, tool_name: str, payload: dict[str, Any], *, settle: bool = True) -> None:
        facts = payload if self.rule_book is None else self.rule_book.locate_paths(tool_name, payload)
        call = Call(tool_name, (Case(facts),))
        ruling = judge(call, session=self.rule_book)
        if ruling.disposition == "allow":
            return
        outcome = ApprovalOutcome(approved=False, by="rule", note=ruling.because)
        if ruling.disposition == "ask":
            request = ApprovalRequest(
                tool_name=tool_name,
                payload=copy_arguments(payload),
                reason=ruling.because,
                entry=tool_name,
                ruling=ruling,
            )
            answer = await self.decide(request, payload, call, subject=tool_name, settle=settle)
            outcome = answer.outcome
            if answer.arguments is not None:
                # `func` has its arguments already.
                outcome = ApprovalOutcome(approved=False, by="error", note="the arguments cannot be edited here")
        if not outcome.approved:
            raise ApprovalDenied(f"{tool_name} was refused: {outcome.note or 'no'}.", note=outcome.note)
