"""Options that commands share, and completion of their values, which runs at each TAB: imports must be light."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ...projects.discovery import find_root, names_in

if TYPE_CHECKING:
    from ...models.choice import ModelLike

MODELS = ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b")
"""The names in the catalogue, which is slow to import. A test compares the two."""
DEFAULT_MAX_COST = 5
"""The US dollars that a session may cost, if nothing else limits it."""


class Dollars(click.ParamType[float]):
    """An amount of money, or `none` for no limit."""

    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "none":
            return math.inf
        try:
            amount = float(value)
        except ValueError:
            amount = math.nan
        if not 0 <= amount < math.inf:
            self.fail(f"{value!r} is not an amount: give dollars, such as 2.50, or none for no limit.", param, ctx)
        return amount


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The options that `run` and `chat` share."""

    model: ModelLike | None = None
    approve_all: bool = False
    strict: bool = False
    max_cost: float | None = None
    """Infinity means no limit. `None` means the limit of the project, or else `DEFAULT_MAX_COST`."""
    max_tokens: int | None = None
    max_depth: int | None = None
    timeout: float | None = None
    quiet: bool = False
    is_settled: bool = False
    """Whether `model` is final, even if it is `None`. Otherwise a model is chosen when a worker needs one."""


def session_options(command: Any) -> Any:
    """Add the options of `SessionOptions` to a command."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Print only errors on standard error."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Stop after this."),
        click.option("--max-depth", type=click.IntRange(1), metavar="N", help="Limit the depth of nested calls."),
        click.option("--max-tokens", type=click.IntRange(0), metavar="N", help="Stop before using more tokens."),
        click.option(
            "--max-cost",
            type=Dollars(),
            metavar="DOLLARS",
            help=f"Stop before spending more; none means no limit.  [default: the project's, or {DEFAULT_MAX_COST}]",
        ),
        click.option("--strict", is_flag=True, help="Refuse every call that needs approval."),
        click.option(
            "--approve-all", is_flag=True, help="Approve every call that needs approval. Denied calls stay denied."
        ),
        click.option("-m", "--model", metavar="NAME", help="The model for workers that name none."),
    ):
        command = option(command)
    return command


def attach_option(help_text: str) -> Callable[[Any], Any]:
    kind = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
    return click.option("-a", "--attach", "attachments", multiple=True, type=kind, metavar="FILE", help=help_text)


def output_option(help_text: str) -> Callable[[Any], Any]:
    return click.option(
        "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=help_text
    )


def entry_names(
    ctx: click.Context, param: click.Parameter, incomplete: str, *, functions: bool = True
) -> list[CompletionItem]:
    """Return the names of workers and functions, or have the shell complete a file."""
    folder = Path(ctx.find_root().params.get("folder") or ".").expanduser()
    root = find_root(folder.absolute())
    names = [] if root is None or "/" in incomplete else names_in(root, functions=functions)
    return _matches(names, incomplete) or [CompletionItem(incomplete, type="file")]


worker_names = partial(entry_names, functions=False)


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of models whose weights can be fetched."""
    return _matches([name for name in MODELS if name not in (ctx.params.get("names") or ())], incomplete)


def model_names_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return names of models, or have the shell complete a file."""
    return model_names(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def _matches(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
