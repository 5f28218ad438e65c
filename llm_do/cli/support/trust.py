"""Trusted projects, and the question before the code of others runs."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from importlib.machinery import all_suffixes
from itertools import islice
from pathlib import Path

import click

from ...machine.files import foreign_part, own_users, part_open_to_all
from ...projects.layout import CODE, deciding_files
from ..terminal.error_text import escape
from .exits import Refusal

KIND = "project"
"""The kind of the remembered answers. Their subjects are the real paths of projects."""
_MOST_FOLDERS = 1000


def is_trusted(root: Path) -> bool:
    """Return whether the user trusts a project."""
    from ...machine.remembered import is_remembered  # noqa: PLC0415 - only for untrusted projects

    return is_remembered(KIND, str(root.resolve()))


def trust(root: Path) -> None:
    """Remember that the user trusts a project, unless every user of the machine can change what it runs."""
    from ...machine.remembered import Remembered  # noqa: PLC0415 - only for untrusted projects

    real = root.resolve()
    parts = (part_open_to_all(path, real) for path in (real, *deciding_files(real)))
    if (part := next(filter(None, parts), None)) is not None:
        status = part.stat()
        # A folder for all users, such as /tmp, stays one.
        is_shared = status.st_uid not in own_users() or (part == real and bool(status.st_mode & stat.S_ISVTX))
        way_out = "Move it to a folder of yours." if is_shared else f"First: chmod o-w {shlex.quote(str(part))}"
        raise Refusal(
            f"{part} can be written by every user of this machine, so a yes to {real} is not remembered. {way_out}"
        )
    Remembered.load().add(KIND, str(real))


def trust_or_explain(root: Path) -> None:
    """Remember that the user trusts a project, or print why the answer is not remembered."""
    from ...errors import RememberedError  # noqa: PLC0415 - only for untrusted projects

    try:
        trust(root)
    except (Refusal, RememberedError) as exc:
        click.echo(f"Note: {escape(exc)}", err=True)


def refuse_foreign(root: Path) -> None:
    """Refuse a project that was found, not named, if another user could have written what it runs."""
    _refuse_foreign(root, [root, *deciding_files(root)], root)


def refuse_foreign_code(folder: Path) -> None:
    """Refuse code of another user beside a lone worker's file, whoever owns the folder."""
    for name in CODE:
        _refuse_foreign(folder, [folder / name], folder / Path(name).parts[0])


def _refuse_foreign(root: Path, parts: list[Path], top: Path) -> None:
    part = next(filter(None, (foreign_part(part, top, own_users()) for part in parts)), None)
    if part is not None and not is_trusted(root):
        raise Refusal(
            f"The project in {root} is not used: {part} belongs to another user, and its code would run as you. "
            f"{_how_to_trust(root)}"
        )


def confirm_code(root: Path, command: str) -> bool:
    """Ask once before a read-only command imports the code of a project, and return whether it is trusted.

    Without a terminal, only print a note.
    """
    if not _has_code(root):
        return False
    if is_trusted(root):
        return True
    what = f"`llm-do {command}` imports the Python code of {escape(root)}, which can do everything that you can."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        click.echo(f"Note: {what} Without a terminal, there is no question; `llm-do trust` answers it.", err=True)
        return False
    if not click.confirm(f"{what}\nDo you trust this project?", default=False, err=True):
        raise Refusal(
            "The project is not trusted, so its code was not run; `llm-do list` runs no code. " + _how_to_trust(root)
        )
    trust_or_explain(root)
    return True


def _how_to_trust(root: Path) -> str:
    return f"If you trust it: llm-do trust {shlex.quote(str(root))}"


def _has_code(root: Path) -> bool:
    """Return whether Python could import anything in a project. A large project counts as having code."""
    endings = tuple(all_suffixes())
    # Links are followed, as Python does, also into hidden folders. A circular one ends at the limit.
    for number, (_, _, files) in enumerate(islice(os.walk(root, followlinks=True), _MOST_FOLDERS + 1)):
        if number == _MOST_FOLDERS or any(name.endswith(endings) for name in files):
            return True
    return False
