"""`llm-do show`: a worker or a function as a model sees it."""

from __future__ import annotations

import click

from ..support.options import entry_names
from ..support.projects import open_worker
from ..terminal.stdout import print_json


@click.command("show")
@click.argument("name", shell_complete=entry_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def show_command(ctx: click.Context, /, name: str, as_json: bool) -> None:
    """Show a worker as a model sees it.

    NAME is a worker, a worker's file, or a function. It shows the instructions, the tools with their schemas, the
    workers that it may call, the rules and their places, the files, the model and the reason for it, and the limits.
    It starts no server and calls no model.
    """
    from ..support.descriptions import describe, describe_as_text  # noqa: PLC0415 - it imports everything

    registry, name = open_worker(ctx, name, asks=True)
    description = describe(registry, registry[name])
    if as_json:
        print_json(description)
    else:
        click.echo(describe_as_text(description))
