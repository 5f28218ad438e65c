"""The command line. What needs no more than names answers before anything else is imported."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from .commands import COMMANDS, HELP


def main() -> None:
    """The program `llm-do`."""
    try:
        _open_streams()
        _answer()
    except SystemExit as exc:
        _leave(exc)
    except KeyboardInterrupt:  # while something was imported
        sys.stderr.write("Interrupted.\n")
        sys.stderr.flush()
        os._exit(130)
    except BrokenPipeError:  # whoever read the help has seen enough
        os._exit(0)


def _open_streams() -> None:
    """A program may be started without any of its streams. Then nobody reads or writes there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave(end: SystemExit) -> NoReturn:
    """End the process. A thread that could not be stopped would keep it for as long as it runs: it is left behind."""
    if threading.active_count() == 1:
        raise end
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(end.code if isinstance(end.code, int) else 1)


def _answer() -> None:
    if "_LLM_DO_COMPLETE" in os.environ:
        from .tab import complete  # noqa: PLC0415 - only a shell that completes needs it

        complete()
    elif sys.argv[1:] in (["--help"], ["-h"], []):
        sys.stdout.write(HELP)
        sys.stdout.flush()
    else:
        from .main import run_program  # noqa: PLC0415 - click is most of the time that help takes

        run_program()


__all__ = ["COMMANDS", "main"]
