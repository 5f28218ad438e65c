"""Threads of synchronous functions, which cannot be stopped, so those of cancelled calls are left to run out."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import current_token

from ..machine import pool
from .frame import CallFrame, Deadline
from .tasks import end_tasks

T = TypeVar("T")

THREADS_PER_DEPTH = 40
SECONDS_BEFORE_NOTICE = 5.0
_MOST_NAMED = 5


async def cancel_thread_calls(frame: CallFrame) -> None:
    # They run in their own tasks, which are not cancelled with the call.
    frame.cancelled = True
    if frame.thread_calls:
        await end_tasks(frame.thread_calls)


@dataclass(eq=False, slots=True)
class CallThread:
    """A synchronous function of a call, which waits for a place, runs in a thread, or is over."""

    frame: CallFrame
    has_place: bool
    """Whether it takes one of the places of its depth, instead of running beside them."""
    is_running: bool = False
    abandoned: bool = False
    job: pool.Job | None = None


class Threads:
    """The threads of a session, with a number of places at each depth.

    One number for all depths would let callers starve callees. The thread of a cancelled call keeps its place until
    its function returns. A function runs beside the places if the calls that wait for it may hold all of them; it only
    waits if threads of cancelled calls hold all, since those do not wait for other calls.
    """

    def __init__(self, notice: Callable[[CallFrame, str], None]) -> None:
        self._notice = notice
        self._process = os.getpid()
        self._lock = Lock()
        self._running: dict[int, set[CallThread]] = {}
        self._waiting: dict[int, deque[CallThread]] = {}
        self._has_noticed = False

    async def run(self, frame: CallFrame, function: Callable[[], T]) -> T:
        """Run a synchronous function in a thread. On cancellation, the thread runs on until the function returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        thread = CallThread(frame, has_place=not frame.top.is_inner)
        timer: asyncio.TimerHandle | None = None
        with anyio.CancelScope() as scope:
            job = thread.job = pool.Job(function, partial(pool.deliver_to, future), partial(self.finish, thread))
            job.serve(current_token(), scope)
            if not self.submit(thread):
                timer = loop.call_later(SECONDS_BEFORE_NOTICE, self.report_wait, thread)
            try:
                return await future
            except (asyncio.CancelledError, GeneratorExit) as exc:
                self.abandon([thread], exc)
                raise
            finally:
                if timer is not None:
                    timer.cancel()
                del future, job  # breaks a reference cycle with the exception
        raise AssertionError("unreachable: nothing cancels this scope alone")

    def submit(self, thread: CallThread) -> bool:
        """Start a thread, or let it wait for a place. Return whether it was started."""
        if self._process != os.getpid():  # a fork copies no threads
            self._lock = Lock()  # a thread of the other process may have held it
            self._running.clear()
            self._waiting.clear()
            self._process = os.getpid()
        depth = thread.frame.depth
        with self._lock:
            waiting = self._waiting.setdefault(depth, deque())
            is_free = self._is_free(thread) and not (thread.has_place and waiting)
            if is_free:
                thread.is_running = True
                self._running.setdefault(depth, set()).add(thread)
            elif thread.has_place:
                waiting.append(thread)
            else:  # if there is no room for it, there is none for the others either
                waiting.appendleft(thread)
        if is_free and not self._start(thread):
            self.finish(thread)
        return is_free

    def _is_free(self, thread: CallThread) -> bool:
        running = self._running.get(thread.frame.depth, ())
        if len(running) < THREADS_PER_DEPTH:
            return True
        count = sum(other.abandoned or (thread.has_place and other.has_place) for other in running)
        return count < THREADS_PER_DEPTH

    def _start(self, thread: CallThread) -> bool:
        """Start a thread that has a place. If the system has no more threads, its function fails."""
        job = thread.job
        assert job is not None
        try:
            pool.start(job)
        except RuntimeError as exc:
            exc.add_note(f"llm-do could not run {thread.frame.path}: a synchronous function needs a thread.")
            job.refuse(exc)
            return False
        return True

    def finish(self, thread: CallThread) -> None:
        """Give the place of a thread to those that wait."""
        finished = [thread]
        while finished:
            following = self._pass_place(finished.pop())
            finished += [other for other in following if not self._start(other)]

    def _pass_place(self, thread: CallThread) -> list[CallThread]:
        """Free the place of a thread. Return the threads that have got a place, and have to be started."""
        following: list[CallThread] = []
        with self._lock:
            thread.is_running = False
            thread.job = None
            running = self._running.setdefault(thread.frame.depth, set())
            running.discard(thread)
            waiting = self._waiting.get(thread.frame.depth)
            while waiting and self._is_free(waiting[0]):
                other = waiting.popleft()
                other.is_running = True
                running.add(other)
                following.append(other)
        return following

    def abandon(self, threads: Iterable[CallThread], cancelled: BaseException | None = None) -> None:
        """Leave the threads of a cancelled call running, and say so. Those that wait for a place are dropped."""
        for thread in threads:
            frame = thread.frame
            with self._lock:
                waits = thread in self._waiting.get(frame.depth, ())
                if waits:
                    self._waiting[frame.depth].remove(thread)
                    thread.job = None
                elif thread.is_running:
                    thread.abandoned = frame.thread_dropped = True
            if waits:
                frame.thread_wait = f"waited for a thread: {self._describe_holders(frame.depth)}"
                if frame.deadline is not None and not isinstance(cancelled, GeneratorExit):  # its loop is gone
                    frame.deadline.interrupt(f"{frame.path}, which {frame.thread_wait}")
            elif thread.abandoned and cancelled is not None:
                cancelled.add_note(f"llm-do left {frame.path} running: its thread cannot be stopped.")

    def report_wait(self, thread: CallThread) -> None:
        """Send one notice per session that a function waits for a place, and what holds them."""
        with self._lock:
            waits = thread in self._waiting.get(thread.frame.depth, ())
        if waits and not self._has_noticed:
            self._has_noticed = True
            frame, holders = thread.frame, self._describe_holders(thread.frame.depth)
            self._notice(frame, f"{frame.path} waits for a thread: {holders}.")

    def _describe_holders(self, depth: int) -> str:
        with self._lock:
            holders = [thread for thread in self._running.get(depth, ()) if thread.abandoned or thread.has_place]
        abandoned = sum(thread.abandoned for thread in holders)
        suffix = f", {abandoned} of them for calls that were cancelled" if abandoned else ""
        return f"all {THREADS_PER_DEPTH} of its depth are held by {_count_paths(holders)}{suffix}"

    def left_running(self, deadline: Deadline | None = None) -> str:
        """Return the paths of cancelled calls whose functions still run: all, or those that `deadline` covers."""
        with self._lock:
            threads = [thread for running in self._running.values() for thread in running if thread.abandoned]
        if deadline is not None:
            threads = [thread for thread in threads if deadline.covers(thread.frame.deadline)]
        return _count_paths(threads)

    def describe_left_running(self, deadline: Deadline | None = None) -> str:
        names = self.left_running(deadline)
        return f"Left running, since threads cannot be stopped: {names}." if names else ""


def _count_paths(threads: Iterable[CallThread]) -> str:
    paths = Counter(thread.frame.path for thread in threads).most_common()
    descriptions = [path if times == 1 else f"{path} ({times} times)" for path, times in paths[:_MOST_NAMED]]
    return ", ".join(descriptions) + (", ..." if len(paths) > _MOST_NAMED else "")


class ThreadsOfCall(Executor):
    """Threads for one call of a foreign tool, as many as it wants.

    Code inside the call inherits this executor. So only one of its threads at a time takes a place, and those that it
    may wait for run beside the places.
    """

    def __init__(self, threads: Threads, frame: CallFrame) -> None:
        self._threads = threads
        self._frame = frame
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._threads_by_future: dict[Future[Any], CallThread] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            is_beside = self._frame.top.is_inner or any(other.has_place for other in self._threads_by_future.values())
            thread = CallThread(self._frame, has_place=not is_beside)
            self._threads_by_future[future] = thread

        def work() -> Any:
            return fn(*args, **kwargs) if future.set_running_or_notify_cancel() else None

        thread.job = pool.Job(work, partial(pool.settle, future), partial(self._threads.finish, thread))
        future.add_done_callback(self._forget)
        if not self._threads.submit(thread):
            # This may be another thread, and only the loop may send the notice.
            tell = partial(self._loop.call_later, SECONDS_BEFORE_NOTICE, self._threads.report_wait, thread)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(tell)
        return future

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            thread = self._threads_by_future.pop(future)
        if future.cancelled():  # before it got a place
            self._threads.abandon([thread])

    def abandon(self, cancelled: BaseException) -> None:
        with self._lock:
            threads = list(self._threads_by_future.values())
        self._threads.abandon(threads, cancelled)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: threads end by themselves."""
