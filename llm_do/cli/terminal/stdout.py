"""Standard output, which is for the answer and for nothing else."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

import click

from ...machine.files import put_in_place, temporary_beside
from .error_text import readable


class ReaderLeft(Exception):
    """Whoever read the output has gone. There is nobody to tell."""


class Output:
    """Where answers go. What the project's own code prints goes to standard error while it runs."""

    def __init__(self, file: Path | None = None) -> None:
        self._stream: TextIO = sys.stdout
        self._file = file
        if file is not None:
            _check_file(file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let nobody else write to it."""
        with redirect_stdout(sys.stderr):
            yield

    def answer(self, text: str) -> None:
        """Give the answer: as it is to a file or a program, and harmless to a terminal."""
        text = text if text.endswith("\n") else f"{text}\n"
        if self._file is None:
            self.write(readable(text) if self._stream.isatty() else text)
            return
        try:
            _write_file(self._file, text)
        except OSError as exc:
            self.write(text)  # what was paid for is not thrown away
            raise click.ClickException(f"{self._file} cannot be written: {exc.strerror}.") from exc

    def write(self, text: str) -> None:
        """Write to standard output itself."""
        try:
            self._stream.write(text.encode(errors="backslashreplace").decode())
            self._stream.flush()
        except OSError as exc:
            abandon(self._stream)
            if isinstance(exc, BrokenPipeError):
                raise ReaderLeft from None
            raise


def abandon(stream: TextIO) -> None:
    """Give up a stream that takes no more. Otherwise Python complains when it closes it, with a code of its own."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check_file(path: Path) -> None:
    """Say before anything runs that there is no place for the answer."""
    if path.is_dir():
        raise click.UsageError(f"{path} is a folder: --output is a file.")
    if not path.exists() and not path.absolute().parent.is_dir():
        raise click.UsageError(f"{path} cannot be written: there is no folder {path.parent}.")


def _write_file(path: Path, text: str) -> None:
    """Write a file, all of it or nothing: a full disk leaves what was there."""
    data = text.encode(errors="backslashreplace")
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not stat.S_ISREG(mode):  # a pipe, a terminal, a device
        target.write_bytes(data)
        return
    with temporary_beside(target, data) as temporary:
        temporary.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        put_in_place(temporary, target, replace=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_reader_gone(exc: BaseException) -> bool:
    """Whether an error of ours is that nobody reads the output any more."""
    return isinstance(exc, ReaderLeft) or (isinstance(exc, OSError) and exc.errno == errno.EPIPE)
