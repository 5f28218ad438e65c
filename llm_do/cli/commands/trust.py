"""Which projects the user trusts: a question before their code runs, and `llm-do trust`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ...projects.discovery import find_root
from ...projects.layout import CONFIG, WORKERS
from ..support.exits import Refusal
from ..support.trust import _KIND, _shown, trust


@click.command("trust")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path), metavar="[DIRECTORY]")
@click.option("--list", "listed", is_flag=True, help="List the projects that are trusted.")
@click.option("--remove", is_flag=True, help="Trust it no more.")
@click.pass_context
def trust_command(ctx: click.Context, /, folder: Path | None, listed: bool, remove: bool) -> None:
    """Trust a project.

    DIRECTORY is its folder; without one, it is the project of this folder. Then it may belong to another user, and
    `check`, `show` and `rules` import its code without a question. What `llm-do new` makes is trusted. A project that
    every user of this machine can write is refused.

    Answers are kept in a file of yours, outside of all projects.
    """
    from ...machine.remembered import Remembered  # noqa: PLC0415 - it imports pydantic

    if listed and (remove or folder is not None):
        raise click.UsageError("--list goes with neither --remove nor a folder. Leave them out.")
    remembered = Remembered.load()
    if listed:
        for subject in remembered.subjects(_KIND):
            click.echo(_shown(subject))
        return
    root = (ctx.find_root().obj or Path()).absolute() / folder if folder is not None else _found(ctx)
    subject = str(root.resolve())
    if remove:
        if not remembered.has(_KIND, subject):
            raise click.UsageError(f"{subject} is not trusted. `llm-do trust --list` shows which are.")
        remembered.remove(_KIND, subject)
        click.echo(f"Not trusted any more: {_shown(subject)}", err=True)
        return
    if not root.is_dir():
        raise click.UsageError(f"There is no folder {subject}.")
    _check_project(root.resolve())
    trust(root)
    click.echo(f"Trusted: {_shown(subject)}", err=True)


def _found(ctx: click.Context) -> Path:
    start = (ctx.find_root().obj or Path()).absolute()
    if (root := find_root(start)) is None:
        raise Refusal(f"There is no project in {start} or above it. Name its folder.")
    return root


def _check_project(root: Path) -> None:
    """Refuse a folder in which llm-do runs nothing: no project, and no code of a lone worker."""
    around = find_root(root)
    if around == root or any(root.glob("*.py")):
        return
    where = "Name its folder." if around is None else f"The project around it: llm-do trust {shlex.quote(str(around))}"
    raise Refusal(f"{root} is no project: it has no {WORKERS}/, no {CONFIG} and no Python file. {where}")
