"""Running a call within its time limit and, for a worker, in one of its caller's slots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ToolReturn

from ..errors import OutputError, attach_partial_messages, summarize
from .frame import CallFrame, Deadline
from .session import Session


async def run_in_time(session: Session, frame: CallFrame, start: Callable[[], Awaitable[Any]]) -> Any:
    """Run a call within its time, in a slot if it is one of a worker."""
    timeout = _own_timeout(session, frame)
    if timeout is None:
        return await _run_in_slot(session, frame, start)
    deadline = frame.deadline = Deadline(timeout, frame.deadline)
    deadline.active = True
    try:
        with deadline.scope:
            output = await _run_in_slot(session, frame, start)
            if not deadline.expired:
                return output
    finally:
        deadline.active = False
    error = session.timed_out(deadline, f"{frame.path}{frame.waits_for}")
    attach_partial_messages(error, list(frame.partial_messages))
    raise error


async def _run_in_slot(session: Session, frame: CallFrame, start: Callable[[], Awaitable[Any]]) -> Any:
    if frame.entry.kind != "worker":
        return await start()
    frame.waits_for = f", which waits for a slot ({session.max_concurrency} workers are running: max_concurrency)"
    async with session.loop.worker_slots(frame.caller):
        frame.waits_for = ""
        return await start()


def _own_timeout(session: Session, frame: CallFrame) -> float | None:
    """Return the time that a call has beside that of the calls above: a worker's own, or a top-level call's."""
    limits = frame.entry.limits
    timeout, whole = None if limits is None else limits.timeout, session.spending.limits.timeout
    if frame.deadline is not None or whole is None:
        return timeout
    return whole if timeout is None else min(timeout, whole)


def check_output(name: str, schema_out: Any, output: Any) -> None:
    """Check an output strictly against the type that its entry declares."""
    value = output.return_value if isinstance(output, ToolReturn) else output
    try:
        _adapter(schema_out).validate_python(value, strict=True)
    except ValidationError as exc:
        raise OutputError(f"{name}() returned what its schema_out does not allow: {summarize(exc)}") from exc


def _adapter(schema_out: Any) -> TypeAdapter[Any]:
    try:
        return _known_adapter(schema_out)
    except TypeError:  # an annotation may hold what cannot be hashed
        return TypeAdapter(schema_out)


@lru_cache(maxsize=1024)
def _known_adapter(schema_out: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema_out)
