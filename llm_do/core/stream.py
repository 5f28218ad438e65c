"""The stream of a session's events: numbered, without secrets, to the journal and the sinks."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from time import time
from typing import Any
from uuid import uuid4

from ..privacy.secrets import Secrets
from .entry import MessageCallback, Sink
from .events import PAYLOAD, Event

logger = logging.getLogger("llm_do")


class EventStream:
    """Passes events to the journal and the sinks as they happen."""

    def __init__(
        self,
        sinks: Iterable[Sink],
        message_callback: MessageCallback | None,
        journal: Sink | None,
        secrets: Secrets,
        session_id: str | None,
    ) -> None:
        self.session_id = session_id or uuid4().hex
        self._sinks = (*sinks, *([] if message_callback is None else [_FunctionSink(message_callback)]))
        self._journal = journal
        self._secrets = secrets
        self._last_seq = 0
        self._broken_sinks: list[Sink] = []
        self.observed = bool(self._sinks) or journal is not None
        """Whether anything listens. Events are made only then."""

    def emit(self, kind: type[Event], call: Mapping[str, Any], /, *, at: float | None = None, **fields: Any) -> None:
        """Make an event of a call, and pass it on. `at` is the present time by default."""
        self._last_seq += 1
        if self._secrets.active:
            fields.update((name, self._secrets.redact(fields[name])) for name in PAYLOAD & fields.keys())
        # Not by its constructor: that of a frozen dataclass sets field by field, which takes several times as long.
        instance = object.__new__(kind)
        instance.__dict__.update(call, session_id=self.session_id, seq=self._last_seq, at=at or time(), **fields)
        event: Any = instance
        try:
            # The session must not run without its journal, so an error of the journal fails the call.
            if self._journal is not None:
                self._journal.on_event(event)
        finally:
            for sink in self._sinks:
                try:
                    result: Any = sink.on_event(event)  # type: ignore[func-returns-value]
                    if result is not None and inspect.iscoroutine(result):
                        result.close()
                        raise TypeError("on_event must be a plain function, not a coroutine function")
                except Exception:
                    self._report_failure_once(sink)

    def _report_failure_once(self, sink: Sink) -> None:
        if any(broken is sink for broken in self._broken_sinks):
            return
        self._broken_sinks.append(sink)
        text = "The sink %r failed. Further failures of it are not reported."
        if self._secrets.active:
            # Not the error that is being recorded meanwhile: others' errors may quote half of a secret.
            logger.error(f"{text}\n%s", sink, self._secrets.redact(traceback.format_exc(chain=False)))
        else:
            logger.exception(text, sink)


class _FunctionSink:
    def __init__(self, function: Callable[[Event], None]) -> None:
        self.on_event = function

    def __repr__(self) -> str:
        return repr(self.on_event)
