"""The group of commands, and how the program ends."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from .help import COMMANDS, COMPLETION_VARIABLE
from .terminal.errors import Exit, report_error


class LazyGroup(click.Group):
    """Commands by name, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f".commands.{name}", __package__)
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from ..errors import did_you_mean  # noqa: PLC0415 - only for an error

            raise click.UsageError(f"There is no command {args[0]!r}.{did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-C",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="The project, or a folder in it, instead of the current folder.",
)
@click.version_option(package_name="llm-do", message="llm-do %(version)s")
@click.pass_context
def program(ctx: click.Context, folder: Path | None) -> None:
    """LLM workers and Python functions are the same kind of call."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise click.ClickException("The current folder no longer exists. Change to another one.") from None
    ctx.obj = folder


def run_program() -> None:
    # Imported modules stay. To look for garbage among them takes a sixth of the time until a command starts.
    gc.disable()
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
    try:
        code = program.main(standalone_mode=False, prog_name="llm-do")
    except BaseException as exc:  # an error of a completion must not disturb the shell
        code = Exit.OK if COMPLETION_VARIABLE in os.environ else report_error(exc)
    sys.exit(code if isinstance(code, int) else Exit.OK)
