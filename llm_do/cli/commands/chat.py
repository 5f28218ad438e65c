"""`llm-do chat`: a conversation with a worker, full screen or line by line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..support.completers import worker_names
from ..support.exits import Exit
from ..support.options import SessionOptions, session_options
from ..support.projects import open_worker

if TYPE_CHECKING:
    from pydantic_ai.messages import MultiModalContent

    from ...core.entries import WorkerEntry
    from ...projects.registry import WorkerRegistry


@click.command("chat")
@click.argument("worker", shell_complete=worker_names)
@click.option(
    "-a",
    "--attach",
    "attachments",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="A file that goes with the first turn. Can be given several times.",
)
@click.option("--plain", is_flag=True, help="Line by line, for pipes and screen readers. Without a terminal it is so.")
@session_options
@click.pass_context
def chat_command(ctx: click.Context, /, worker: str, attachments: tuple[Path, ...], plain: bool, **options: Any) -> int:
    """Talk with WORKER, a worker of the project, or a worker's file.

    All turns are one conversation. Type /help there to see what it can do.
    """
    if sys.stdin.isatty():  # somebody types here: Ctrl-C cancels a turn, even where the program inherited to ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    registry, name = open_worker(ctx, worker)
    entry = _worker(registry, name)
    from ..support.inputs import read_files  # noqa: PLC0415 - with these comes everything
    from ..support.model_offer import settle_model  # noqa: PLC0415

    files = read_files(entry, attachments)

    # Before there is a screen: what has to be fetched or asked is in plain lines.
    given = asyncio.run(settle_model(registry, entry, SessionOptions(**options)))
    if plain or not fits_a_screen():
        from ..support.line_chat import chat_by_lines  # noqa: PLC0415 - only one of the two faces is needed

        return chat_by_lines(registry, entry, given, files)
    return _chat_on_screen(registry, entry, given, files)


def fits_a_screen() -> bool:
    """Tell whether there is a terminal that can be drawn on, with a person who reads it and types.

    Textual draws on standard error: where that goes to a file, the screen would stay empty.
    """
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


def _worker(registry: WorkerRegistry, name: str) -> WorkerEntry[Any]:
    from ...core.entries import WorkerEntry  # noqa: PLC0415 - with it comes everything

    entry = registry[name]
    if not isinstance(entry, WorkerEntry):
        raise click.UsageError(f"{name!r} is a function, and there is no talking with it. Run it: llm-do run {name}")
    if entry.input_type == "none":
        raise click.UsageError(f"{name!r} takes no input (`input: none`). Run it: llm-do run {name}")
    return entry


def _chat_on_screen(
    registry: WorkerRegistry, entry: WorkerEntry[Any], options: SessionOptions, files: list[MultiModalContent]
) -> int:
    from ..support.model_offer import choose_on_screen  # noqa: PLC0415 - with it comes everything
    from ..support.sessions import open_session  # noqa: PLC0415
    from ..tui.app import ChatApp  # noqa: PLC0415 - Textual takes longer to import than a line takes to read

    async def talk() -> int:
        app = ChatApp(
            entry,
            lambda feed: open_session(
                registry,
                options,
                approver=feed,
                sinks=[feed],
                text_deltas=True,
                asks_for_more=True,
                choose_model=choose_on_screen(registry, options),
            ),
            attachments=files,
        )
        try:
            code = await app.run_async()
        finally:
            await app.close()
        return app.return_code or code or Exit.OK

    return asyncio.run(talk())
