"""The session of a command: its limits, and its model, which may take a question or a download."""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ...budgets.limits import Limits
from ...core.entry import Entry
from ...core.runtime import Runtime
from ...core.worker import WorkerEntry
from ...errors import LimitExceeded, LocalModelError, ModelChoiceError, RememberedError
from ...machine import pool
from ...machine.installation import is_installed
from ...models.addresses import is_other_ordinary_user, user_name
from ...models.choice import (
    DefaultModel,
    ModelChoice,
    ModelLike,
    announce,
    choose_default_model,
    choose_offer,
    explain_missing,
    local_models_enabled,
    named_model,
)
from ...models.local import LOCAL_PACKAGE
from ...models.servers import OfferedModel, remember_consent
from ...policy.approvals import ApprovalController
from ...policy.requests import ApprovalCallback, ApprovalRequest, Approver, approve_all_callback, strict_mode_callback
from ...privacy.display import visible
from ...projects.registry import WorkerRegistry
from ..terminal.keys import Keyboard
from .options import DEFAULT_MAX_COST, SessionOptions

if TYPE_CHECKING:
    from ...models.local.files import ModelFile

DEFAULT_DEPTH = 16
DEFAULT_UNPRICED_TOKENS = 2_000_000
"""The tokens that models without a known price may use in a session that `DEFAULT_MAX_COST` limits."""


def open_session(
    registry: WorkerRegistry,
    options: SessionOptions,
    *,
    approver: Approver | None = None,
    asks_for_more: bool = False,
    **others: Any,
) -> Runtime:
    """Open a session with the options of a command. `others` go to `Runtime`.

    `approver` is asked, unless an option approves or refuses all calls. Without either, calls that need approval are
    refused. With `asks_for_more`, the approver is also asked at a limit whether to go on.
    """
    gc.freeze()  # everything is imported, and imported modules stay
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
    """Return the limits of the project, with those of the command over them, and with a limit of money by default."""
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


async def resolve_session_model(
    registry: WorkerRegistry, entry: Entry[Any], options: SessionOptions, *, asks: bool = True
) -> SessionOptions:
    """Return the options with the model for workers that name none, and fetch its weights before there is a screen.

    If no model can be found, a person at the terminal is asked about model servers of this machine and the embedded
    model, unless `asks` is false. If the entry itself needs no such model, the choice may be left to `model_chooser`.
    """
    if isinstance(entry, WorkerEntry) and entry.model is None:
        model = await _choose_model(registry, options, asks=asks)
        return replace(options, model=model, is_settled=True)
    await _fetch(entry.model, options)
    choice = named_model(options.model, registry.config.model)
    if choice is None or missing_file(choice.model) is not None:
        return options
    return replace(options, model=choice.model, is_settled=True)


async def _choose_model(registry: WorkerRegistry, options: SessionOptions, *, asks: bool) -> ModelLike | None:
    """Choose the model for workers that name none, fetch its weights, and print the reason for the choice."""
    choice = await pool.run(choose_default_model, options.model, registry.config.model)
    # A CI job may have a terminal, but no person.
    is_watched = sys.stdin.isatty() and not os.environ.get("CI", "").strip()
    if asks and not options.quiet and is_watched and (keyboard := Keyboard.open()) is not None:
        choice = await _ask_about_servers(keyboard, choice)
        if choice.model is None:
            choice = await _offer_embedded_model(keyboard) or choice
    await _fetch(choice.model, options)
    if not options.quiet:
        for line in announce(choice):
            click.echo(line, err=True)
    return choice.model


async def _fetch(model: ModelLike | None, options: SessionOptions) -> None:
    if (file := missing_file(model)) is not None:
        await file.find(quiet=options.quiet)


def model_chooser(
    registry: WorkerRegistry,
    options: SessionOptions,
    *,
    asks: bool,
    pause: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> DefaultModel:
    """Return a function that chooses a model for a worker without one. `pause` makes room on the screen for it."""

    async def choose(worker: str, notice: Callable[[str], None]) -> ModelLike:
        model = None
        if not options.is_settled:  # else none was found before the session began
            with pause():
                model = await _choose_model(registry, options, asks=asks)
        if model is None:
            raise ModelChoiceError(explain_missing(worker))
        return model

    return choose


def notifying_model_chooser(registry: WorkerRegistry, options: SessionOptions) -> DefaultModel:
    """Return a function like that of `model_chooser` that sends notices, asks nothing and fetches nothing."""

    async def choose(worker: str, notice: Callable[[str], None]) -> ModelLike:
        if options.is_settled:
            raise ModelChoiceError(explain_missing(worker))
        choice = await pool.run(choose_default_model, options.model, registry.config.model)
        if (file := missing_file(choice.model)) is not None:
            raise LocalModelError(
                f"The weights of model local:{visible(file.name)} are not on this machine, and a full-screen chat "
                f"fetches none. Quit, and fetch them: llm-do models pull {visible(file.name)}"
            )
        lines = [] if options.quiet else announce(choice)
        if choice.model is None:
            raise ModelChoiceError("\n".join([*lines, explain_missing(worker)]))
        for line in lines:
            notice(f"Worker {worker!r} has no model of its own: {line.removeprefix('llm-do: ')}.")
        return choice.model

    return choose


async def _ask_about_servers(keyboard: Keyboard, choice: ModelChoice) -> ModelChoice:
    """Ask about each server that needs consent. Return the first one that gets it, or else the choice without them."""
    for offer in choice.passed_over:
        if not await _confirm(keyboard, _describe_offer(offer)):
            continue
        try:
            remember_consent(offer)
        except RememberedError as exc:
            click.echo(f"llm-do: {exc}", err=True)
        return choose_offer(offer)
    return replace(choice, passed_over=())


def _describe_offer(offer: OfferedModel) -> str:
    if offer.user is None:
        account = "by an unknown account"
    elif is_other_ordinary_user(offer.user):
        account = f"by user {user_name(offer.user)}, which is neither you nor root"
    else:
        account = "by you" if offer.user == os.geteuid() else "by root"
    return visible(
        "No model is named, and no API key can be used. This model server runs on this machine:\n"
        f"  {offer.server.name} on {offer.server.address}, run {account}\n"
        f"  offers {offer.model!r}; to name it in a setting: {offer.setting}\n"
        "It would get all prompts, the contents of files that workers read, and the results of tools.\n"
        "A yes is remembered. To withdraw it: llm-do models forget\n"
        f"Use {offer.server.name}? [y/N] ",
        keep="\n",
    )


async def _confirm(keyboard: Keyboard, question: str) -> bool:
    click.echo(question, err=True, nl=False)
    keyboard.discard_input()
    return (await keyboard.read_line()).strip().lower() in ("y", "yes")


async def _offer_embedded_model(keyboard: Keyboard) -> ModelChoice | None:
    """Ask whether to fetch the embedded model, if it can run here."""
    if not local_models_enabled() or not is_installed(LOCAL_PACKAGE):
        return None
    from ...models.local import catalogue, files, store  # noqa: PLC0415 - only where there is no model

    name = catalogue.EMBEDDED
    question = (
        "No model is named, no API key is set, and no model server is used.\n"
        "A tiny model can run here without a key. It is meant for small steps and first trials:\n"
        f"  {files.describe_download(catalogue.lookup(name))}\n"
        f"  goes to {store.models_folder()}\n"
        f"  can be removed: llm-do models rm {name}\n"
        "Fetch it now? [y/N] "
    )
    if not await _confirm(keyboard, question):
        return None
    await files.ModelFile.from_name(name).find()
    return ModelChoice(f"local:{name}", "it was just fetched", found=True)


def missing_file(model: object) -> ModelFile | None:
    """Return the file of a local model that is not here. A wrong name is reported when the worker starts."""
    kind, _, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if kind != "local":
        return None
    from ...models.local.files import ModelFile  # noqa: PLC0415 - only for local models

    with suppress(LocalModelError):
        file = ModelFile.from_name(name)
        return None if file.is_here else file
    return None
