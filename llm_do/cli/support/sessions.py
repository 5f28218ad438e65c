"""Open a session of a project with the options of the command line."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

import click

from ...budgets.limits import Limits
from ...core.runtime import Runtime
from ...errors import LimitExceeded
from ...policy.approvals import ApprovalController
from ...policy.requests import ApprovalCallback, ApprovalRequest, Approver, approve_all_callback, strict_mode_callback
from ...projects.registry import WorkerRegistry
from .options import DEFAULT_MAX_COST, SessionOptions

DEFAULT_DEPTH = 16
DEFAULT_UNPRICED_TOKENS = 2_000_000
"""Tokens of models without a known price, in such a session."""


def open_session(
    registry: WorkerRegistry,
    options: SessionOptions,
    *,
    approver: Approver | None = None,
    asks_for_more: bool = False,
    **others: Any,
) -> Runtime:
    """Open a session of a project with the options of a command, and others of `Runtime`.

    `approver` is asked, unless an option approves or refuses all. Without either, calls that need approval are
    refused. With `asks_for_more`, it is also asked at a limit whether to go on. The model is the one that
    `settle_model` found, or that `choose_model`, one of the others, finds when it is needed.
    """
    gc.freeze()  # everything is imported: what there is now stays
    gc.enable()
    if options.approve_all and options.strict:
        raise click.UsageError("--approve-all and --strict are opposites.")
    limits = session_limits(registry.config.session_limits(), options)
    callback: ApprovalCallback | Approver | None
    callback = approve_all_callback if options.approve_all else strict_mode_callback if options.strict else approver

    async def ask_for_more(exceeded: LimitExceeded, now: Limits) -> Limits | None:
        return await _ask_for_more(runtime.gate.approvals, exceeded, now, limits)

    runtime = registry.runtime(
        model=options.model if options.is_settled else None,
        approval_callback=callback,
        limits=limits,
        max_depth=options.max_depth or DEFAULT_DEPTH,
        limit_callback=ask_for_more if asks_for_more and approver is not None and callback is approver else None,
        **others,
    )
    return runtime


def session_limits(limits: Limits, options: SessionOptions) -> Limits:
    """Return the limits of a session: those of its project, those of its command, and a limit of money at least."""
    if options.timeout is not None:
        limits = replace(limits, timeout=options.timeout)
    if options.max_tokens is not None:
        limits = replace(limits, max_tokens=options.max_tokens)
    if options.max_cost is not None:
        return replace(limits, max_cost=None if options.max_cost == math.inf else options.max_cost)
    if limits.max_cost is not None:
        return limits
    unpriced = limits.max_tokens if limits.max_tokens is not None else DEFAULT_UNPRICED_TOKENS
    return replace(limits, max_cost=DEFAULT_MAX_COST, max_unpriced_tokens=unpriced)


async def _ask_for_more(
    approvals: ApprovalController, exceeded: LimitExceeded, now: Limits, first: Limits
) -> Limits | None:
    """Ask the person who approves calls. Each yes allows as much again as the session had at first."""
    at_first = getattr(first, exceeded.limit, None)
    if not at_first:  # as much again would not help
        return None
    limit, unit = exceeded.limit, "$" if exceeded.limit == "max_cost" else ""
    before, after = getattr(now, limit), getattr(now, limit) + at_first
    request = ApprovalRequest(
        tool_name=limit,
        entry=f"{limit} = {unit}{after:,}",
        question=f"Raise {limit} of this session from {unit}{before:,} to {unit}{after:,}?",
        payload={},
        reason=exceeded.problem,
    )
    return replace(now, **{limit: after}) if await approvals.confirm(request) else None
