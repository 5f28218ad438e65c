"""Standard output, which is for the answer alone."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import click

from ...machine.files import write_atomically
from .error_text import escape_controls


class ReaderGone(Exception):
    """The reader of the output has gone, and no message could reach it."""


class Output:
    """The destination of answers."""

    def __init__(self, file: Path | None = None) -> None:
        self._stream: TextIO = sys.stdout
        self._file = file
        if file is not None:
            _check_file(file)

    def write_answer(self, text: str) -> None:
        """Write the answer: unchanged to a file or a program, with control characters escaped to a terminal."""
        text = text if text.endswith("\n") else f"{text}\n"
        if self._file is None:
            self.write(escape_controls(text) if self._stream.isatty() else text)
            return
        try:
            _write_file(self._file, text)
        except OSError as exc:
            self.write(text)  # an answer that was paid for is not lost
            raise click.ClickException(f"{self._file} cannot be written: {exc.strerror}.") from exc

    def write(self, text: str) -> None:
        """Write to standard output itself."""
        try:
            self._stream.write(text.encode(errors="backslashreplace").decode())
            self._stream.flush()
        except OSError as exc:
            redirect_to_null(self._stream)
            if isinstance(exc, BrokenPipeError):
                raise ReaderGone from None
            raise


def redirect_to_null(stream: TextIO) -> None:
    """Redirect a stream that takes no more output. Otherwise closing it would fail, with an exit code of Python's."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check_file(path: Path) -> None:
    """Reject a path that cannot be written, before anything runs."""
    if path.is_dir():
        raise click.UsageError(f"{path} is a folder. Give --output a file.")
    if not path.exists() and not path.absolute().parent.is_dir():
        raise click.UsageError(f"{path} cannot be written: there is no folder {path.parent}.")


def _write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: a full disk leaves the previous one."""
    data = text.encode(errors="backslashreplace")
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):  # a pipe, a terminal, a device
        target.write_bytes(data)
        return
    write_atomically(target, data, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_reader_gone(exc: BaseException) -> bool:
    """Return whether an error means that the reader of the output has gone."""
    return isinstance(exc, ReaderGone) or (isinstance(exc, OSError) and exc.errno == errno.EPIPE)
