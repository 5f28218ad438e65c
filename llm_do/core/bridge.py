"""Calls from synchronous code: at the top of a session, or in the thread of a synchronous entry."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import EventLoopError
from .frame import CallFrame
from .loop import SessionLoop

_LOOP_ENDED = "The event loop that served the call ended before the call did. Keep it running until its calls are over."


def call_sync(session_loop: SessionLoop, frame: CallFrame, call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call on behalf of `frame`, and wait for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise EventLoopError(
            "call_sync would block the event loop that has to serve the call. Use `await ctx.call(...)` here."
        )
    if frame.parent is not None:
        loop = session_loop.find_running()
        if loop is None:
            raise EventLoopError(f"The event loop that {frame.path} ran in has ended, and so have its calls.")
        return _call_in(loop, session_loop, frame, call)
    shared_loop = session_loop.shared
    loop = shared_loop.find(session_loop.find_running)
    if loop is None:
        return shared_loop.run(_open_loop(session_loop, call))
    with shared_loop.guest():
        return _call_in(loop, session_loop, frame, call)


async def _open_loop(session_loop: SessionLoop, call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call in a loop of its own, which other threads may use from now on."""
    session_loop.enter()
    session_loop.shared.is_open = True
    return await call()


def _call_in(
    loop: asyncio.AbstractEventLoop, session_loop: SessionLoop, frame: CallFrame, call: Callable[[], Awaitable[Any]]
) -> Any:
    """Make a call from a thread in a loop that runs in another one."""
    coroutine = _call_for_thread(session_loop, frame, call)
    future: concurrent.futures.Future[tuple[Any, SystemExit | None]] = concurrent.futures.Future()
    tasks: list[asyncio.Task[tuple[Any, SystemExit | None]]] = []

    def start() -> None:
        tasks.append(task := loop.create_task(coroutine))
        task.add_done_callback(partial(_deliver, future))

    def cancel() -> None:
        for task in tasks:
            task.cancel()
        if not tasks:
            coroutine.close()

    try:
        loop.call_soon_threadsafe(start)
        while not concurrent.futures.wait([future], timeout=0.5).done:
            if session_loop.find_running() is not loop and not future.done():
                raise EventLoopError(_LOOP_ENDED)
    except KeyboardInterrupt:  # it ends the wait of this thread, and has to end the call in the other one
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(cancel)  # after `start`, if that was called at all
        raise
    except RuntimeError:  # the loop is closed
        if tasks:
            raise
        coroutine.close()
        raise EventLoopError(_LOOP_ENDED) from None
    return _output_of(future, frame)


def _output_of(future: concurrent.futures.Future[tuple[Any, SystemExit | None]], frame: CallFrame) -> Any:
    """Return the output of a call that is over, or raise its error."""
    try:
        output, stop = future.result()
    except concurrent.futures.CancelledError:
        if frame.parent is not None:  # the call whose thread this is was cancelled
            raise
        raise EventLoopError(f"The call was cancelled. {_LOOP_ENDED}") from None
    if stop is not None:
        raise stop
    return output


def _deliver(
    future: concurrent.futures.Future[tuple[Any, SystemExit | None]], task: asyncio.Task[tuple[Any, SystemExit | None]]
) -> None:
    """Give the outcome of a task to the thread that waits for it."""
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


async def _call_for_thread(
    session_loop: SessionLoop, frame: CallFrame, call: Callable[[], Awaitable[Any]]
) -> tuple[Any, SystemExit | None]:
    """Return the output of a call, or the `SystemExit` that is meant for its thread: a task would end the loop."""
    task = asyncio.current_task()
    assert task is not None
    if frame.thread_calls is None:
        frame.thread_calls = set()
    frame.thread_calls.add(task)
    try:
        with session_loop.inner_task():
            return await call(), None
    except SystemExit as exc:
        return None, exc
    finally:
        frame.thread_calls.discard(task)
