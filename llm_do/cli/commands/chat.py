"""`llm-do chat`: a conversation with a worker, full screen or line by line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from ..support.options import SessionOptions, attach_option, session_options, worker_names
from ..support.projects import open_worker, worker_of


@click.command("chat")
@click.argument("worker", shell_complete=worker_names)
@attach_option("A file for the first turn. Can be given several times.")
@click.option(
    "--plain", is_flag=True, help="Line by line, for pipes and screen readers. The default without a terminal."
)
@session_options
@click.pass_context
def chat_command(ctx: click.Context, /, worker: str, attachments: tuple[Path, ...], plain: bool, **options: Any) -> int:
    """Talk to WORKER, a worker of the project, or a worker's file.

    All turns are one conversation. Type /help in it to list its commands.
    """
    if sys.stdin.isatty():  # Ctrl-C cancels a turn, even if the program was started with it ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
    registry, name = open_worker(ctx, worker)
    entry = worker_of(registry, name, f"is a function, not a worker. Run it: llm-do run {name}")
    if entry.input_type == "none":
        raise click.UsageError(f"{name!r} takes no input (`input: none`). Run it: llm-do run {name}")
    from ..support.inputs import read_files  # noqa: PLC0415 - they import everything
    from ..support.sessions import resolve_session_model  # noqa: PLC0415

    files = read_files(entry, attachments)

    # Before there is a screen: questions and progress are plain lines.
    settings = asyncio.run(resolve_session_model(registry, entry, SessionOptions(**options)))
    if plain or not has_full_terminal():
        from ..support.line_chat import run_line_chat  # noqa: PLC0415 - only one of the two modes is needed

        return run_line_chat(registry, entry, settings, files)
    from ..tui.app import run_screen_chat  # noqa: PLC0415 - Textual is slow to import

    return run_screen_chat(registry, entry, settings, files)


def has_full_terminal() -> bool:
    """Return whether the terminal can be drawn on. It takes all three streams: Textual draws on standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"
