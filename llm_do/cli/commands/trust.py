"""`llm-do trust`: the projects whose code may run without a question."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ...projects.discovery import find_root
from ...projects.layout import CONFIG, WORKERS
from ..support.projects import TRUST, start_folder, trust
from ..terminal.errors import Refusal, escape


@click.command("trust")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path), metavar="[DIRECTORY]")
@click.option("--list", "list_all", is_flag=True, help="List the trusted projects.")
@click.option("--remove", is_flag=True, help="Stop trusting it.")
@click.pass_context
def trust_command(ctx: click.Context, /, folder: Path | None, list_all: bool, remove: bool) -> None:
    """Trust a project.

    DIRECTORY is its folder, by default the project of the current folder. A trusted project may belong to another
    user, and `check`, `show` and `rules` import its code without a question. Projects made by `llm-do new` are trusted.
    A project that every user of this machine can write is refused.

    The answers are kept in a file of yours, outside all projects.
    """
    from ...machine.remembered import Remembered  # noqa: PLC0415 - help does not need it

    if list_all and (remove or folder is not None):
        raise click.UsageError("--list takes neither --remove nor a folder. Leave them out.")
    remembered = Remembered.load()
    if list_all:
        for subject in remembered.subjects(TRUST):
            click.echo(escape(subject))
        return
    start = start_folder(ctx)
    root = find_root(start) if folder is None else start / folder
    if root is None:
        raise Refusal(f"There is no project in {start} or above it. Name its folder.")
    subject = str(root.resolve())
    if remove:
        if not remembered.has(TRUST, subject):
            raise click.UsageError(f"{subject} is not trusted. `llm-do trust --list` shows which are.")
        remembered.remove(TRUST, subject)
        click.echo(f"No longer trusted: {escape(subject)}", err=True)
        return
    if not root.is_dir():
        raise click.UsageError(f"There is no folder {subject}.")
    _check_project(root.resolve())
    trust(root)
    click.echo(f"Trusted: {escape(subject)}", err=True)


def _check_project(root: Path) -> None:
    """Refuse a folder in which llm-do runs nothing: neither a project nor the code of a lone worker."""
    enclosing = find_root(root)
    if enclosing == root or any(root.glob("*.py")):
        return
    where = (
        "Name its folder." if enclosing is None else f"To trust its project: llm-do trust {shlex.quote(str(enclosing))}"
    )
    raise Refusal(f"{root} is not a project: it has no {WORKERS}/, no {CONFIG} and no Python file. {where}")
