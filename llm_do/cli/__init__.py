"""The command line. What needs no more than names answers before anything else is imported."""

from __future__ import annotations

import os
import sys

from .commands import COMMANDS, HELP


def main() -> None:
    """The program `llm-do`."""
    if "_LLM_DO_COMPLETE" in os.environ:
        from .tab import complete  # noqa: PLC0415 - only a shell that completes needs it

        complete()
        return
    if sys.argv[1:] in (["--help"], ["-h"], []):
        sys.stdout.write(HELP)
        return
    from .main import run_program  # noqa: PLC0415 - click is most of the time that help takes

    run_program()


__all__ = ["COMMANDS", "main"]
