"""`llm-do run`: one call of a worker or a function, from the command line."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from ..support.options import SessionOptions, attach_option, entry_names, output_option, session_options
from ..support.projects import open_worker


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
    from ..support.reporting import Reporter, run_to_end  # noqa: PLC0415
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
