"""`llm-do list`: the workers and functions of a project."""

from __future__ import annotations

import click

from ...projects.discovery import Found, list_entries
from ..support.projects import root_of
from ..terminal.stdout import align, print_json


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
        print_json([entry._asdict() for entry in entries])
        return
    if not entries:
        where = _clean(str(root))
        click.echo(f"There are no workers in {where} yet. Make one with `llm-do new worker NAME`.", err=True)
        return
    for line in align([("NAME", "KIND", "MODEL", "FILE", "DESCRIPTION"), *map(_row, entries)]):
        click.echo(line)


def _row(entry: Found) -> tuple[str, ...]:
    about = (entry.description or "").strip().partition("\n")[0]
    if entry.problem:
        about = f"({entry.problem})"
    elif entry.input == "none":
        about = f"{about} (takes no input)".strip()
    file = entry.file if entry.line is None else f"{entry.file}:{entry.line}"
    return tuple(map(_clean, (entry.name, entry.kind, entry.model or "-", file, about)))


def _clean(text: str) -> str:
    r"""Return a text with control characters escaped, as in `\x1b`. Unlike `visible`, this does not import pydantic."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
