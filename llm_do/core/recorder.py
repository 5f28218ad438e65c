"""The record of a session: one function writes each fact to the trace and to the stream of events, without secrets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from time import perf_counter, time
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.tools import ToolDenied

from ..errors import ApprovalDenied, RunEnded, note_path, raised_in_nested_call
from ..policy.requests import ApprovalOutcome
from ..policy.rules import Case
from ..privacy.secrets import Secrets
from ..values.canonical import digest
from ..values.snapshots import ATOMS, snapshot
from ..values.texts import text_of
from .definition_digest import definition_digest
from .entry import Entry
from .events import (
    ApprovalDecided,
    CallClosed,
    CallOpened,
    CallRejected,
    CallStarted,
    MessageLogged,
    Notice,
    RequestEnded,
    ScopeClosed,
    ScopeOpened,
)
from .frame import CallFrame, RequestFrame, WorkerFrame
from .keys import comparable_messages, key_of_call, key_of_scope
from .redaction import Redaction
from .stream import EventStream
from .trace import BoundedTrace, CallState, MessageLog, ModelUsage, Trace, TraceEntry

logger = logging.getLogger("llm_do")

_MAY_HOLD_SECRETS = ("input_data", "output_data", "error", "approval", "attachments", "failure")
THREAD_DROPPED = "its thread cannot be stopped, and its result is dropped"


class Recorder:
    """Writes what happens to the trace, the message log and the stream of events, without secrets."""

    def __init__(
        self,
        stream: EventStream,
        secrets: Secrets,
        entries: Mapping[str, Entry[Any]],
        max_records: int | None,
        *,
        keeps_keys: bool,
    ) -> None:
        self.trace = Trace() if max_records is None else BoundedTrace(max_records)
        self.messages = MessageLog(max_records)
        self.secrets = secrets
        self.stream = stream
        self.observed = stream.observed
        self.keeps_keys = keeps_keys or self.observed
        """Whether each call gets its key when it is opened."""
        self.redaction = Redaction(secrets, entries)
        self._searched_for = secrets.version
        self._noticed: set[str] = set()
        self._ids = count(1)

    # -- calls -------------------------------------------------------------------------------------

    def open(self, frame: CallFrame, arguments: dict[str, Any]) -> TraceEntry:
        entry, parent = frame.entry, frame.caller.record
        visible = frame.original_arguments = snapshot(arguments)
        if entry.secret_fields is not None or self.secrets.active:
            visible = self.secrets.arguments(visible, self.redaction.secret_fields(entry.secret_fields, visible))
        record = frame.record = TraceEntry(
            next(self._ids), None if parent is None else parent.id, entry.name, entry.kind, frame.depth, visible, time()
        )
        if frame.attachments:
            self._write(record, attachments=snapshot(frame.attachments))
        frame.made_at = perf_counter()
        self.trace.append(record)
        if self.keeps_keys or entry.repeat == "keyed":
            record.key = self.key_of(frame)
        if self.observed:
            self.stream.emit(
                CallOpened,
                tags(frame),
                at=record.started_at,
                kind=record.kind,
                arguments=snapshot(visible),
                attachments=snapshot(record.attachments) if record.attachments else (),
                asked_by="python" if frame.tool_call_id is None else "model",
                tool_call_id=frame.tool_call_id,
                scope=frame.scope_key,
                replayable=frame.replayable,
            )
        return record

    def key_of(self, frame: CallFrame) -> str:
        """Return the key of a call. It is made, with the keys of the calls above, when it is first needed."""
        if frame.key is None:
            if frame.caller.key is None:
                self.key_of(frame.caller)
            # Without what is known as secret before the run: declared fields, and configured values.
            content = frame.original_arguments
            if frame.entry.secret_fields is not None:
                content = self.redaction.without_declared(frame, content)
            if frame.attachments or frame.history_digest:
                content = [content, *frame.attachments, frame.history_digest]
            frame.digest, is_exact = self._digest(content)
            if not (is_exact and frame.caller.replayable):
                frame.replayable = False
            frame.key = key_of_call(frame)
        return frame.key

    def give_key(self, frame: CallFrame, arguments: dict[str, Any], branches: str) -> None:
        """Give a call its key before its record is opened."""
        frame.branch, frame.original_arguments = branches, snapshot(arguments)
        self.key_of(frame)

    def note_history(self, frame: WorkerFrame) -> None:
        """Make the messages that a worker begins with a part of its key."""
        if frame.messages:
            frame.history_digest, is_exact = self._digest(comparable_messages(frame.messages))
            frame.replayable = frame.replayable and is_exact

    def _digest(self, value: Any) -> tuple[str, bool]:
        """Return a digest of a value without configured secrets, and whether no other value has the same."""
        configured = self.secrets.configured
        return digest(value, None if configured is None else configured.redact)

    def reject(self, caller: CallFrame, name: str, arguments: Any, error: str, tool_call_id: str | None = None) -> None:
        """Emit that a call cannot be made. Such a call has no record in the trace."""
        if self.observed:
            where = _tags_below(caller, self.secrets.redact(name), self.key_of(caller))
            given = snapshot(arguments)
            self.stream.emit(CallRejected, where, arguments=given, error=error, tool_call_id=tool_call_id)

    def start(self, frame: CallFrame) -> None:
        """Emit that the entry of a call begins to run. Call this only if anything listens."""
        record = frame.recorded
        fields = {"arguments": snapshot(record.input_data), "model": record.model}
        self.stream.emit(CallStarted, tags(frame), **fields, definition=definition_digest(frame.entry).text)

    def record_approval(
        self, frame: CallFrame, outcome: ApprovalOutcome, cases: Sequence[Case] = ()
    ) -> ApprovalOutcome:
        record = frame.recorded
        outcome = record.approval = self.secrets.redact(replace(outcome, at=time()))
        if self.observed:
            fields: dict[str, Any] = {"outcome": outcome, "cases": self.redaction.visible_cases(frame, cases)}
            if outcome.edited:
                fields["arguments"] = snapshot(record.input_data)
                fields["attachments"] = snapshot(record.attachments)
            self.stream.emit(ApprovalDecided, tags(frame), **fields)
        return outcome

    def rewrite(self, frame: CallFrame, arguments: dict[str, Any]) -> None:
        """Record the arguments and files that replace those with which the call was made."""
        self.key_of(frame)  # an edit does not change it
        frame.original_arguments = snapshot(arguments)
        visible = self.redaction.visible_arguments(frame, frame.original_arguments)
        self._write(frame.recorded, input_data=visible, attachments=snapshot(frame.attachments))

    def close(
        self,
        frame: CallFrame,
        output: Any,
        state: CallState = "ok",
        error: str | None = None,
        error_type: str | None = None,
    ) -> None:
        record = frame.record
        if record is None:  # it could not even be opened
            return
        if type(output) not in ATOMS:
            output = snapshot(output)
            # Not `isinstance`: an output may lie about its class, or raise when it is asked for it.
            if issubclass(type(output), ToolDenied) and frame.failure is None:
                frame.failure = f"denied: {output.message}"
        duration, waited = perf_counter() - frame.made_at, 0.0
        if frame.asked_at:
            waited = frame.seconds_waited()
            duration = max(0.0, duration - waited)
        self.trace.close(record)
        failure = frame.failure
        if self.secrets.active:
            output, error, failure = self.secrets.redact((output, error, failure))
        record.close(state, duration, output, error, failure, error_type, waited)
        if self.observed:
            restored, frame.restored_usage = frame.restored_usage, None  # emitted once, even if the journal fails
            self._emit_closed(tags(frame), record, restored)

    def fail(self, frame: CallFrame, exc: BaseException) -> None:
        """Close the record of a call that did not return."""
        with self.keep_error(exc):
            record = frame.record
            refused = isinstance(exc, ApprovalDenied | RunEnded) and not raised_in_nested_call(exc, record)
            is_own = record is not None and record.approval is None and frame.restored_usage is None
            if refused and is_own:  # by the entry's own code, in this run
                self.record_approval(frame, ApprovalOutcome(approved=False, by="rule", note=str(exc)))
            note_path(exc, frame.path, record, None if frame.parent is None else frame.parent.record)
            error_type = type(exc).__name__
            if isinstance(exc, asyncio.CancelledError):
                frame.cancelled = True
                if frame.deadline is not None and frame.deadline.expired and frame.deadline.interrupted is None:
                    frame.deadline.interrupted = f"{frame.path}{frame.waits_for}"
                state: CallState = "dropped" if frame.thread_dropped else "cancelled"
                error = f"cancelled; {THREAD_DROPPED}" if frame.thread_dropped else "cancelled"
            else:
                state = "refused" if refused else "dropped" if frame.thread_dropped else "failed"
                error = f"{error_type}: {text_of(exc)}"
            self.close(frame, None, state, error, error_type)

    @contextmanager
    def keep_error(self, exc: BaseException) -> Iterator[None]:
        """Keep an error while it is recorded: a failure of the journal is noted on it, and does not replace it."""
        try:
            yield
        except Exception as failure:
            if failure is not exc:
                exc.add_note(f"It could not be recorded: {type(failure).__name__}: {text_of(failure)}")

    def _write(self, record: TraceEntry, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(record, name, self.secrets.redact(value))

    def _emit_closed(
        self, where: dict[str, Any], record: TraceEntry, restored: Sequence[ModelUsage] | None = None
    ) -> None:
        usage = record.usage
        self.stream.emit(
            CallClosed,
            where,
            kind=record.kind,
            output=snapshot(record.output_data),
            error=record.error,
            error_type=record.error_type,
            state=record.state,
            duration=record.duration,
            waited=record.waited,
            usage=usage,
            cost=None if usage is None else usage.cost,
            requests=snapshot(tuple(record.requests)),
            failure=record.failure,
            cut_off=record.cut_off,
            restored=restored is not None,
            spent=snapshot(restored or ()),
        )

    def restore_usage(self, frame: CallFrame, spent: Sequence[ModelUsage]) -> None:
        """Record that the answer of a call is from an earlier run, and what it used there."""
        frame.restored_usage = tuple(spent)
        frame.recorded.add_requests(spent, None)

    def add_whole(
        self, frame: CallFrame, name: str, kind: str, arguments: Any, *, output: Any = None, error: str | None = None
    ) -> None:
        """Record something below a call that is known only when it is over: a tool of a provider, or a server."""
        record = TraceEntry(next(self._ids), frame.call_id, name, kind, frame.depth + 1, None, time())
        record.close("ok" if error is None else "failed")
        self._write(record, input_data=arguments, output_data=output, error=error)
        self.trace.append(record)
        self.trace.close(record)
        if self.observed:
            where = {**tags(frame), "call_id": record.id, "parent_id": frame.call_id, "name": name, "key": None}
            where["depth"] = record.depth
            fields = {"arguments": snapshot(record.input_data), "asked_by": "model" if kind == "native" else "python"}
            self.stream.emit(CallOpened, where, at=record.started_at, kind=kind, **fields)
            self._emit_closed(where, record)

    # -- scopes ------------------------------------------------------------------------------------

    def open_scope(self, frame: WorkerFrame) -> None:
        """Record once that a conversation begins, and give it its key."""
        if frame.scope_key is None and self.keeps_keys:
            self.key_of(frame.caller)
            frame.scope_key = key_of_scope(frame)
            if self.observed:
                where = _tags_below(frame.caller, frame.entry.name, frame.scope_key)
                history = self.redaction.visible_messages(frame, frame.conversation.messages, unknown_tools=True)
                self.stream.emit(ScopeOpened, where, history=snapshot(history))

    def close_scope(self, frame: WorkerFrame) -> None:
        """Record once that a conversation is over."""
        if frame.scope_key is not None and not frame.conversation.is_closed and self.observed:
            frame.conversation.is_closed = True
            self.stream.emit(ScopeClosed, _tags_below(frame.caller, frame.entry.name, frame.scope_key))

    # -- requests and messages ---------------------------------------------------------------------

    def finish_request(
        self, frame: CallFrame, spent: Sequence[ModelUsage], cut_off: str | None = None, **fields: Any
    ) -> None:
        """Record the usage and the outcome of a request."""
        frame.recorded.add_requests(spent, cut_off)
        if self.observed:
            self.stream.emit(RequestEnded, tags(frame), spent=snapshot(tuple(spent)), cut_off=cut_off, **fields)

    def log_message(self, frame: RequestFrame, message: ModelMessage) -> None:
        """Log a message; of a request, only the parts that the one before it did not have."""
        if isinstance(message, ModelRequest):
            # PydanticAI merges the end of one turn with the prompt of the next.
            before, frame.conversation.logged_parts = frame.conversation.logged_parts, list(message.parts)
            new = [part for part in message.parts if not any(part is other for other in before)]
            if message.parts and not new:
                return
            if len(new) < len(message.parts):
                message = replace(message, parts=new)
        message = self.secrets.redact(self.redaction.visible_message(frame, message))
        self.messages.add(message)
        if self.observed:
            self.stream.emit(MessageLogged, tags(frame), message=snapshot(message))

    def log_rest(self, frame: RequestFrame, messages: Sequence[ModelMessage]) -> None:
        """Log the messages after the last response, which were not sent to a model."""
        for message in messages_after_last_response(messages):
            self.log_message(frame, message)

    def notice(self, frame: CallFrame, text: str) -> None:
        """Send a notice once: to the sinks, or to the log if there are no sinks or the call has no record."""
        if text in self._noticed:
            return
        self._noticed.add(text)
        if self.observed and frame.record is not None:
            self.stream.emit(Notice, tags(frame), text=text)
        else:
            logger.warning("%s: %s", frame.path, self.secrets.redact(text))

    # -- reading -----------------------------------------------------------------------------------

    def read_trace(self) -> Trace:
        """Return the records, without values that became known as secrets after they were written."""
        self._search_again()
        return self.trace

    def read_messages(self) -> MessageLog:
        """Return the message log, without them too."""
        self.messages.trim()
        self._search_again()
        return self.messages

    def _search_again(self) -> None:
        if self._searched_for == self.secrets.version:
            return
        self._searched_for = self.secrets.version
        for record in self.trace:
            self._write(record, **{name: getattr(record, name) for name in _MAY_HOLD_SECRETS})
        self.messages[:] = self.secrets.redact(list(self.messages))


def tags(frame: CallFrame) -> dict[str, Any]:
    """Return the fields of an event that say to which call it belongs."""
    if frame.tags is None:
        record = frame.recorded
        frame.tags = _tags_below(frame, record.name, record.key)
    return frame.tags


def _tags_below(frame: CallFrame, name: str, key: str | None) -> dict[str, Any]:
    """Return the fields of an event about something below `frame` that is not a call with a record."""
    worker = frame.worker_entry
    return {
        "key": key,
        "call_id": frame.call_id,
        "parent_id": None if frame.record is None else frame.record.parent_id,
        "name": name,
        "worker": worker.name if worker is not None else None,
        "depth": frame.depth,
    }


def messages_after_last_response(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the requests after the last response, which have results of tools and were not sent to a model."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ModelRequest):
        end -= 1
    return messages[end:]
