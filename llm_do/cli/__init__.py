"""The command line. `--help` answers before anything else is imported."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from .help import COMPLETION_VARIABLE, HELP


def main() -> None:
    """Run the program `llm-do`."""
    try:
        _open_streams()
        if sys.argv[1:] in (["--help"], ["-h"], []) and COMPLETION_VARIABLE not in os.environ:
            sys.stdout.write(HELP)
            sys.exit()
        from .main import run_program  # noqa: PLC0415 - click takes longer than help itself

        run_program()
    except SystemExit as exc:
        _leave(exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1)
    except KeyboardInterrupt:  # during an import
        sys.stderr.write("Interrupted.\n")
        sys.stderr.flush()
        os._exit(130)
    except OSError as exc:  # of `--help`; commands report their own
        _leave(_report_unwritten(exc))


def _open_streams() -> None:
    """Open the null device for standard streams that the program was started without."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave(code: int) -> NoReturn:
    """End the process, without waiting for threads that cannot be stopped."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        code = code or _report_unwritten(exc)
        from .terminal.stdout import redirect_to_null  # noqa: PLC0415 - rarely needed

        redirect_to_null(sys.stdout)
    if threading.active_count() == 1:
        sys.exit(code)
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def _report_unwritten(exc: OSError) -> int:
    """Report output that cannot be written, unless its reader is gone, and return the exit code."""
    if isinstance(exc, BrokenPipeError):
        return 0
    sys.stderr.write(f"Error: the output cannot be written: {exc.strerror}.\n")
    return 1
