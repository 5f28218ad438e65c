"""The memory of a session: the record of each call, the message log, and those who are told."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from time import perf_counter, time
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest

from .errors import ApprovalDenied, came_from_below, note_path
from .events import CallClosed, CallOpened, Event, MessageLogged
from .frame import CallFrame
from .protocols import MessageCallback, Sink
from .trace import ApprovalOutcome, Trace, TraceEntry
from .values import ATOMS, snapshot

logger = logging.getLogger("llm_do")

THREAD_DROPPED = "its thread cannot be stopped, and its result is dropped"


class Recorder:
    """Writes down what happens, when it happens."""

    def __init__(
        self, sinks: Iterable[Sink] = (), message_callback: MessageCallback | None = None, journal: Sink | None = None
    ) -> None:
        self.trace = Trace()
        self.messages: list[ModelMessage] = []
        self._sinks = (*sinks, *([] if message_callback is None else [_FunctionSink(message_callback)]))
        self._journal = journal
        self.observed = bool(self._sinks) or journal is not None
        """Whether anybody is told. Events are made only then."""
        self._broken_sinks: list[Sink] = []
        self._ids = count(1)

    def open(self, frame: CallFrame, arguments: dict[str, Any]) -> TraceEntry:
        entry = frame.entry
        assert entry is not None and frame.parent is not None
        parent = frame.parent.record
        record = TraceEntry(
            next(self._ids),
            None if parent is None else parent.id,
            entry.name,
            entry.kind,
            frame.depth,
            snapshot(arguments),
            time(),
        )
        frame.record = record
        frame.clock = perf_counter()
        self.trace.append(record)
        if self.observed:
            self.emit(CallOpened(**tags(frame), kind=record.kind, arguments=snapshot(record.input_data)))
        return record

    def close(self, frame: CallFrame, output: Any, error: str | None = None) -> None:
        record = frame.record
        if record is None:  # it could not even be opened
            return
        record.output_data = output if type(output) in ATOMS else snapshot(output)
        record.error = error
        record.duration = perf_counter() - frame.clock
        if self.observed:
            self.emit(
                CallClosed(
                    **tags(frame),
                    kind=record.kind,
                    output=snapshot(record.output_data),
                    error=error,
                    duration=record.duration,
                    usage=record.usage,
                )
            )

    def fail(self, frame: CallFrame, exc: BaseException) -> None:
        """Close the record of a call that did not return."""
        record = frame.record
        if isinstance(exc, ApprovalDenied) and not came_from_below(exc) and record and record.approval is None:
            record.approval = ApprovalOutcome(approved=False, by="rule", note=str(exc))  # the entry's own
        note_path(exc, frame.path)
        if isinstance(exc, asyncio.CancelledError):
            frame.cancelled = True
            if frame.deadline is not None and frame.deadline.expired and frame.deadline.interrupted is None:
                frame.deadline.interrupted = frame.path
            dropped = f"; {THREAD_DROPPED}" if frame.thread_dropped else ""
            self.close(frame, None, f"cancelled{dropped}")
        else:
            self.close(frame, None, _describe(exc))

    def add_native(self, frame: CallFrame, name: str, arguments: Any, output: Any) -> None:
        """Record a tool that ran at the model's provider, from the response that reports it."""
        record = TraceEntry(next(self._ids), frame.call_id, name, "native", frame.depth + 1, arguments, time())
        record.output_data = output
        record.duration = 0.0
        self.trace.append(record)
        if self.observed:
            where = {**tags(frame), "call_id": record.id, "parent_id": frame.call_id, "name": name}
            where["depth"] = record.depth
            self.emit(CallOpened(**where, kind="native", arguments=snapshot(arguments)))
            self.emit(CallClosed(**where, kind="native", output=snapshot(output), error=None, duration=0.0, usage=None))

    def log_message(self, frame: CallFrame, message: ModelMessage) -> None:
        """Log a message. Of a request, what the request before it did not have.

        PydanticAI merges the end of one turn with the prompt of the next.
        """
        if isinstance(message, ModelRequest):
            before, frame.last_request = frame.last_request, list(message.parts)
            if before:
                new = [part for part in message.parts if not any(part is known for known in before)]
                if not new:
                    return
                if len(new) < len(message.parts):
                    message = replace(message, parts=new)
        self.messages.append(message)
        if self.observed:
            self.emit(MessageLogged(**tags(frame), message=message))

    def log_rest(self, frame: CallFrame, messages: Sequence[ModelMessage]) -> None:
        """Log what came after the last response: the results of tools that no model was shown."""
        end = len(messages)
        while end and isinstance(messages[end - 1], ModelRequest):
            end -= 1
        for message in messages[end:]:
            self.log_message(frame, message)

    def emit(self, event: Event) -> None:
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
                    logger.exception("The sink %r failed. Further failures of it are not reported.", sink)


def _describe(exc: BaseException) -> str:
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:  # whatever its __str__ does, the record must be closed
        return type(exc).__name__


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
