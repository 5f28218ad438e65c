"""Slots: how many workers of one caller run side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Self

LOOK_AGAIN = 5.0
"""Seconds after which a session that stands still is looked at once more."""


class WorkerSlots:
    """Slots for the worker calls of one caller, first come, first served.

    Their holder may wait for the very call that waits here: a tool may wait for a task of the program that calls
    through the runtime, which cannot be recognised. So when the session stands still, the first goes on without a slot.
    `progress` returns a value that changes with whatever the session does, or `None` while it is seen to be at work.
    """

    __slots__ = ("_in_use", "_progress", "_size", "_timer", "_waiting")

    def __init__(self, size: int, progress: Callable[[], Any]) -> None:
        self._size = size
        self._progress = progress
        self._in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        if self._in_use < self._size:  # nothing waits then: a slot that is given back goes to the first that does
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
        """Let the first that waits go on if nothing has happened since the last look, and nothing is seen at work."""
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
