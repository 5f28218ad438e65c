"""`llm-do show`: what a model will see of a worker or a function."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..support.completers import entry_names
from ..support.projects import open_worker

if TYPE_CHECKING:
    from ..support.descriptions import Section


@click.command("show")
@click.argument("name", shell_complete=entry_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def show_command(ctx: click.Context, /, name: str, as_json: bool) -> None:
    """Show what a model will see of a worker.

    NAME is a worker, the file of one, or a function. Told are its instructions, its tools with their
    schemas, whom it may call, the rules and where they stand, its files, its model and why it is that one, and its
    limits. No server is started, and no model is asked.
    """
    from ..support.descriptions import describe, sections  # noqa: PLC0415 - with it comes everything

    registry, name = open_worker(ctx, name, asks=True)
    described = describe(registry, registry[name])
    if as_json:
        click.echo(json.dumps(described, indent=2, default=str))
        return
    click.echo("\n\n".join(_section(section) for section in sections(described)))


def _section(section: Section) -> str:
    from ...privacy.display import visible  # noqa: PLC0415 - it imports pydantic

    title, lines = visible(section[0]), section[1]
    text = "\n".join(line for each in lines for line in visible(each, keep="\n\t").split("\n"))
    return title if not lines else f"{title}\n" + "\n".join(f"  {line}".rstrip() for line in text.split("\n"))
