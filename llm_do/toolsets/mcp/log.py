"""The standard error of an MCP server: a log in the user's state folder, and its end for error messages."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...machine.remembered import state_folder
from ...privacy.display import visible

LARGEST_LOG = 1_000_000  # bytes: a larger one starts anew
LONGEST_LINE = 2_000
LONGEST_READ = 65536  # bytes of a line: the rest is left out
CHUNK = 16384
PAUSE_SECONDS = 0.05
"""The pause between reads from a server that writes without end, to leave the event loop to other tasks."""
SHOWN_LINES = 5
SHOWN_CHARACTERS = 600


def log_path(project: Path, server: str) -> Path | None:
    """Return the log file of a server of a project, which need not exist; `None` without a home folder."""
    folder = state_folder()
    if folder is None:
        return None
    place = project.absolute()
    digest = hashlib.sha256(f"{place}\0{server}".encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", server)[:40].strip("-")
    return folder / "mcp" / f"{name}-{digest}.log"


class ServerLog:
    """Writes the lines of a server to its log, without secrets, and remembers the last ones.

    The server writes to a pipe, so it can neither fill the disk nor write to a terminal.
    """

    def __init__(self, path: Path | None, redact: Callable[[str], str]) -> None:
        self.path = path
        self._redact = redact
        self._last: deque[str] = deque(maxlen=SHOWN_LINES)
        self._rest = b""
        self._skipping = False
        """True while the rest of a line that is too long is left out."""
        self._pause: asyncio.TimerHandle | None = None
        self._reading: int | None = None
        self._file: int | None = None

    @contextmanager
    def stream(self) -> Iterator[int]:
        """Yield a descriptor for the standard error of one process, and read from it until the block ends."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        self._reading, self._file = reading, self._open()
        self._last.clear()
        loop.add_reader(reading, self._read_and_pause)
        try:
            yield writing
        finally:
            os.close(writing)
            self.drain()
            self._add([self._rest])
            self._rest, self._skipping = b"", False
            if self._pause is not None:
                self._pause.cancel()
            loop.remove_reader(reading)
            os.close(reading)
            if self._file is not None:
                os.close(self._file)
            self._reading = self._file = self._pause = None

    def drain(self) -> None:
        """Read what the server has written so far, up to a bound."""
        for _ in range(16):
            if not self._read_part():
                return

    def _read_and_pause(self) -> None:
        """Read one part, and what may follow after a pause."""
        assert self._reading is not None
        loop = asyncio.get_running_loop()
        if (size := self._read_part()) is None:  # no process has the other end any more
            loop.remove_reader(self._reading)
        elif size == CHUNK:
            loop.remove_reader(self._reading)
            self._pause = loop.call_later(PAUSE_SECONDS, loop.add_reader, self._reading, self._read_and_pause)

    def _read_part(self) -> int | None:
        """Read one part, and return its size; `None` at the end."""
        if self._reading is None:
            return None
        try:
            part = os.read(self._reading, CHUNK)
        except BlockingIOError:
            return 0
        first, *others = part.split(b"\n")
        if self._skipping and others:
            self._skipping = False
            self._rest, *others = others  # without the end of the long line: it may begin with half of a secret
        elif not self._skipping:
            self._rest += first
        self._add([self._rest, *others[:-1]] if others else [])
        self._rest = others[-1] if others else self._rest
        if len(self._rest) > LONGEST_READ:
            self._add([self._rest])
            self._rest, self._skipping = b"", True
        return len(part) or None

    def end(self) -> str:
        """Return the last lines for an error message; an empty text if there are none."""
        self.drain()
        lines = [*self._last, *self._clean([self._rest])]
        if not lines:
            return ""
        text = " | ".join(lines[-SHOWN_LINES:])
        ending = text if len(text) <= SHOWN_CHARACTERS else f"...{text[-SHOWN_CHARACTERS:]}"
        where = f" (all of it: {self.path})" if self.path is not None else ""
        return f" Its standard error ends: {ending}{where}"

    def _clean(self, lines: list[bytes]) -> list[str]:
        # Secrets are removed before lines are truncated: half of one would not be found.
        text = visible(self._redact(b"\n".join(lines).decode(errors="replace")), keep="\t\n")
        return [short for line in text.split("\n") if (short := line.rstrip()[:LONGEST_LINE])]

    def _add(self, lines: list[bytes]) -> None:
        texts = self._clean(lines)
        self._last.extend(texts)
        if self._file is not None and texts:
            with suppress(OSError):
                if os.fstat(self._file).st_size > LARGEST_LOG:
                    os.ftruncate(self._file, 0)
                os.write(self._file, "".join(f"{text}\n" for text in texts).encode())

    def _open(self) -> int | None:
        """Open the file for adding lines. If it cannot be written, the server runs without it."""
        if self.path is None:
            return None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self.path, flags, 0o600)
        except OSError:
            self.path = None
            return None
