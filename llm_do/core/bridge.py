"""Calls from synchronous code: at the top of a session, or in the thread of a synchronous entry."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
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
    if frame.entry is not None:
        loop = session_loop.find_running()
        if loop is None:
            raise EventLoopError(f"The event loop that {frame.path} ran in has ended, and so have its calls.")
        return _call_in(loop, session_loop, frame, call)
    shared = session_loop.shared
    loop = shared.find(session_loop.find_running)
    if loop is None:
        return shared.run(_open_loop(session_loop, call))
    with shared.guest():
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
    made = _call_for_thread(session_loop, frame, call)
    try:
        future = asyncio.run_coroutine_threadsafe(made, loop)
    except RuntimeError:  # it is closed
        made.close()
        raise EventLoopError(_LOOP_ENDED) from None
    try:
        while not concurrent.futures.wait([future], timeout=0.5).done:
            if session_loop.find_running() is not loop and not future.done():
                raise EventLoopError(_LOOP_ENDED)
    except KeyboardInterrupt:  # it ends the wait of this thread, and has to end the call in the other one
        future.cancel()
        raise
    try:
        output, stop = future.result()
    except concurrent.futures.CancelledError:
        if frame.entry is not None:  # the call whose thread this is was cancelled
            raise
        raise EventLoopError(f"The call was cancelled. {_LOOP_ENDED}") from None
    if stop is not None:
        raise stop
    return output


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
