"""Reports on standard output: JSON, tables and counts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """Print the JSON of a report."""
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
