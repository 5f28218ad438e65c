"""`llm-do run`: one call of a worker or a function, from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..support.completers import entry_names
from ..support.exits import Exit, report
from ..support.options import SessionOptions, session_options
from ..support.projects import open_worker

if TYPE_CHECKING:
    from ..support.reporting import Reporter


@click.command("run")
@click.argument("worker", shell_complete=entry_names)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option(
    "--input-json", metavar="JSON", help="The arguments as a JSON object, @FILE with one, or - for standard input."
)
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
    if as_json and events:
        raise click.UsageError("--json and --events both print the result. Give one of them.")
    # With these comes everything: help and mistakes on the command line do not wait for it.
    from ...arguments.inputs import bind_input  # noqa: PLC0415
    from ...core.adapt import parameters_of  # noqa: PLC0415
    from ..support.inputs import read_files, read_input  # noqa: PLC0415
    from ..support.reporting import Reporter  # noqa: PLC0415
    from ..terminal.stdout import Output  # noqa: PLC0415

    reporter = Reporter(
        out=Output(output),
        options=SessionOptions(**options),
        style="json" if as_json else "events" if events else "text",
        usage=usage,
        verbose=verbose,
        allow_refusals=allow_refusals,
    )

    async def work() -> None:
        registry, name = open_worker(ctx, worker)
        entry = registry[name]
        # Before a model is looked for, and once: a validator of the project may do more than to look.
        given = read_input(entry, words, input_json)
        arguments = bind_input(parameters_of(entry), given, has_files=bool(attachments))
        await reporter.run(registry, entry, arguments, read_files(entry, attachments))

    with reporter.out.alone():
        return run_until_over(reporter, work)


def run_until_over(reporter: Reporter, work: Callable[[], Awaitable[None]]) -> int:
    """Run to the end, or until somebody interrupts: once ends it cleanly, twice at once."""
    from ..terminal.stdout import is_reader_gone  # noqa: PLC0415

    ended_by: list[int] = []
    try:
        asyncio.run(_interruptible(work, reporter, ended_by))
        return reporter.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        if reporter.broken is not None:
            return Exit.OK if is_reader_gone(reporter.broken) else report(reporter.broken)
        reporter.interrupted()
        return 128 + (ended_by or [signal.SIGINT])[0]
    except BaseException as exc:
        if is_reader_gone(exc) and not isinstance(exc, OSError):
            return Exit.OK
        if isinstance(exc, SystemExit):
            exc = RuntimeError(f"the project's code ended the program, with sys.exit({exc.code!r})")
        code = reporter.failed(exc)
        report(exc, reporter.redact)
        return code


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run in order, with a search of what a command left. The last one is a terminal that is closed."""


async def _interruptible(work: Callable[[], Awaitable[None]], reporter: Reporter, ended_by: list[int]) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    reporter.cancel = task.cancel

    def interrupt(number: int) -> None:
        ended_by.append(number)
        if len(ended_by) > 1:  # whatever does not end, ends now
            reporter.clear_screen()
            os._exit(128 + number)
        task.cancel()

    # What was started with an interrupt ignored, as a script starts things in the background, goes on ignoring it.
    heeded = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await work()
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
