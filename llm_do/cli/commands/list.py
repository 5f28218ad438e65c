"""`llm-do list` and `llm-do show`: what a project has, and what a model will see of it."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import click

from ...projects.discovery import Found, list_entries
from ..support.projects import root_of

if TYPE_CHECKING:
    pass


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def list_command(ctx: click.Context, /, as_json: bool) -> None:
    """List the workers and functions of a project.

    Files are looked at, and no code of the project runs: `llm-do check` says whether they are right.
    """
    root = root_of(ctx)
    found = list(list_entries(root))
    if as_json:
        click.echo(json.dumps([entry._asdict() for entry in found], indent=2))
        return
    if not found:
        click.echo(
            f"There are no workers in {_clean(str(root))} yet. Make one with `llm-do new worker NAME`.", err=True
        )
        return
    for line in _table(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
        click.echo(line)


def _table(found: list[Found], width: int | None) -> list[str]:
    """Aligned columns. A screen gets lines that fit; a file or a pipe gets all there is."""
    rows = [
        (
            _clean(entry.name),
            entry.kind,
            _clean(entry.model or "-"),
            _clean(entry.file if entry.line is None else f"{entry.file}:{entry.line}"),
            _one_line(_about(entry)),
        )
        for entry in found
    ]
    heads = ("NAME", "KIND", "MODEL", "FILE", "DESCRIPTION")
    columns = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ["  ".join(f"{cell:<{size}}" for cell, size in zip(row, columns, strict=True)) for row in (heads, *rows)]
    return [
        line.rstrip() if width is None or len(line.rstrip()) <= width else f"{line[: width - 1]}…" for line in lines
    ]


def _about(entry: Found) -> str:
    if entry.problem:
        return f"({entry.problem})"
    first = (entry.description or "").strip().partition("\n")[0]
    return f"{first} (takes no input)".strip() if entry.input == "none" else first


def _one_line(text: str) -> str:
    """The first line of a text, without what could move a cursor."""
    return _clean(text.strip().partition("\n")[0])


def _clean(text: str) -> str:
    r"""A text in which what could move a cursor is spelled out: `\x1b`. Unlike `visible` it needs no pydantic."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
