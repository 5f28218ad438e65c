"""The options that `run` and `chat` share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ...models.choice import ModelLike

DEFAULT_MAX_COST = 5
"""US dollars of a session that says nothing about its cost."""


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
            self.fail(f"{value!r} is no amount: give dollars, such as 2.50, or none for no limit.", param, ctx)
        return amount


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What `run` and `chat` have in common."""

    model: ModelLike | None = None
    approve_all: bool = False
    strict: bool = False
    max_cost: float | None = None
    """Infinity is no limit, and `None` is what the project, or else the command line, says."""
    max_tokens: int | None = None
    max_depth: int | None = None
    timeout: float | None = None
    quiet: bool = False
    is_settled: bool = False
    """Whether `model` is the one that is used, or there is none; else it is chosen, and fetched, when it is needed."""


def session_options(command: Any) -> Any:
    """Add the options of `SessionOptions` to a command."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Nothing on standard error but errors."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Stop after this."),
        click.option("--max-depth", type=click.IntRange(1), metavar="N", help="How deep calls may be nested."),
        click.option("--max-tokens", type=click.IntRange(0), metavar="N", help="Stop before more tokens are used."),
        click.option(
            "--max-cost",
            type=Dollars(),
            metavar="DOLLARS",
            help=f"Stop before more is spent; none is no limit.  [default: the project's, or {DEFAULT_MAX_COST}]",
        ),
        click.option("--strict", is_flag=True, help="Refuse whatever needs an approval."),
        click.option("--approve-all", is_flag=True, help="Say yes to whatever asks. What is denied stays denied."),
        click.option("-m", "--model", metavar="NAME", help="The model of workers that have none of their own."),
    ):
        command = option(command)
    return command
