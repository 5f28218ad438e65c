"""`llm-do check`: everything that can be found wrong with a project without running it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from ..support.exits import Exit
from ..support.projects import open_project

if TYPE_CHECKING:
    from ..support.project_check.problem import Problem

FORMAT = 1
"""The version of what `--json` prints. New keys may be added to it; none changes its meaning."""


@click.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.pass_context
def check_command(ctx: click.Context, /, as_json: bool, strict: bool) -> None:
    """Check all files of a project.

    Files are read, code of the project is imported, workers are built, and rules are compared with the tools that
    they speak of. No server is started, and no model is asked.

    \b
    Errors    what cannot work: exit code 3.
    Warnings  what will not work here, or perhaps not as it was meant: a missing key, a cycle.
    Notes     what nobody uses, and the like.

    \b
    --json prints {"version", "ok", "project", "workers", "functions", "errors", "warnings",
    "problems": [{"level", "code", "message", "file", "line", "names"}]}. `level` is error, warning
    or note, `file` is relative to the project, and file, line and names may be null or empty.
    """  # noqa: D301 - \b is for click
    from ..support.project_check.check import check_project  # noqa: PLC0415 - with it comes everything

    registry = open_project(ctx, asks=True)
    found = check_project(registry, strict=strict)
    counts = {level: sum(problem.level == level for problem in found.problems) for level in ("error", "warning")}
    if as_json:
        click.echo(
            json.dumps(
                {
                    "version": FORMAT,
                    "ok": counts["error"] == 0,
                    "project": str(registry.root),
                    "workers": found.workers,
                    "functions": found.functions,
                    "errors": counts["error"],
                    "warnings": counts["warning"],
                    "problems": [problem._asdict() for problem in found.problems],
                },
                indent=2,
            )
        )
    else:
        for problem in found.problems:
            click.echo(_line(problem))
        have = f"{_count(found.workers, 'worker')}, {_count(found.functions, 'function')}"
        click.echo(f"{have}: {_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')}.")
    if counts["error"]:
        ctx.exit(Exit.INVALID)


def _line(problem: Problem) -> str:
    from ...privacy.display import visible  # noqa: PLC0415 - it imports pydantic

    place = "" if problem.file is None else problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    colour = {"error": "red", "warning": "yellow"}.get(problem.level)
    # click leaves colours out where nobody would see them, but knows nothing of NO_COLOR.
    level = problem.level if colour is None or not _coloured() else click.style(problem.level, fg=colour)
    return f"{visible(place)}{': ' if place else ''}{level}: {visible(problem.message)}"


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
