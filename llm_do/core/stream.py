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
    """Hands on what happens, when it happens."""

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
        self._last = 0
        """The number of the last event."""
        self._broken_sinks: list[Sink] = []
        self.observed = bool(self._sinks) or journal is not None
        """Whether anything listens. Events are made only then."""

    def emit(self, kind: type[Event], call: Mapping[str, Any], /, *, at: float | None = None, **fields: Any) -> None:
        """Make an event of a call, and hand it on. It happened now, unless `at` says when."""
        self._last += 1
        if self._secrets.active:
            fields.update((name, self._secrets.redact(fields[name])) for name in PAYLOAD & fields.keys())
        # Not by the class itself: a frozen dataclass sets its fields one by one, which takes several times as long.
        instance = object.__new__(kind)
        instance.__dict__.update(call, session_id=self.session_id, seq=self._last, at=at or time(), **fields)
        event: Any = instance
        try:
            # A journal is what a session must not run without, so its failure is the call's failure.
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
                    self._report(sink)

    def _report(self, sink: Sink) -> None:
        """Report the failure of a sink, once."""
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
    """Makes a sink of a function."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        self.on_event = function

    def __repr__(self) -> str:
        return repr(self.on_event)
