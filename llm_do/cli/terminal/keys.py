"""Keys from the terminal, in an event loop: a wait for one can be cancelled, and the terminal is as it was before."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_REST = 0.5
"""Seconds without a key, after which a question takes an answer."""


class Keyboard:
    """The terminal of the process, wherever standard input comes from."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls) -> Keyboard | None:
        """The keyboard, if a person sits in front of it and sees what is asked."""
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return None
        if sys.stdin.isatty():
            return cls(sys.stdin.fileno())
        try:
            return cls(os.open("/dev/tty", os.O_RDONLY))
        except OSError:
            return None

    def forget(self) -> None:
        """Drop what was typed before anybody was asked: it was no answer."""
        termios.tcflush(self._fd, termios.TCIFLUSH)

    async def rest(self) -> None:
        """Drop what is typed until no key came for a moment: who types has not read the question yet."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_REST):
                    await self.key()

    async def key(self) -> str:
        """One key, without waiting for the end of a line; nothing where several came at once, as in a paste.

        Ctrl-C interrupts as ever.
        """
        with self._single_keys():
            if not (typed := await self._read()):
                raise EOFError("the terminal is gone")
        key = typed.decode(errors="replace")
        return key if len(key) == 1 else ""

    async def line(self) -> str:
        """A line, with the editing that the terminal itself has."""
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
        tty.setcbreak(self._fd, termios.TCSADRAIN)  # what was typed since the question came up is an answer
        try:
            yield
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)
