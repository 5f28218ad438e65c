"""Standard output, which gets only the answer of a run or the report of a command."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import click

from ...machine.files import write_atomically
from .errors import escape_controls


class ReaderGone(Exception):
    """The reader of the output is gone, so no message can reach it."""


class Output:
    def __init__(self, file: Path | None = None) -> None:
        """Reject a file that cannot be written, before anything runs."""
        self._stream: TextIO = sys.stdout
        self._file = file
        if file is not None and file.is_dir():
            raise click.UsageError(f"{file} is a folder. Give --output a file.")
        if file is not None and not file.exists() and not file.absolute().parent.is_dir():
            raise click.UsageError(f"{file} cannot be written: there is no folder {file.parent}.")

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
        try:
            self._stream.write(text.encode(errors="backslashreplace").decode())
            self._stream.flush()
        except OSError as exc:
            redirect_to_null(self._stream)
            if isinstance(exc, BrokenPipeError):
                raise ReaderGone from None
            raise


def redirect_to_null(stream: TextIO) -> None:
    """Redirect a stream that takes no more output, since Python would fail to close it and change the exit code."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: a full disk leaves the previous one."""
    data = text.encode(errors="backslashreplace")
    target = path.resolve()
    if not target.exists():
        mask = os.umask(0)
        os.umask(mask)
        write_atomically(target, data, 0o666 & ~mask)
    elif stat.S_ISREG(mode := target.stat().st_mode):
        write_atomically(target, data, stat.S_IMODE(mode))
    else:  # a pipe, a terminal, a device
        target.write_bytes(data)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table: cut to the width of a screen, in full for a file or a pipe."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{size}}" for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def count(number: int, noun: str) -> str:
    """Return a number with its noun, as in "2 errors"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
