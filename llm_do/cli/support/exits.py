"""Exit codes, and errors on standard error."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import click

from ..terminal.error_text import describe_error, safe_text


class Exit(IntEnum):
    """The exit codes of `llm-do`."""

    OK = 0
    FAILED = 1
    """A worker, a function, a model or its provider failed."""
    USAGE = 2
    """The command line is wrong, or the input does not fit."""
    INVALID = 3
    """A file of the project is wrong."""
    REFUSED = 4
    """An approval was refused, even if the model went on without it."""
    OVER_BUDGET = 5
    TIMED_OUT = 6
    INTERRUPTED = 130


class Refusal(click.ClickException):
    """An error of a well-formed command: printed without the command's usage."""

    exit_code = Exit.USAGE


def report_error(exc: BaseException, redact: Callable[[str], str] = str) -> int:
    """Print an error on standard error without its secrets, and return the exit code."""
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else Exit.FAILED
    if isinstance(exc, click.exceptions.Exit):
        return exc.exit_code
    if isinstance(exc, click.exceptions.Abort | KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return Exit.INTERRUPTED
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        exc.show()
        return Exit.USAGE
    if isinstance(exc, click.UsageError) and exc.ctx is not None:
        click.echo(f"{exc.ctx.get_usage()}\nTry '{exc.ctx.command_path} --help' for help.\n", err=True)
    click.echo(f"Error: {describe_error(exc, redact=redact)}", err=True)
    for note in getattr(exc, "__notes__", ()):
        click.echo(f"  {safe_text(note, redact)}", err=True)
    return exc.exit_code if isinstance(exc, click.ClickException) else exit_code_of(exc)


def exit_code_of(exc: BaseException) -> Exit:
    """Return the exit code for an error."""
    from ... import errors  # noqa: PLC0415

    if isinstance(exc, errors.ModelChoiceError) and isinstance(exc.__cause__, errors.ProjectCodeError):
        return Exit.INVALID  # the project's code that makes the model is wrong
    table: list[tuple[Any, Exit]] = [
        ((errors.WorkerFileError, errors.RuleError, errors.ProjectCodeError, errors.DuplicateEntryError), Exit.INVALID),
        ((errors.ApprovalDenied, errors.RunEnded), Exit.REFUSED),
        (errors.CallTimeout, Exit.TIMED_OUT),
        ((errors.LimitExceeded, errors.DepthLimitError), Exit.OVER_BUDGET),
        ((errors.ArgumentError, errors.UnknownEntryError, errors.ModelChoiceError), Exit.USAGE),
        (click.ClickException, Exit.USAGE),
        (KeyboardInterrupt, Exit.INTERRUPTED),
    ]
    return next((code for kinds, code in table if isinstance(exc, kinds)), Exit.FAILED)
