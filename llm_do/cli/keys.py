"""Keys from the terminal, in an event loop: a wait for one can be cancelled, and the terminal is as it was before."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


class Keyboard:
    """The terminal of the process, wherever standard input comes from."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._typed = ""
        """Keys that came together with one that was read."""

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
        self._typed = ""
        termios.tcflush(self._fd, termios.TCIFLUSH)

    async def key(self) -> str:
        """One key, without waiting for the end of a line. Ctrl-C interrupts as ever."""
        if not self._typed:
            with self._single_keys():
                self._typed = (await self._read(8)).decode(errors="replace")
        key = self._typed[:1]
        # One key that is not a letter, such as an arrow, is several characters.
        self._typed = "" if key == "\x1b" else self._typed[1:]
        return key

    async def line(self) -> str:
        """A line, with the editing that the terminal itself has."""
        typed, self._typed = self._typed, ""
        if not typed.endswith(("\r", "\n")):
            typed += (await self._read(65536)).decode(errors="replace")
        return typed.rstrip("\r\n")

    async def _read(self, size: int) -> bytes:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)
        return os.read(self._fd, size)

    @contextmanager
    def _single_keys(self) -> Iterator[None]:
        before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd, termios.TCSADRAIN)  # what was typed since the question came up is an answer
        try:
            yield
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)
