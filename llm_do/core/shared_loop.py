"""The event loop of threads that call synchronously: one thread runs it, and the others use it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from ..machine import pool

T = TypeVar("T")


class SharedLoop:
    """A loop for the top-level calls that threads make in one session.

    The first thread runs it. If calls of other threads are still running when its own is over, a thread of the pool
    runs it from then on, so that no caller waits for the calls of others.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._gate = threading.Lock()
        self._is_owned = False
        """Whether a thread runs the loop, or is about to."""
        self._guests = 0
        """How many other threads use it."""
        self._tell_left: Callable[[], Any] | None = None
        """Tells a thread of the pool that runs it that a guest has left."""
        self.is_open = False
        """Whether it takes the calls of guests, also while it is being passed on to another thread."""
        self.ended: asyncio.AbstractEventLoop | None = None
        """The last loop that ended its calls. It may still run, and wait for threads of `asyncio.to_thread`."""

    def find(self, running: Callable[[], asyncio.AbstractEventLoop | None]) -> asyncio.AbstractEventLoop | None:
        """Return the loop that a thread can use as a guest; `None` if it has to run one."""
        if self._process != os.getpid():  # a fork copies no threads, so nothing runs the loop here
            SharedLoop.__init__(self)
        while True:
            with self._gate:
                loop = running()
                if loop is not None and (self.is_open or not self._is_owned):
                    self._guests += 1
                    return loop
                if not self._is_owned:
                    self._is_owned = True
                    return None
            time.sleep(0.001)  # the loop of another thread is starting or ending

    @contextmanager
    def guest(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._gate:
                self._guests -= 1
                if self._tell_left is not None:
                    with suppress(RuntimeError):  # the loop failed, and is closed
                        self._tell_left()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, which opens the loop for guests."""
        # With a factory, the runner does not change the current loop of this thread.
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        end = self._leave
        try:
            return runner.run(main)
        except KeyboardInterrupt:  # it ends the calls of guests, too
            end = self._close
            raise
        finally:
            end(runner)

    def _leave(self, runner: asyncio.Runner) -> None:
        """End the loop, or let a thread of the pool run it while there are guests."""
        if self._has_guests():
            try:
                pool.start(pool.Job(partial(self._serve, runner), lambda result, error: None))
            except RuntimeError:  # the system has no more threads
                self._serve(runner)
        else:
            self._close(runner)

    def _serve(self, runner: asyncio.Runner) -> None:
        try:
            runner.run(self._until_empty())
        finally:
            self._close(runner)

    async def _until_empty(self) -> None:
        guest_left = asyncio.Event()
        self._tell_left = partial(asyncio.get_running_loop().call_soon_threadsafe, guest_left.set)
        while self._has_guests():
            await guest_left.wait()
            guest_left.clear()

    def _has_guests(self) -> bool:
        """Return whether there are guests. If not, no more are admitted."""
        with self._gate:
            self.is_open = self._guests > 0
            if not self.is_open:
                self._tell_left = None
            return self.is_open

    def _close(self, runner: asyncio.Runner) -> None:
        """End the loop. Its last calls end before another loop may begin.

        The loop waits for threads of `asyncio.to_thread` only after that, since they may call synchronously.
        """
        with self._gate:
            self.is_open = False
            self._tell_left = None
        try:
            runner.run(self._end_tasks())
        finally:
            self._is_owned = False
            runner.close()

    async def _end_tasks(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        try:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await loop.shutdown_asyncgens()
        finally:
            self.ended = loop
