"""Decisions on calls: rules judge each call, and a person is asked if they say so."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ..arguments.inputs import OpenParameters
from ..arguments.prompts import add_attachments, attachments_key
from ..errors import (
    ApprovalDenied,
    CallCancelled,
    LlmDoError,
    RunEnded,
    attach_partial_messages,
    mark_restored,
    partial_messages,
    raised_in_nested_call,
)
from ..machine import pool
from ..policy.approvals import Answer, ApprovalController, copy_arguments
from ..policy.grants import Member, Subject
from ..policy.plan import UNPLANNED, Judgement, Plan
from ..policy.requests import ApprovalOutcome, ApprovalRequest
from ..policy.rules import Call, Case, Ruling, default_ruling, judge
from ..values.canonical import NoCanonicalForm, SameObject, canonical
from ..values.snapshots import snapshot
from ..values.texts import safe_repr
from .adapt import rule_name
from .attachments import attach, separate_files, share, shared_cases
from .definition_digest import definition_key, qualified_name_of
from .entry import EntryBase
from .events import ApprovalRequested
from .executor import Executor
from .frame import CallFrame, WorkerFrame
from .recorder import Recorder, tags
from .trace import TraceEntry


class NativeEntry(EntryBase):
    """A tool that a model's provider runs, for the decision whether the model may have it."""

    kind = "native"

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters = OpenParameters(name)


class Gate:
    """Judges the calls of a session, asks where the rules say so, and records the decisions."""

    def __init__(self, approvals: ApprovalController, recorder: Recorder, executor: Executor | None) -> None:
        self.approvals = approvals
        self._executor = executor
        self._recorder = recorder
        self.redaction = recorder.redaction
        self.asking = 0
        """How many calls wait for an answer."""
        self.ended_runs: dict[TraceEntry | CallFrame, tuple[str, str | None]] = {}
        """The error and the note of each run that a person ended, by its top-level call."""

    def is_ended(self, frame: CallFrame) -> bool:
        """Return whether a person ended the run of a call."""
        return bool(self.ended_runs) and _run_of(frame) in self.ended_runs

    def error_of_end(self, frame: CallFrame, exc: BaseException) -> BaseException:
        """Return the error that a call ends with: `RunEnded` for that of a nested call which stopped at the end."""
        is_nested = raised_in_nested_call(exc, frame.record) or frame.depth == 0
        if not (isinstance(exc, CallCancelled) and is_nested and self.is_ended(frame)):
            return exc
        message, note = self.ended_runs[_run_of(frame)]
        ended = RunEnded(message, note=note)
        attach_partial_messages(ended, partial_messages(exc))
        mark_restored(ended, frame.path, frame.record, is_from_nested_call=True)
        return ended

    def check_not_ended(self, frame: CallFrame, answer: Answer | None = None) -> None:
        """Stop a call whose run was ended while it waited, whatever the answer."""
        if self.is_ended(frame) and not (answer is not None and answer.end_run):
            raise CallCancelled(f"{frame.path} stops: the run was ended.")

    def explain(self, frame: CallFrame, arguments: Mapping[str, Any]) -> Ruling:
        """Return the decision about a call, and its rule. Nothing is run, read or asked."""
        arguments, files = separate_files(frame, arguments)
        named = frame.entry.parameters.bind_named(arguments, has_files=bool(files))
        share(frame, files)
        return self.judge(frame, named).ruling

    async def approve(
        self, frame: CallFrame, arguments: dict[str, Any], ctx: Any = None, *, asked_from_within: bool = False
    ) -> dict[str, Any]:
        """Return the approved arguments, which no other code can change, or raise `ApprovalDenied`.

        `ctx` is that of the caller. The entry gets it to check edited arguments.
        """
        plan, call, ruling = frame.judgement = await self._judge(frame, arguments, asked_from_within)
        frame.pins = None
        if ruling.disposition != "ask":
            if ruling.explicit or ruling.disposition == "deny":
                self._enforce(frame, ApprovalOutcome(approved=ruling.disposition == "allow", by="rule"))
            return arguments
        # No other code may change the arguments while a person reads them.
        arguments = snapshot(arguments)
        before = _fingerprint(arguments)
        frame.pins = plan.pins(ruling)
        answer = await self._ask(frame, arguments, frame.judgement)
        outcome = answer.outcome
        try:
            self.check_not_ended(frame, answer)
        except CallCancelled:
            if outcome.approved:
                outcome = replace(outcome, approved=False, by="error", note="it was approved when the run was ended")
            self._recorder.record_approval(frame, replace(outcome, rule=ruling.because), call.cases)
            raise
        if outcome.approved and _fingerprint(arguments) != before:
            outcome = replace(outcome, approved=False, by="error", note="the arguments changed while it was asked")
        if answer.arguments is not None and outcome.approved:
            edited = self._without_attachments(frame, arguments, answer.arguments)
            if edited is None:
                note = "the attachments cannot be edited: approve them as they are, or refuse the call"
                outcome = replace(outcome, approved=False, by="error", note=note)
            else:
                outcome, arguments = await self._judge_edit(ctx, frame, outcome, arguments, edited, asked_from_within)
        self._enforce(frame, outcome, end_run=answer.end_run)
        return arguments

    async def approve_native(self, worker: CallFrame, kind: str) -> None:
        """Let the rules decide on a tool that the model's provider runs, if one of them names it."""
        if not any(kind in book.rules for book in worker.inherited.rules):
            return
        frame = CallFrame(NativeEntry(kind), worker)
        try:
            self._recorder.open(frame, {})
            await self.approve(frame, {})
            self._recorder.close(frame, None)
        except BaseException as exc:
            self._recorder.fail(frame, exc)
            raise

    async def _judge(self, frame: CallFrame, arguments: dict[str, Any], asked_from_within: bool) -> Judgement:
        judge_it = partial(self.judge, frame, arguments, asked_from_within=asked_from_within)
        return await pool.run(judge_it) if frame.entry.plans_in_thread else judge_it()

    def judge(self, frame: CallFrame, arguments: dict[str, Any], *, asked_from_within: bool = False) -> Judgement:
        entry, caller = frame.entry, frame.caller
        name, qualified = rule_name(entry), entry.qualified_name
        default = default_ruling(name)
        if entry.requires_approval or asked_from_within:
            default = Ruling("ask", f"{entry.kind} {(qualified or entry.name)!r} requires approval", explicit=False)
        plan = UNPLANNED
        if entry.plan is not None:
            plan = entry.plan(arguments, frame)
        elif any(name in book.rules or qualified in book.rules for book in caller.inherited.rules):
            plan = Plan(cases=(Case(entry.parameters.vocabulary.facts(arguments)),))
        cases = [*plan.cases, *shared_cases(frame)] if frame.shared_files else plan.cases
        call = call_of(frame, name, cases, qualified)
        worker = caller.worker_entry
        book = worker.rule_book if worker is not None else None
        session, path = self.approvals.rule_book, caller.inherited.rules
        return Judgement(plan, call, judge(call, own=book, session=session, path=path, default=default))

    def refuses(self, frame: CallFrame, arguments: dict[str, Any]) -> bool:
        return bool(frame.caller.inherited.rules) and self.judge(frame, arguments).ruling.disposition == "deny"

    async def _ask(self, frame: CallFrame, arguments: dict[str, Any], judgement: Judgement) -> Answer:
        entry, (plan, call, ruling) = frame.entry, judgement
        all_arguments = add_attachments(arguments, frame.attachments)
        view = plan.view(ruling, frame.pins)
        visible = self.redaction.visible_arguments(frame, all_arguments if view is None else view)
        why = f" ({ruling.reason})" if ruling.reason else ""
        request = ApprovalRequest(
            tool_name=call.name,
            payload=copy_arguments(visible),
            arguments=copy_arguments(self.redaction.visible_arguments(frame, arguments)),
            reason=f"{ruling.because}{why}; call path: {frame.path}",
            entry=entry.name,
            worker=call.caller,
            call_path=frame.path,
            ruling=ruling,
            offers=tuple(plan.offers(ruling)),
            before=frame.pins.before() if frame.pins is not None else {},
            ungranted=tuple(plan.ungranted),
            key=frame.recorded.key,
            files=frame.pins.digests if frame.pins is not None else {},
        )
        request = self.redaction.question(request)

        def on_ask(question: ApprovalRequest) -> None:
            self.check_not_ended(frame)
            if self._recorder.observed:
                fields = {"arguments": snapshot(visible), "reason": question.reason, "count": question.count}
                self._recorder.stream.emit(ApprovalRequested, tags(frame), **fields)

        subject = self._subject(frame, ruling)
        # Equal questions are about the same files.
        files = None if frame.pins is None else canonical(frame.pins.digests)
        self.asking += 1
        try:
            with frame.stop_clocks():
                ask = partial(
                    self.approvals.decide, request, all_arguments, call, subject=subject, evidence=files, on_ask=on_ask
                )
                if self._executor is None or not frame.replayable:
                    return await ask()
                return await self._executor.decide(request, ask)
        finally:
            self.asking -= 1

    async def _judge_edit(
        self,
        ctx: Any,
        frame: CallFrame,
        outcome: ApprovalOutcome,
        original: dict[str, Any],
        edited: dict[str, Any],
        from_within: bool,
    ) -> tuple[ApprovalOutcome, dict[str, Any]]:
        """Validate and judge the arguments that a person has edited, and thereby approved."""
        entry = frame.entry
        try:
            parameters = entry.parameters
            restored, unchanged = self.redaction.restore_secrets(frame, original, edited)
            arguments = parameters.bind_named(
                parameters.vocabulary.as_schema_says(restored), by_name=True, has_files=bool(frame.attachments)
            )
            # Unchanged arguments are not validated again. A validator may change its own result.
            arguments.update((name, original[name]) for name in unchanged)
            if entry.check_arguments is not None:
                await entry.check_arguments(arguments, ctx)
            if isinstance(frame, WorkerFrame) and entry.attachment_policy is not None:
                self._attach_again(frame, arguments)
            judgement = await self._judge(frame, arguments, from_within)
            pins = judgement.plan.pins(judgement.ruling)
            frame.pins = pins if pins is None or frame.pins is None else frame.pins.updated(pins)
        except LlmDoError as exc:
            return replace(outcome, approved=False, by="error", note=f"the edited arguments: {exc}"), edited
        frame.judgement = judgement
        self._recorder.rewrite(frame, arguments)
        return replace(outcome, approved=judgement.ruling.disposition != "deny", edited=True), arguments

    def _without_attachments(
        self, frame: CallFrame, original: dict[str, Any], edited: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return edited arguments without the files that were shown with them; `None` if those were edited, too.

        The files cannot be edited: a person who removes one from the list must not believe that it is not sent.
        """
        key = attachments_key(original)
        if not frame.attachments or key not in edited:
            return edited
        if edited[key] != self.redaction.visible_arguments(frame, add_attachments(original, frame.attachments))[key]:
            return None
        return {name: value for name, value in edited.items() if name != key}

    def _attach_again(self, frame: WorkerFrame, arguments: dict[str, Any]) -> None:
        handed, shared = frame.caller_files, frame.shared_files
        frame.attachments, frame.caller_files, frame.prompt, frame.input_error = (), (), None, None
        attach(frame, arguments, handed, self)
        frame.shared_files = {**shared, **frame.shared_files}
        if frame.input_error is not None:
            raise frame.input_error

    def _subject(self, frame: CallFrame, ruling: Ruling) -> Subject:
        entry, worker = frame.entry, frame.caller.worker_entry
        return Subject(
            worker=None if worker is None else self._member(worker),
            entry=self._member(entry),
            rule=_rule_text(ruling),
            # A grant for some generated workers on the path does not hold for others.
            generated=tuple(self._member(call.entry) for call in frame.chain if call.entry.generated),
            files=canonical(frame.pins.digests) if frame.pins is not None and frame.pins.exact else None,
            # The arguments of a delegation name a worker. In another session this may be another one.
            are_arguments_storable=entry.secret_fields is None,
        )

    def _member(self, entry: EntryBase) -> Member:
        identity = SameObject(entry) if entry.identity is None else entry.identity
        redact = self._recorder.secrets.redact
        return Member(identity, qualified_name_of(entry), lambda: definition_key(identity), redact)

    def _enforce(self, frame: CallFrame, outcome: ApprovalOutcome, *, end_run: bool = False) -> None:
        """Record how a call was decided, and raise if it was refused."""
        assert frame.judgement is not None
        _, call, ruling = frame.judgement
        outcome = self._recorder.record_approval(frame, replace(outcome, rule=ruling.because), call.cases)
        frame.approved = outcome.approved
        if outcome.approved:
            return
        note = outcome.note
        if outcome.by == "rule" or (outcome.by == "callback" and outcome.edited):
            note = f"{ruling.because} ({ruling.reason})" if ruling.reason else ruling.because
        message = f"{frame.path} was refused{f': {note}' if note else ''}."
        if not end_run:
            raise ApprovalDenied(message, note=note)
        # After this, neither code that catches it nor concurrent calls of the run can make calls.
        ended = self.ended_runs[_run_of(frame)] = f"{message} The run was ended.", note
        raise RunEnded(ended[0], note=note)


def _run_of(frame: CallFrame) -> TraceEntry | CallFrame:
    """Return the record of the top-level call of a run, or its frame while toolsets open before a first turn."""
    return frame.top.record or frame.top


def _rule_text(ruling: Ruling) -> str:
    """Return the rule of a grant. Another rule decides whether a command leaves the sandbox, so the text says this."""
    rule = ruling.because if ruling.rule is None else repr(ruling.rule)
    return f"{rule}, outside of the sandbox" if ruling.unsandboxed else rule


def call_of(frame: CallFrame, name: str, cases: Sequence[Case] = (Case(),), qualified: str | None = None) -> Call:
    """Return a call as rules see it."""
    caller = frame.caller
    worker = caller.worker_entry
    creators = worker.creators if worker is not None else ()
    called_by = worker.name if worker is not None else None
    return Call(name, cases, called_by, caller.names, creators, caller.inherited.generated, qualified)


def _fingerprint(arguments: dict[str, Any]) -> Hashable:
    with suppress(NoCanonicalForm):
        return canonical(arguments)
    return safe_repr(arguments)
