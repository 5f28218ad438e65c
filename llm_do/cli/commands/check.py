"""`llm-do check`: the problems of a project that can be found without running it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from ..support.projects import open_project
from ..terminal.errors import Exit, escape
from ..terminal.stdout import count, print_json

if TYPE_CHECKING:
    from ..support.project_check.project import Problem

FORMAT = 1
"""The version of the `--json` output. New keys may be added; none changes its meaning."""


@click.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.pass_context
def check_command(ctx: click.Context, /, as_json: bool, strict: bool) -> None:
    """Check all files of a project.

    It reads the files, imports the code of the project, builds the workers, and compares rules with the tools that
    they name. It starts no server and calls no model.

    \b
    Errors    cannot work: exit code 3.
    Warnings  will not work here, or perhaps not as intended: a missing key, a cycle.
    Notes     are worth knowing: an unused function, a missing folder.

    \b
    --json prints {"version", "ok", "project", "workers", "functions", "errors", "warnings",
    "problems": [{"level", "code", "message", "file", "line", "names"}]}. `level` is error, warning
    or note, `file` is relative to the project, and file, line and names may be null or empty.
    """  # noqa: D301 - \b is for click
    from ..support.project_check.check import check_project  # noqa: PLC0415 - it imports everything

    registry = open_project(ctx, asks=True)
    findings = check_project(registry, strict=strict)
    counts = {level: sum(problem.level == level for problem in findings.problems) for level in ("error", "warning")}
    if as_json:
        print_json(
            {
                "version": FORMAT,
                "ok": counts["error"] == 0,
                "project": str(registry.root),
                "workers": findings.workers,
                "functions": findings.functions,
                "errors": counts["error"],
                "warnings": counts["warning"],
                "problems": [problem._asdict() for problem in findings.problems],
            }
        )
    else:
        for problem in findings.problems:
            click.echo(_line(problem))
        have = f"{count(findings.workers, 'worker')}, {count(findings.functions, 'function')}"
        click.echo(f"{have}: {count(counts['error'], 'error')}, {count(counts['warning'], 'warning')}.")
    if counts["error"]:
        ctx.exit(Exit.INVALID)


def _line(problem: Problem) -> str:
    place = "" if problem.file is None else problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    colour = {"error": "red", "warning": "yellow"}.get(problem.level)
    # click leaves colours out without a terminal, but ignores NO_COLOR.
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    level = click.style(problem.level, fg=colour) if colour is not None and has_colours else problem.level
    return f"{escape(place)}{': ' if place else ''}{level}: {escape(problem.message)}"
