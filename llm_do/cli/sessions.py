"""A session of a project, with what the command line says."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import click

from ..approval import ApprovalCallback, Approver, approve_all_callback, strict_mode_callback
from ..models import choose_default_model
from ..protocols import ModelLike, Sink
from ..registry import WorkerRegistry
from ..runtime import Runtime

DEFAULT_DEPTH = 16


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What `run` and `chat` have in common."""

    model: ModelLike | None = None
    approve_all: bool = False
    strict: bool = False
    max_cost: float | None = None
    max_depth: int | None = None
    timeout: float | None = None
    quiet: bool = False


def session_options(command: Any) -> Any:
    """Add the options of `SessionOptions` to a command."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Nothing on standard error but errors."),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Stop after this."),
        click.option("--max-depth", type=click.IntRange(1), metavar="N", help="How deep calls may be nested."),
        click.option("--max-cost", type=click.FloatRange(0), metavar="DOLLARS", help="Stop when this is spent."),
        click.option("--strict", is_flag=True, help="Refuse whatever needs an approval."),
        click.option("--approve-all", is_flag=True, help="Say yes to whatever asks. What is denied stays denied."),
        click.option("-m", "--model", metavar="NAME", help="The model of workers that have none of their own."),
    ):
        command = option(command)
    return command


def open_session(
    registry: WorkerRegistry,
    options: SessionOptions,
    *,
    approver: ApprovalCallback | Approver | None = None,
    sinks: Iterable[Sink] = (),
    text_deltas: bool = False,
) -> Runtime:
    """A session of a project, with the model that `settle_model` found.

    `approver` is asked, unless an option answers for everybody. Without either, what needs an approval is refused.
    """
    gc.freeze()  # everything is imported: what there is now stays
    gc.enable()
    if options.approve_all and options.strict:
        raise click.UsageError("--approve-all and --strict are opposites.")
    config = registry.config
    choice = choose_default_model(options.model, config.model)
    limits = config.session_limits()
    if options.max_cost is not None:
        limits = replace(limits, max_cost=options.max_cost)
    if options.timeout is not None:
        limits = replace(limits, timeout=options.timeout)
    callback = approve_all_callback if options.approve_all else strict_mode_callback if options.strict else approver
    return Runtime(
        registry,
        model=choice.model if choice is not None else None,
        approval_callback=callback,
        tool_rules=registry.rule_book(),
        limits=limits,
        sinks=sinks,
        text_deltas=text_deltas,
        max_depth=options.max_depth or DEFAULT_DEPTH,
    )
