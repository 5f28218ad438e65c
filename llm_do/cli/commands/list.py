"""`llm-do list`: the workers and functions of a project."""

from __future__ import annotations

import json

import click

from ...projects.discovery import Found, list_entries
from ..support.projects import root_of
from ..terminal.tables import align


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def list_command(ctx: click.Context, /, as_json: bool) -> None:
    """List the workers and functions of a project.

    It reads the files only as far as needed, and runs no code of the project. `llm-do check` checks them.
    """
    root = root_of(ctx)
    entries = list(list_entries(root))
    if as_json:
        click.echo(json.dumps([entry._asdict() for entry in entries], indent=2))
        return
    if not entries:
        click.echo(
            f"There are no workers in {_clean(str(root))} yet. Make one with `llm-do new worker NAME`.", err=True
        )
        return
    rows = [
        (
            _clean(entry.name),
            entry.kind,
            _clean(entry.model or "-"),
            _clean(entry.file if entry.line is None else f"{entry.file}:{entry.line}"),
            _clean(_about(entry)),
        )
        for entry in entries
    ]
    for line in align([("NAME", "KIND", "MODEL", "FILE", "DESCRIPTION"), *rows]):
        click.echo(line)


def _about(entry: Found) -> str:
    if entry.problem:
        return f"({entry.problem})"
    first = (entry.description or "").strip().partition("\n")[0]
    return f"{first} (takes no input)".strip() if entry.input == "none" else first


def _clean(text: str) -> str:
    r"""Return a text with control characters escaped, as in `\x1b`. Unlike `visible`, this does not import pydantic."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
