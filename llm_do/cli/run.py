"""`llm-do run`: one call of a worker or a function, from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completing import worker_names
from .exits import Exit, report
from .projects import open_worker
from .sessions import SessionOptions, session_options

if TYPE_CHECKING:
    from .reporting import Reporter


@click.command("run")
@click.argument("worker", shell_complete=worker_names)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option("--input-json", metavar="JSON", help="The arguments as a JSON object, or @FILE with one.")
@click.option(
    "-a",
    "--attach",
    "attachments",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="A file that goes to the worker. Can be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: output, usage, refusals, error.")
@click.option("--events", is_flag=True, help="Print JSON lines while it runs; the last one is the result.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the answer to a file, and not to standard output.",
)
@click.option("--usage", is_flag=True, help="Print on standard error what it used and cost.")
@click.option("--allow-refusals", is_flag=True, help="A refused call is no failure, if the worker went on without it.")
@click.option("-v", "--verbose", is_flag=True, help="Print all calls on standard error when it is over.")
@session_options
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    worker: str,
    words: tuple[str, ...],
    input_json: str | None,
    attachments: tuple[Path, ...],
    as_json: bool,
    events: bool,
    output: Path | None,
    usage: bool,
    allow_refusals: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """Run WORKER, a worker or a function of the project, or a worker's file.

    INPUT is the text for a worker. A worker or a function that declares its arguments takes them as name=value.
    @FILE stands for what is in a file. Without INPUT, standard input is read.

    The answer goes to standard output, and everything else to standard error.
    """
    # With these comes everything: help and mistakes on the command line do not wait for it.
    from .inputs import read_input  # noqa: PLC0415
    from .reporting import Reporter  # noqa: PLC0415

    if as_json and events:
        raise click.UsageError("--json and --events both print the result. Give one of them.")
    registry, name = open_worker(ctx, worker)
    entry = registry[name]
    given = read_input(entry, words, input_json)
    reporter = Reporter(
        registry=registry,
        options=SessionOptions(**options),
        style="json" if as_json else "events" if events else "text",
        output=output,
        usage=usage,
        verbose=verbose,
        allow_refusals=allow_refusals,
    )
    return run_until_over(reporter, lambda: reporter.run(entry, given, [str(path) for path in attachments]))


def run_until_over(reporter: Reporter, work: Callable[[], Awaitable[None]]) -> int:
    """Run to the end, or until somebody interrupts: once ends it cleanly, twice at once."""
    try:
        asyncio.run(_interruptible(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        reporter.interrupted()
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as exc:
        reporter.failed(exc)
        return report(exc)
    return reporter.exit_code


async def _interruptible(work: Callable[[], Awaitable[None]]) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            os._exit(Exit.INTERRUPTED)  # whatever does not end, ends now
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await work()
        sys.stdout.flush()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
