"""The command line. What needs no more than names answers before anything else is imported."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from .help import COMMANDS, COMPLETION_VARIABLE, HELP


def main() -> None:
    """The program `llm-do`."""
    try:
        _open_streams()
        _answer()
    except SystemExit as exc:
        _leave(exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1)
    except KeyboardInterrupt:  # while something was imported
        sys.stderr.write("Interrupted.\n")
        sys.stderr.flush()
        os._exit(130)
    except OSError as exc:  # of the help; what else is written tells it itself
        _leave(_tell_unwritten(exc))


def _open_streams() -> None:
    """A program may be started without any of its streams. Then nobody reads or writes there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave(code: int) -> NoReturn:
    """End the process. A thread that could not be stopped would keep it for as long as it runs: it is left behind."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        code = code or _tell_unwritten(exc)
        from .terminal.stdout import abandon  # noqa: PLC0415 - it imports more than an end needs

        abandon(sys.stdout)
    if threading.active_count() == 1:
        sys.exit(code)
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def _tell_unwritten(exc: OSError) -> int:
    """Say that there is no room for the output, and return the code for it. A reader that left is no error."""
    if isinstance(exc, BrokenPipeError):
        return 0
    sys.stderr.write(f"Error: the output cannot be written: {exc.strerror}.\n")
    return 1


def _answer() -> None:
    if sys.argv[1:] in (["--help"], ["-h"], []) and COMPLETION_VARIABLE not in os.environ:
        sys.stdout.write(HELP)
        sys.exit()
    else:
        from .main import run_program  # noqa: PLC0415 - click is most of the time that help takes

        run_program()


__all__ = ["COMMANDS", "main"]
