"""The memory of a session: the record of each call, the message log, and those who are told."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from time import perf_counter, time
from typing import Any

from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.tools import ToolDefinition, ToolDenied

from ..errors import ApprovalDenied, ArgumentError, note_path, raised_in_nested_call
from ..policy.requests import ApprovalOutcome
from ..privacy.secret_fields import DELEGATED, HIDDEN, SecretFields, delegated_secret_fields
from ..privacy.secrets import Secrets
from ..values.canonical import is_same
from ..values.snapshots import ATOMS, snapshot
from ..values.texts import safe_repr, text_of
from .entry import Entry, EntryBase, MessageCallback, Sink
from .events import CallClosed, CallOpened, Event, MessageLogged, Notice
from .frame import CallFrame
from .trace import BoundedTrace, MessageLog, Trace, TraceEntry

logger = logging.getLogger("llm_do")

THREAD_DROPPED = "its thread cannot be stopped, and its result is dropped"


class Recorder:
    """Writes down what happens, when it happens, and no secrets."""

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        message_callback: MessageCallback | None = None,
        journal: Sink | None = None,
        secrets: Secrets | None = None,
        entries: Mapping[str, Entry[Any]] | None = None,
        max_records: int | None = None,
    ) -> None:
        self.trace = Trace() if max_records is None else BoundedTrace(max_records)
        self._is_bounded = max_records is not None
        self.messages = MessageLog(max_records)
        self.secrets = secrets or Secrets()
        self._entries: Mapping[str, Entry[Any]] = {} if entries is None else entries
        self._searched_for = self.secrets.version
        self._sinks = (*sinks, *([] if message_callback is None else [_FunctionSink(message_callback)]))
        self._journal = journal
        self.observed = bool(self._sinks) or journal is not None
        """Whether anybody is told. Events are made only then."""
        self._broken_sinks: list[Sink] = []
        self._noticed: set[str] = set()
        self._ids = count(1)

    def open(self, frame: CallFrame, arguments: dict[str, Any]) -> TraceEntry:
        entry, parent = frame.called, frame.caller.record
        shown = snapshot(arguments)
        secret_fields = entry.secret_fields
        if secret_fields is not None or self.secrets.active:
            frame.hidden = shown
            shown = self.secrets.arguments(shown, self._meant(secret_fields, shown))
        record = TraceEntry(
            next(self._ids),
            None if parent is None else parent.id,
            entry.name,
            entry.kind,
            frame.depth,
            shown,
            time(),
        )
        if frame.attachments:
            record.attachments = self.secrets.redact(snapshot(frame.attachments))
        frame.record = record
        frame.clock = perf_counter()
        self.trace.append(record)
        if self.observed:
            arguments, attachments = snapshot(record.input_data), snapshot(record.attachments)
            self.emit(CallOpened(**tags(frame), kind=record.kind, arguments=arguments, attachments=attachments))
        return record

    def arguments_shown(self, frame: CallFrame, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, or what stands for them, as they may be written down and shown."""
        secret_fields = self._meant(frame.called.secret_fields, arguments)
        return (
            arguments
            if secret_fields is None and not self.secrets.active
            else self.secrets.arguments(arguments, secret_fields)
        )

    def _meant(self, secret_fields: SecretFields | None, arguments: Any) -> SecretFields | None:
        """The marks that hold for these very arguments: a delegation has those of the worker that it names."""
        if secret_fields is not DELEGATED:
            return secret_fields
        with suppress(Exception):  # whatever is wrong with that worker, it is said when it is called
            entry = self._entries[arguments["worker"]]
            return delegated_secret_fields(entry.parameters.json_schema) if isinstance(entry, EntryBase) else None
        return None

    def arguments_edited(
        self, frame: CallFrame, given: dict[str, Any], edited: dict[str, Any]
    ) -> tuple[dict[str, Any], set[str]]:
        """Return the arguments that a person means who saw `given` without secrets, and the names of those left alone.

        What they left alone is as it was, with its secrets.
        """
        shown = self.arguments_shown(frame, given)
        kept = {name for name in edited.keys() & shown.keys() if is_same(edited[name], shown[name])}
        for name in (edited.keys() & shown.keys()) - kept:
            if all(HIDDEN[:-1] in safe_repr(value) for value in (shown[name], edited[name])):
                raise ArgumentError(f"{name!r} has a secret that is not shown: leave it alone, or replace all of it.")
        return {name: given[name] if name in kept else value for name, value in edited.items()}, kept

    def rewrite(self, frame: CallFrame, arguments: dict[str, Any]) -> None:
        """Record other arguments for a call than those it was made with, and the files that go with these."""
        assert frame.record is not None
        frame.hidden = snapshot(arguments)
        frame.record.input_data = self.arguments_shown(frame, frame.hidden)
        frame.record.attachments = self.secrets.redact(snapshot(frame.attachments))

    def close(self, frame: CallFrame, output: Any, error: str | None = None) -> None:
        record = frame.record
        if record is None:  # it could not even be opened
            return
        # First what cannot fail: an output may refuse to be looked at, and the call is over all the same.
        duration = perf_counter() - frame.clock
        if frame.asked_at:
            record.waited = frame.seconds_waited()
            duration = max(0.0, duration - record.waited)
        record.duration = duration
        if self._is_bounded:
            self.trace.close(record)
        if type(output) in ATOMS:
            record.output_data = output
        else:
            record.output_data = snapshot(output)
            # A tool's own word for it. An output may lie about its class, or refuse to tell it.
            if issubclass(type(output), ToolDenied) and frame.failure is None:
                frame.failure = f"denied: {output.message}"
        if self.secrets.active:
            record.output_data, error = self.secrets.redact(record.output_data), self.secrets.redact(error)
        record.error = error
        if frame.failure is not None:
            record.failure = self.secrets.redact(frame.failure)
        if self.observed:
            self.emit(
                CallClosed(
                    **tags(frame),
                    kind=record.kind,
                    output=snapshot(record.output_data),
                    error=error,
                    duration=duration,
                    waited=record.waited,
                    usage=record.usage,
                    failure=record.failure,
                    cut_off=record.cut_off,
                )
            )

    def fail(self, frame: CallFrame, exc: BaseException) -> None:
        """Close the record of a call that did not return."""
        record = frame.record
        if (
            isinstance(exc, ApprovalDenied)
            and not raised_in_nested_call(exc, record)
            and record
            and record.approval is None
        ):
            note = self.secrets.redact(str(exc))
            record.approval = ApprovalOutcome(approved=False, by="rule", note=note)  # the entry's own
        note_path(exc, frame.path, record, None if frame.parent is None else frame.parent.record)
        if isinstance(exc, asyncio.CancelledError):
            frame.cancelled = True
            if frame.deadline is not None and frame.deadline.expired and frame.deadline.interrupted is None:
                frame.deadline.interrupted = f"{frame.path}{frame.waits_for}"
            dropped = f"; {THREAD_DROPPED}" if frame.thread_dropped else ""
            self.close(frame, None, f"cancelled{dropped}")
        else:
            self.close(frame, None, f"{type(exc).__name__}: {text_of(exc)}")

    def add_native(self, frame: CallFrame, name: str, arguments: Any, output: Any) -> None:
        """Record a tool that ran at the model's provider, from the response that reports it."""
        self._add_whole(frame, name, "native", arguments, output=output)

    def add_server(self, worker: CallFrame, server: str, error: str) -> None:
        """Record that a server of a worker ended by itself."""
        self._add_whole(worker, server, "server", {}, error=error)

    def _add_whole(
        self,
        frame: CallFrame,
        name: str,
        kind: str,
        arguments: Any,
        *,
        output: Any = None,
        error: str | None = None,
    ) -> None:
        """Record something below a call that is known only when it is over."""
        redact = self.secrets.redact
        record = TraceEntry(next(self._ids), frame.call_id, name, kind, frame.depth + 1, redact(arguments), time())
        record.output_data, record.error, record.duration = redact(output), redact(error), 0.0
        self.trace.append(record)
        self.trace.close(record)
        if self.observed:
            where = {**tags(frame), "call_id": record.id, "parent_id": frame.call_id, "name": name}
            where["depth"] = record.depth
            self.emit(CallOpened(**where, kind=kind, arguments=snapshot(record.input_data)))
            told = {"output": snapshot(record.output_data), "error": record.error}
            self.emit(CallClosed(**where, kind=kind, **told, duration=0.0, usage=None))

    def log_message(self, frame: CallFrame, message: ModelMessage, tools: Sequence[ToolDefinition] = ()) -> None:
        """Log a message. Of a request, what the request before it did not have.

        PydanticAI merges the end of one turn with the prompt of the next. `tools` are those that a response
        may call.
        """
        if isinstance(message, ModelRequest):
            before, frame.last_request = frame.last_request, list(message.parts)
            if before:
                new = [part for part in message.parts if not any(part is known for known in before)]
                if not new:
                    return
                if len(new) < len(message.parts):
                    message = replace(message, parts=new)
        else:
            message = self._without_marked(message, tools, frame)
        if self.secrets.active:
            message = self.secrets.redact(message)
        self.messages.add(message)
        if self.observed:
            self.emit(MessageLogged(**tags(frame), message=message))

    def _without_marked(
        self, response: ModelResponse, tools: Sequence[ToolDefinition], frame: CallFrame
    ) -> ModelResponse:
        """A response without the marked arguments of the calls that it asks for.

        It is logged before those calls are made, so this is where the values become known.
        """
        called = {part.tool_name for part in response.parts if isinstance(part, BaseToolCallPart)}
        if not called and not self.secrets.active:
            return response
        marked = self._marked(called, tools, frame)
        if not self.secrets.active and not any(marked.values()):
            return response
        parts: list[Any] = []
        for part in response.parts:
            if isinstance(part, BaseToolCallPart) and part.args:
                args: Any = self._arguments_shown(part.args, marked.get(part.tool_name))
                parts.append(replace(part, args=args))
            else:
                parts.append(part)
        return replace(response, parts=parts)

    def _marked(
        self, called: set[str], tools: Sequence[ToolDefinition], frame: CallFrame
    ) -> dict[str, SecretFields | None]:
        """The marks of the tools that are called."""
        own = frame.called.own_entries
        found: dict[str, SecretFields | None] = {}
        for tool in tools:
            if tool.name not in called:
                continue
            entry = own.get(tool.name)
            if isinstance(entry, EntryBase) and (entry.secret_fields is None or entry.secret_fields is DELEGATED):
                found[tool.name] = entry.secret_fields
            else:  # what a model is told may have other names
                found[tool.name] = SecretFields.of(tool.parameters_json_schema)
        return found

    def _arguments_shown(self, args: Any, secret_fields: SecretFields | None) -> str | dict[str, Any]:
        if not isinstance(args, str):
            return self.secrets.arguments(args, self._meant(secret_fields, args))
        try:
            given = json.loads(args)
        except ValueError:
            given = None
        if not isinstance(given, dict):  # nothing that can be told apart
            return HIDDEN if secret_fields is not None else args
        shown = self.secrets.arguments(given, self._meant(secret_fields, given))
        return args if shown == given else json.dumps(shown, ensure_ascii=False)

    def read_trace(self) -> Trace:
        """The records, without values that became known as secrets after they were written."""
        self._search_again()
        return self.trace

    def read_messages(self) -> MessageLog:
        """The message log, in the same way."""
        self.messages.trim()
        self._search_again()
        return self.messages

    def _search_again(self) -> None:
        if self._searched_for == self.secrets.version:
            return
        self._searched_for, redact = self.secrets.version, self.secrets.redact
        for record in self.trace:
            record.input_data, record.output_data = redact(record.input_data), redact(record.output_data)
            record.error, record.approval = redact(record.error), redact(record.approval)
            record.attachments, record.failure = redact(record.attachments), redact(record.failure)
        self.messages[:] = [redact(message) for message in self.messages]

    def log_rest(self, frame: CallFrame, messages: Sequence[ModelMessage]) -> None:
        """Log what came after the last response: the results of tools that no model was shown."""
        end = len(messages)
        while end and isinstance(messages[end - 1], ModelRequest):
            end -= 1
        for message in messages[end:]:
            self.log_message(frame, message)

    def notice(self, frame: CallFrame, text: str) -> None:
        """Tell something once: to the sinks, or to the log where there are none, or no call that they know of."""
        if text in self._noticed:
            return
        self._noticed.add(text)
        if self.observed and frame.record is not None:
            self.emit(Notice(**tags(frame), text=text))
        else:
            logger.warning("%s: %s", frame.path, self.secrets.redact(text))

    def emit(self, event: Event) -> None:
        if self.secrets.active:
            event = self.secrets.redact(event)
        # A journal is what a session must not run without, so its failure is the call's failure.
        if self._journal is not None:
            self._journal.on_event(event)
        for sink in self._sinks:
            try:
                observe: Callable[[Event], Any] = sink.on_event
                result = observe(event)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("on_event must be a plain function, not a coroutine function")
            except Exception:
                if not any(broken is sink for broken in self._broken_sinks):
                    self._broken_sinks.append(sink)
                    said = "The sink %r failed. Further failures of it are not reported."
                    if self.secrets.active:
                        # Not the error that is being recorded meanwhile: others' errors may quote half of a secret.
                        why = traceback.format_exc(chain=False)
                        logger.error(f"{said}\n%s", sink, self.secrets.redact(why))
                    else:
                        logger.exception(said, sink)


def tags(frame: CallFrame) -> dict[str, Any]:
    """Which call an event belongs to, in the words of events."""
    record = frame.record
    assert record is not None
    worker = frame.worker.entry if frame.worker is not None else None
    return {
        "call_id": record.id,
        "parent_id": record.parent_id,
        "name": record.name,
        "worker": worker.name if worker is not None else None,
        "depth": record.depth,
    }


class _FunctionSink:
    """Makes a sink of a function."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        self.on_event = function

    def __repr__(self) -> str:
        return repr(self.on_event)
