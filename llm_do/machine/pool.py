"""Daemon threads that run synchronous functions beside an event loop. Idle ones are used again.

Python waits for every other thread at the end of a process, however long its function hangs: those of
`ThreadPoolExecutor`, of `asyncio.to_thread` and of `anyio.to_thread` alike. It does not wait for these.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context, Token, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from anyio import CancelScope
from anyio.lowlevel import EventLoopToken

# AnyIO keeps in thread locals which loop a thread works for. Without them, `anyio.from_thread.run` would not work in
# synchronous tools, and there is no public way to set them in a thread that AnyIO has not made. Where a later AnyIO
# has moved them, only that does not work, and a test fails.
try:
    from anyio._core._eventloop import set_current_async_library
    from anyio._core._eventloop import threadlocals as anyio_locals
except ImportError:
    anyio_locals = threading.local()

    def set_current_async_library(asynclib_name: str | None) -> Token[Any] | None:
        return None


T = TypeVar("T")

_SECONDS_IDLE = 10.0


class Job:
    """A function that runs in a thread once, in a copy of the context in which it was submitted."""

    def __init__(
        self,
        function: Callable[[], Any],
        deliver: Callable[[Any, BaseException | None], Any],
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._function = function
        self._deliver = deliver  # called in the thread with the result or the exception
        self._finish = finish  # called in the thread before that
        self._token: EventLoopToken | None = None
        self._scope: CancelScope | None = None
        self._context: Context = copy_context()

    def serve(self, token: EventLoopToken, scope: CancelScope) -> None:
        """Let the function use `anyio.from_thread`, on behalf of the task that waits in `scope`."""
        self._token, self._scope = token, scope
        self._context.run(set_current_async_library, None)  # none runs in the thread itself

    def run(self) -> Callable[[], None]:
        """Run the function. Return a callback that gives back its place and delivers the result."""
        result, error = None, None
        if self._token is not None:
            anyio_locals.current_token, anyio_locals.current_cancel_scope = self._token, self._scope
        try:
            result = self._context.run(self._function)
        except BaseException as exc:
            error = exc
        finally:
            if self._token is not None:
                del anyio_locals.current_token, anyio_locals.current_cancel_scope
        return partial(_end, self._finish, partial(self._deliver, result, error))

    def refuse(self, error: BaseException) -> None:
        """Deliver an error in place of a result: there is no thread for the function."""
        self._deliver(None, error)


def _end(finish: Callable[[], None] | None, deliver: Callable[[], Any]) -> None:
    if finish is not None:
        finish()
    deliver()


class _Worker:
    """A thread that runs one job after the other, and ends after some idle time."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Job] = SimpleQueue()
        threading.Thread(target=self._work, name="llm-do", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                job = self.inbox.get(timeout=_SECONDS_IDLE)
            except Empty:
                with _lock:
                    if self in _idle:
                        _idle.remove(self)
                        return
                continue  # it was taken at this very moment, and its job comes
            end = job.run()
            del job
            with _lock:  # before its place is given to another, which then finds this thread
                _idle.append(self)
            end()
            del end


_idle: list[_Worker] = []
_lock = threading.Lock()


def start(job: Job) -> None:
    """Run a job in an idle thread, or in a new one. Raise `RuntimeError` if the system has none to give."""
    with _lock:
        worker = _idle.pop() if _idle else None
    (worker or _Worker()).inbox.put(job)


async def run(function: Callable[..., T], *args: Any) -> T:
    """Run a synchronous function beside the running loop. If cancelled, the thread still runs to its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    start(Job(partial(function, *args), partial(deliver_to, future)))
    try:
        return await future
    finally:
        del future  # an exception would keep them, and they would keep the exception


def deliver_to(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the result of a future of a loop, from a thread. Once the loop is closed, it is dropped."""
    loop = future.get_loop()
    if isinstance(error, StopIteration):  # a future refuses it
        stopped, error = error, RuntimeError("a synchronous function raised StopIteration")
        error.__cause__ = stopped
    try:
        loop.call_soon_threadsafe(settle, future, result, error)
    except RuntimeError:
        if not loop.is_closed():
            raise


def settle(future: Future[Any] | asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the result of a future, unless it is cancelled."""
    with suppress(InvalidStateError, asyncio.InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _forget_threads() -> None:
    """Forget the idle threads in a child process: a fork does not copy them."""
    global _lock
    _idle.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)
