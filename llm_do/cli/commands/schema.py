"""`llm-do schema`: the format of worker files, for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..support.options import output_option


@click.command("schema")
@output_option("Write it to a file instead of standard output.")
def schema_command(output: Path | None) -> None:
    """Print the JSON Schema of worker files.

    With it, an editor completes and checks YAML files, and the front matter of Markdown files.
    """
    from ...definitions.definition import json_schema  # noqa: PLC0415 - it imports pydantic

    text = json.dumps(json_schema(), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise click.ClickException(f"{output} cannot be written: {exc.strerror}.") from exc
