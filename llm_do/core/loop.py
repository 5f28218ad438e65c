"""The event loop of a session, one at a time: slots for workers and requests, and calls from synchronous code."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Self, TypeAlias

import anyio
from pydantic_ai._run_context import get_current_run_context

from ..errors import EventLoopError
from .frame import CallFrame
from .shared_loop import SharedLoop
from .threads import Threads

_Outcome: TypeAlias = tuple[Any, SystemExit | None]
"""The output of a call, or its `SystemExit`, which is for the calling thread: in a task it would end the loop."""

_LOOP_ENDED = "The event loop that served the call ended before the call did. Keep it running until its calls are over."

LOOK_AGAIN = 5.0
"""Seconds between two checks whether the session stands still."""


class SessionLoop:
    """The loop of one session, with its slots, its threads and its tasks.

    `on_enter` is called when another loop takes over. `progress` returns a value that changes with everything that the
    session does, or `None` while it is known to be at work.
    """

    def __init__(
        self,
        root: CallFrame,
        max_concurrency: int,
        notice: Callable[[CallFrame, str], None],
        on_enter: Callable[[], None],
        progress: Callable[[], Any],
    ) -> None:
        self.current: asyncio.AbstractEventLoop | None = None
        self.shared = SharedLoop()
        self.threads = Threads(notice)
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the session itself, kept from the garbage collector."""
        self.request_slots: anyio.Semaphore
        self.requests_in_flight = 0
        self.toolsets_opening = 0
        self._root = root
        self._max_concurrency = max_concurrency
        self._on_enter = on_enter
        self._progress = progress
        self._process = os.getpid()
        """The process of the loop: in a forked process, its copy seems to run."""
        self._inner_tasks: set[asyncio.Task[Any]] = set()

    def enter(self) -> None:
        """Bind the session to the running loop. Its counters are not safe for several threads."""
        loop = asyncio.get_running_loop()
        if loop is self.current:
            return
        if self.find_running() is not None:
            raise EventLoopError(
                "This runtime is in use by another event loop that is still running. "
                "A runtime is one session: make one for each thread or request."
            )
        self.current, self._process = loop, os.getpid()
        self.request_slots = anyio.Semaphore(self._max_concurrency, fast_acquire=True)
        self.requests_in_flight = self.toolsets_opening = 0
        self._root.worker_slots = None
        self._on_enter()

    def find_running(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop of the session, if it runs, or is being passed on to another thread."""
        loop = self.current
        if loop is None or loop.is_closed() or loop is self.shared.ended or self._process != os.getpid():
            return None
        return loop if loop.is_running() or self.shared.is_open else None

    def worker_slots(self, frame: CallFrame) -> AbstractAsyncContextManager[Any]:
        """Return the slots for the worker calls of `frame`. Each caller has its own, so nesting cannot deadlock.

        A call that is known to be made below a worker of `frame`, or in a thread, needs no slot: what waits for it may
        hold the slot that it would wait for. If that is not known, `WorkerSlots` lets it go on when all stands still.
        """
        around = self.find_surrounding_call()
        if (frame is self._root and self._is_inner_task()) or (around is not None and around.is_below(frame)):
            return nullcontext()
        if frame.worker_slots is None:
            frame.worker_slots = WorkerSlots(self._max_concurrency, self._progress)
        return frame.worker_slots

    def find_surrounding_call(self) -> CallFrame | None:
        """Return the worker whose run the running code belongs to, also in tasks that it started.

        PydanticAI's context variable tells it. It is only a hint, against calls that wait for themselves.
        """
        run_ctx = get_current_run_context()
        deps: Any = run_ctx.deps if run_ctx is not None else None
        if getattr(getattr(deps, "runtime", None), "loop", None) is not self:
            return None
        frame: CallFrame = deps.frame
        return None if frame.ended else frame

    @contextmanager
    def inner_task(self) -> Iterator[None]:
        """Mark the running task as one that serves a call which a worker or a thread waits for."""
        task = asyncio.current_task()
        if task is None or task in self._inner_tasks:
            yield
            return
        self._inner_tasks.add(task)
        try:
            yield
        finally:
            self._inner_tasks.discard(task)

    def mark_inner(self, frame: CallFrame, is_asking: bool) -> None:
        """Mark a top-level call that is made inside another one, which may wait for it and hold all threads.

        So neither it nor the calls below it need places for threads. `is_asking`: a limit is being asked about.
        """
        if self.requests_in_flight or is_asking:
            frame.called_in = self.find_surrounding_call()
        if self._inner_tasks:
            frame.is_inner = self._is_inner_task() or self.find_surrounding_call() is not None

    def _is_inner_task(self) -> bool:
        return asyncio.current_task() in self._inner_tasks

    # -- calls from synchronous code ---------------------------------------------------------------

    def call_sync(self, frame: CallFrame, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise EventLoopError(
                "call_sync would block the event loop that has to serve the call. Use `await ctx.call(...)` here."
            )
        if frame.parent is not None:
            loop = self.find_running()
            if loop is None:
                raise EventLoopError(f"The event loop that {frame.path} ran in has ended, and so have its calls.")
            return self._call_in(loop, frame, call)
        loop = self.shared.find(self.find_running)
        if loop is None:
            return self.shared.run(self._open(call))
        with self.shared.guest():
            return self._call_in(loop, frame, call)

    async def _open(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.enter()
        self.shared.is_open = True
        return await call()

    def _call_in(self, loop: asyncio.AbstractEventLoop, frame: CallFrame, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call in a loop that runs in another thread."""
        coroutine = self._call_for_thread(frame, call)
        future: Future[_Outcome] = Future()
        tasks: list[asyncio.Task[_Outcome]] = []

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
            while not wait([future], timeout=0.5).done:
                if self.find_running() is not loop and not future.done():
                    raise EventLoopError(_LOOP_ENDED)
        except KeyboardInterrupt:  # it has to end the call in the other thread, too
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(cancel)  # after `start`, if that was called at all
            raise
        except RuntimeError:  # the loop is closed
            if tasks:
                raise
            coroutine.close()
            raise EventLoopError(_LOOP_ENDED) from None
        return _output_of(future, frame)

    async def _call_for_thread(self, frame: CallFrame, call: Callable[[], Awaitable[Any]]) -> _Outcome:
        task = asyncio.current_task()
        assert task is not None
        if frame.thread_calls is None:
            frame.thread_calls = set()
        frame.thread_calls.add(task)
        try:
            with self.inner_task():
                return await call(), None
        except SystemExit as exc:
            return None, exc
        finally:
            frame.thread_calls.discard(task)


class WorkerSlots:
    """Slots for the worker calls of one caller, first come, first served.

    The holder of a slot may wait for a call that waits here: a tool may wait for a task of the program that calls
    through the runtime, which cannot be recognised. So when the session stands still, the first goes on without a slot.
    """

    __slots__ = ("_in_use", "_progress", "_size", "_timer", "_waiting")

    def __init__(self, size: int, progress: Callable[[], Any]) -> None:
        self._size = size
        self._progress = progress
        self._in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        if self._in_use < self._size:  # then nothing waits: a slot that is given back goes to the first that does
            self._in_use += 1
            return self
        loop = asyncio.get_running_loop()
        slot: asyncio.Future[None] = loop.create_future()
        self._waiting.append(slot)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_AGAIN, self._look, self._progress())
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                if slot in self._waiting:
                    self._waiting.remove(slot)
                self._stop_looking()
            else:
                self._give_back()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        self._in_use -= 1
        if self._in_use < self._size:
            self._serve()

    def _serve(self) -> None:
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():  # cancelled, and its task has not run since
                self._in_use += 1
                slot.set_result(None)
                break
        self._stop_looking()

    def _look(self, before: Any) -> None:
        """Let the first that waits go on if nothing has happened since the last look, and nothing is at work."""
        self._timer = None
        now = self._progress()
        if now is not None and now == before:
            self._serve()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN, self._look, now)

    def _stop_looking(self) -> None:
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _output_of(future: Future[_Outcome], frame: CallFrame) -> Any:
    try:
        output, stop = future.result()
    except CancelledError:
        if frame.parent is not None:  # the call whose thread this is was cancelled
            raise
        raise EventLoopError(f"The call was cancelled. {_LOOP_ENDED}") from None
    if stop is not None:
        raise stop
    return output


def _deliver(future: Future[_Outcome], task: asyncio.Task[_Outcome]) -> None:
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
