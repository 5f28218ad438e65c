"""`llm-do run`: one call of a worker or a function, from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..support.exits import Exit, report_error
from ..support.options import SessionOptions, attach_option, entry_names, output_option, session_options
from ..support.projects import open_worker

if TYPE_CHECKING:
    from ..support.reporting import Reporter


@click.command("run")
@click.argument("worker", shell_complete=entry_names)
@click.argument("words", nargs=-1, metavar="[INPUT]...")
@click.option(
    "--input-json", metavar="JSON", help="The arguments as a JSON object, @FILE with one, or - for standard input."
)
@attach_option("A file for the worker. Can be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: output, usage, refusals, error.")
@click.option("--events", is_flag=True, help="Print JSON lines during the run; the last one is the result.")
@output_option("Write the answer to a file instead of standard output.")
@click.option("--usage", is_flag=True, help="Print usage and cost on standard error.")
@click.option("--allow-refusals", is_flag=True, help="Exit with 0 even if calls were refused, if the worker went on.")
@click.option("-v", "--verbose", is_flag=True, help="Print all calls on standard error after the run.")
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
    @FILE stands for the content of a file. Without INPUT, standard input is read.

    The answer goes to standard output, everything else to standard error.
    """
    if as_json and events:
        raise click.UsageError("--json and --events both print the result. Give one of them.")
    # These import everything, which help and usage errors do not need.
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
        # Before a model is chosen, and only once: a validator of the project may have side effects.
        values = read_input(entry, words, input_json)
        arguments = bind_input(parameters_of(entry), values, has_files=bool(attachments))
        await reporter.run(registry, entry, arguments, read_files(entry, attachments))

    with redirect_stdout(sys.stderr):  # what the project's own code prints is no answer
        return run_to_end(reporter, work)


def run_to_end(reporter: Reporter, work: Callable[[], Awaitable[None]]) -> int:
    """Run to the end, or to an interrupt: the first one ends the run cleanly, the second one at once."""
    from ..terminal.stdout import is_reader_gone  # noqa: PLC0415

    ended_by: list[int] = []
    try:
        asyncio.run(_interruptible(work, reporter, ended_by))
        return reporter.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        if reporter.broken is not None:
            return Exit.OK if is_reader_gone(reporter.broken) else report_error(reporter.broken)
        reporter.report_interrupt()
        return 128 + (ended_by or [signal.SIGINT])[0]
    except BaseException as exc:
        if is_reader_gone(exc) and not isinstance(exc, OSError):
            return Exit.OK
        if isinstance(exc, SystemExit):
            exc = RuntimeError(f"the project's code ended the program, with sys.exit({exc.code!r})")
        code = reporter.report_failure(exc)
        report_error(exc, reporter.format)
        return code


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run cleanly, with a search for what a command left. SIGHUP means a closed terminal."""


async def _interruptible(work: Callable[[], Awaitable[None]], reporter: Reporter, ended_by: list[int]) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    reporter.cancel = task.cancel

    def interrupt(number: int) -> None:
        ended_by.append(number)
        if len(ended_by) > 1:  # end at once
            reporter.clear_screen()
            os._exit(128 + number)
        task.cancel()

    # A signal that was ignored at the start, as for jobs in the background of a script, stays ignored.
    handled = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await work()
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
