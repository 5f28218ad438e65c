"""Keys from the terminal in an event loop. A cancelled read leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_IDLE = 0.5
"""Seconds without a key after which a question takes an answer."""


class Keyboard:
    """The terminal of the process, wherever standard input comes from."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls) -> Keyboard | None:
        """Return the keyboard, or `None` if there is no person who sees the questions."""
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return None
        if sys.stdin.isatty():
            return cls(sys.stdin.fileno())
        try:
            return cls(os.open("/dev/tty", os.O_RDONLY))
        except OSError:
            return None

    def discard_input(self) -> None:
        """Drop what was typed before the question."""
        termios.tcflush(self._fd, termios.TCIFLUSH)

    async def wait_until_idle(self) -> None:
        """Drop keys until none comes for a moment: a person who is typing has not read the question yet."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_IDLE):
                    await self.read_key()

    async def read_key(self) -> str:
        """Read one key, without Enter. Several at once, as in a paste, count as none. Ctrl-C still interrupts."""
        with self._single_keys():
            if not (data := await self._read()):
                raise EOFError("the terminal is gone")
        key = data.decode(errors="replace")
        return key if len(key) == 1 else ""

    async def read_line(self) -> str:
        """Read a line, with the editing of the terminal itself."""
        return (await self._read()).decode(errors="replace").rstrip("\r\n")

    async def _read(self) -> bytes:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)
        return os.read(self._fd, 65_536)

    @contextmanager
    def _single_keys(self) -> Iterator[None]:
        before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd, termios.TCSADRAIN)  # keeps the keys pressed since the question was shown
        try:
            yield
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)
