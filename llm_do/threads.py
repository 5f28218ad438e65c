"""Threads, which cannot be stopped: what the thread of a cancelled call leaves behind is cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from .frame import CallFrame
from .tasks import end_tasks

T = TypeVar("T")


async def cancel_thread_calls(frame: CallFrame) -> None:
    """Cancel the calls that a thread of this call waits for, and wait until they are over.

    They run in tasks of their own, which no cancellation of the call itself reaches.
    """
    frame.cancelled = True
    if frame.thread_calls:
        await end_tasks(frame.thread_calls)


async def run_in_thread(frame: CallFrame, function: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    """Run a synchronous function beside the loop. On cancellation its thread runs out by itself."""
    try:
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)
    except asyncio.CancelledError:
        frame.thread_dropped = True
        raise


class ThreadsOfCall(Executor):
    """Threads for one call of a tool that is not ours, as many as it wants.

    A shared pool would let callers starve callees. And what runs inside the call inherits this executor, so
    a bound of its own would do the same.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._futures: list[Future[Any]] = []

    @property
    def running(self) -> bool:
        """Whether a thread is at work: one that was started cannot be cancelled."""
        return any(future.running() for future in self._futures)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._pool is None:  # most tools are asynchronous, and need none
            self._pool = ThreadPoolExecutor(max_workers=10_000, thread_name_prefix="llm-do tool")
        self._futures.append(self._pool.submit(fn, *args, **kwargs))
        return self._futures[-1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
