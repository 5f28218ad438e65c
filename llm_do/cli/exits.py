"""How the program ends: one code for each way, and a message on standard error."""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from typing import Any

import click


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
    """An approval was refused, also where the model went on without it."""
    OVER_BUDGET = 5
    TIMED_OUT = 6
    INTERRUPTED = 130


def report(exc: BaseException) -> int:
    """Say on standard error what went wrong, and return the code for it."""
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else Exit.FAILED
    if isinstance(exc, click.exceptions.Exit):
        return exc.exit_code
    if isinstance(exc, BrokenPipeError):
        # Whoever read the output has left. Python would complain once more when it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    if isinstance(exc, click.ClickException):
        exc.show()
        return Exit.USAGE
    if isinstance(exc, click.exceptions.Abort | KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return Exit.INTERRUPTED
    code = code_of(exc)
    text = str(exc) or type(exc).__name__
    known = code is not Exit.FAILED or _is_ours(exc)
    click.echo(f"Error: {text if known else f'{type(exc).__name__}: {text}'}", err=True)
    for note in getattr(exc, "__notes__", ()):
        click.echo(f"  {note}", err=True)
    return code


def _is_ours(exc: BaseException) -> bool:
    from ..errors import LlmDoError  # noqa: PLC0415 - here, where something of ours ran already

    return isinstance(exc, LlmDoError)


def code_of(exc: BaseException) -> Exit:
    """The code for an error."""
    from .. import errors  # noqa: PLC0415

    table: list[tuple[Any, Exit]] = [
        ((errors.WorkerFileError, errors.RuleError, errors.ProjectCodeError, errors.DuplicateEntryError), Exit.INVALID),
        ((errors.ApprovalDenied, errors.RunEnded), Exit.REFUSED),
        (errors.CallTimeout, Exit.TIMED_OUT),
        ((errors.LimitExceeded, errors.DepthLimitError), Exit.OVER_BUDGET),
        ((errors.ArgumentError, errors.UnknownEntryError, errors.ModelChoiceError), Exit.USAGE),
        (KeyboardInterrupt, Exit.INTERRUPTED),
    ]
    return next((code for kinds, code in table if isinstance(exc, kinds)), Exit.FAILED)
