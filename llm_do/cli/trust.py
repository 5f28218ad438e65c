"""Which projects the user trusts: a question before their code runs, and `llm-do trust`."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.machinery import all_suffixes
from itertools import islice
from pathlib import Path

import click

from ..fileio import foreign_part, own_users
from .light import find_root

_KIND = "project"
"""The kind of the remembered answers. Their subjects are the real paths of projects."""
_MOST_FOLDERS = 1000


@click.command("trust")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path), metavar="[DIRECTORY]")
@click.option("--list", "listed", is_flag=True, help="List the projects that are trusted.")
@click.option("--remove", is_flag=True, help="Trust it no more.")
@click.pass_context
def trust_command(ctx: click.Context, /, folder: Path | None, listed: bool, remove: bool) -> None:
    """Trust a project.

    DIRECTORY is its folder; without one, it is the project of this folder. Then it may belong to another user, and
    `check`, `show` and `rules` import its code without a question. What `llm-do new` makes is trusted.

    Answers are kept in a file of yours, outside of all projects.
    """
    from ..remembered import Remembered  # noqa: PLC0415 - it imports pydantic

    remembered = Remembered.load()
    if listed:
        for subject in remembered.subjects(_KIND):
            click.echo(subject)
        return
    root = (ctx.find_root().obj or Path()).absolute() / folder if folder is not None else _found(ctx)
    subject = str(root.resolve())
    if remove:
        if not remembered.has(_KIND, subject):
            raise click.UsageError(f"{subject} is not trusted. `llm-do trust --list` shows which are.")
        remembered.remove(_KIND, subject)
        click.echo(f"Not trusted any more: {subject}", err=True)
        return
    if not root.is_dir():
        raise click.UsageError(f"There is no folder {subject}.")
    remembered.add(_KIND, subject)
    click.echo(f"Trusted: {subject}", err=True)


def _found(ctx: click.Context) -> Path:
    start = (ctx.find_root().obj or Path()).absolute()
    if (root := find_root(start)) is None:
        raise click.UsageError(f"There is no project in {start} or above it. Name its folder.")
    return root


def is_trusted(root: Path) -> bool:
    """Whether the user trusts a project. Who has no home has said yes to none."""
    from ..remembered import Remembered, state_folder  # noqa: PLC0415 - it imports pydantic

    return state_folder() is not None and Remembered.load().has(_KIND, str(root.resolve()))


def trust(root: Path) -> None:
    """Remember that the user trusts a project."""
    from ..remembered import Remembered  # noqa: PLC0415 - it imports pydantic

    Remembered.load().add(_KIND, str(root.resolve()))


def refuse_foreign(root: Path) -> None:
    """Refuse a project that was found and not named, where another user could have written what it runs."""
    _refuse_foreign(
        root, [root / name for name in ("", "workers", "llm-do.toml", "tools.py", "tools/__init__.py")], root
    )


def refuse_foreign_code(folder: Path) -> None:
    """Refuse code of another user beside a lone worker, which brings it along. Who owns the folder does not matter."""
    _refuse_foreign(folder, [folder / "tools.py"], folder / "tools.py")
    _refuse_foreign(folder, [folder / "tools" / "__init__.py"], folder / "tools")


def _refuse_foreign(root: Path, parts: list[Path], top: Path) -> None:
    part = next(filter(None, (foreign_part(part, top, own_users()) for part in parts)), None)
    if part is not None and not is_trusted(root):
        raise click.UsageError(
            f"The project in {root} is not used: {part} belongs to another user, and what it says would run as you. "
            f"If you trust it: llm-do trust {shlex.quote(str(root))}"
        )


def ask_before_code(root: Path, command: str) -> None:
    """Ask once before a command that only looks at a project imports its code. Without a terminal, say that it does."""
    if not _has_code(root) or is_trusted(root):
        return
    what = f"`llm-do {command}` imports the Python code of {root}, which can do all that you can."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        click.echo(f"Note: {what} It is not asked about without a terminal; `llm-do trust` says yes once.", err=True)
        return
    if not click.confirm(f"{what}\nDo you trust this project?", default=False, err=True):
        raise click.UsageError("The project is not trusted, so nothing of it was run. `llm-do list` runs no code.")
    trust(root)


def _has_code(root: Path) -> bool:
    """Whether there is anything in a project that Python could import. A large one is not searched to its end."""
    endings = tuple(all_suffixes())
    # Also through links, which may lead to hidden folders: Python follows them. One that leads round ends at the limit.
    for number, (_, _, files) in enumerate(islice(os.walk(root, followlinks=True), _MOST_FOLDERS + 1)):
        if number == _MOST_FOLDERS or any(name.endswith(endings) for name in files):
            return True
    return False
