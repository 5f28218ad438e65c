"""Tasks that must end before a call does: they are cancelled and awaited, however often the call is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

LEAVING_SECONDS = 0.5
"""How long a cancelled task may take to close its streams and toolsets. Then it is cancelled again, or left."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for them. A cancellation meanwhile is passed on to them, and raised at the end."""
    waiting = {task for task in tasks if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    for task in waiting:
        task.cancel()
    with anyio.CancelScope(shield=True):
        while waiting := {task for task in waiting if not task.done()}:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as exc:
                cancelled = exc
                for task in waiting:
                    task.cancel()
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # its traceback holds this frame


async def run_with_time_to_end(run: Coroutine[Any, Any, T], name: str) -> T:
    """Run in a task. Pass the first cancellation on to it at once, and later ones only if it does not end soon.

    A cancellation while PydanticAI closes the stream of a model reaches the task that closes it, through every shield
    of AnyIO (`cancel_and_drain`). The stream is then left open, until the garbage collector closes its generators at
    the same time, each in its own task: "asynchronous generator is already running".
    """
    task = asyncio.create_task(run, name=name)
    cancelled_at, is_due = None, False  # time of the first, and whether a later one has to be passed on
    first: asyncio.CancelledError | None = None
    too_late: asyncio.CancelledError | None = None
    try:
        with anyio.CancelScope() as scope:
            while not task.done():
                wait = cancelled_at + LEAVING_SECONDS - anyio.current_time() if is_due and cancelled_at else None
                try:
                    await asyncio.wait([task], timeout=wait and max(0.0, wait))
                    passes_on = is_due
                except asyncio.CancelledError as exc:
                    scope.shield = True  # AnyIO would cancel at every step
                    passes_on, is_due = cancelled_at is None, cancelled_at is not None
                    cancelled_at = cancelled_at or anyio.current_time()
                    first = first or exc
                    too_late = exc if passes_on and task.done() else None
                if passes_on and not task.done():
                    task.cancel()
                    is_due = False
        try:
            output = task.result()
        except asyncio.CancelledError as exc:
            if first is not None:  # an AnyIO scope, such as that of a timeout, recognises its own cancellation
                raise first from exc
            raise
        if too_late is not None:
            raise too_late
        return output
    finally:
        del task, first, too_late  # the exceptions hold this frame


def abandoned_by_pydantic_ai(exc: BaseException) -> set[asyncio.Task[Any]]:
    """Return the tasks that PydanticAI started, and left running when `exc` was raised through it.

    A run that is cancelled while it waits for a helper task (`cancel_and_drain`) forgets the task of `wrap_run`, or
    that of a stream, which then waits for ever and keeps the session. Only the frames of the traceback still have it.
    """
    abandoned: set[asyncio.Task[Any]] = set()
    seen_ids: set[int] = set()
    pending: list[BaseException | None] = [exc]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen_ids:
            continue
        seen_ids.add(id(error))
        pending += (error.__cause__, error.__context__)
        for local in _locals_of_pydantic_ai(error.__traceback__):
            for value in local if isinstance(local, list | tuple | set) else (local,):
                # PydanticAI 2.66 has some of its tasks in objects with a `task`.
                task = value if isinstance(value, asyncio.Task) else vars(value).get("task") if _is_own(value) else None
                if isinstance(task, asyncio.Task) and not task.done():
                    abandoned.add(task)
    current = asyncio.current_task()
    return {task for task in abandoned if task is not current}


def _is_own(value: Any) -> bool:
    return type(value).__module__.startswith("pydantic_ai.") and hasattr(value, "__dict__")


def _locals_of_pydantic_ai(traceback: TracebackType | None) -> Iterator[Any]:
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith("pydantic_ai."):
            yield from list(frame.f_locals.values())
        traceback = traceback.tb_next
