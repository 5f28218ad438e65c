"""The model of a session, chosen before it starts, with questions where none is named and with its weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from ...core.entry import Entry
from ...core.worker import WorkerEntry
from ...errors import LocalModelError, ModelChoiceError, RememberedError
from ...machine import pool
from ...models import ModelChoice, announce, choose_default_model, explain_missing, named_model
from ...models.choice import LOCAL_PACKAGE, DefaultModel, ModelLike, choose_offer, local_models_enabled, setting_for
from ...models.consent import remember
from ...models.listeners import is_other_ordinary_user, user_name
from ...models.servers import OfferedModel
from ...privacy.display import visible
from ...projects.registry import WorkerRegistry
from ..terminal.keys import Keyboard
from .options import SessionOptions

if TYPE_CHECKING:
    from ...models.local.files import ModelFile


print_on_stderr = partial(click.echo, err=True)


async def resolve_session_model(
    registry: WorkerRegistry, entry: Entry[Any], options: SessionOptions, *, asks: bool = True
) -> SessionOptions:
    """Return the options with the model to use. Where no setting names it, print the model and the reason.

    A function, and a worker with a model of its own, need no other one until they call a worker without one: see
    `model_chooser`. Weights are fetched here, before there is a screen. Where no model can be found, a person at the
    terminal is asked about model servers of this machine and about the embedded model, unless `asks` is false.
    """
    if isinstance(entry, WorkerEntry) and entry.model is None:
        model = await _choose_model(registry.config.model, options, asks=asks)
        return replace(options, model=model, is_settled=True)
    await _fetch(entry.model, options)
    choice = named_model(options.model, registry.config.model)
    if choice is None or _missing_file(choice.model) is not None:
        return options
    return replace(options, model=choice.model, is_settled=True)


async def _choose_model(configured: str | None, options: SessionOptions, *, asks: bool) -> ModelLike | None:
    """Return the model for workers that name none, with its weights fetched."""
    choice = await pool.run(choose_default_model, options.model, configured)
    if asks and not options.quiet:
        choice = await _ask_about_servers(choice)
        if choice.model is None:
            choice = await _offer_embedded_model() or choice
    await _fetch(choice.model, options)
    if not options.quiet:
        for line in announce(choice):
            print_on_stderr(line)
    return choice.model


async def _fetch(model: ModelLike | None, options: SessionOptions) -> None:
    if (file := _missing_file(model)) is not None:
        await file.find(quiet=options.quiet)


def model_chooser(
    registry: WorkerRegistry,
    options: SessionOptions,
    *,
    asks: bool,
    pause: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> DefaultModel:
    """Return a function that chooses the model when a worker without one is called.

    `pause` makes room on the screen: questions and progress are plain lines.
    """

    async def choose(worker: str, notice: Callable[[str], None]) -> ModelLike:
        model = None
        if not options.is_settled:  # else none was found before the session began
            with pause():
                model = await _choose_model(registry.config.model, options, asks=asks)
        if model is None:
            raise ModelChoiceError(explain_missing(worker))
        return model

    return choose


def notifying_model_chooser(registry: WorkerRegistry, options: SessionOptions) -> DefaultModel:
    """Return the same for a full-screen chat: it reports by notices, asks nothing, and fetches nothing."""

    async def choose(worker: str, notice: Callable[[str], None]) -> ModelLike:
        if options.is_settled:
            raise ModelChoiceError(explain_missing(worker))
        choice = await pool.run(choose_default_model, options.model, registry.config.model)
        if (file := _missing_file(choice.model)) is not None:
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


async def _ask_about_servers(choice: ModelChoice) -> ModelChoice:
    """Ask about each server that needs consent, and return the first that gets it, or else the choice without them."""
    keyboard = _open_keyboard() if choice.passed_over else None
    if keyboard is None:
        return choice
    for offer in choice.passed_over:
        click.echo(_describe_offer(offer), err=True, nl=False)
        if not await _says_yes(keyboard):
            continue
        try:
            remember(offer)
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
        f"  offers {offer.model!r}; to name it in a setting: {setting_for(offer)}\n"
        "It would get all prompts, the contents of files that workers read, and the results of tools.\n"
        "A yes is remembered. To withdraw it: llm-do models forget\n"
        f"Use {offer.server.name}? [y/N] ",
        keep="\n",
    )


def _open_keyboard() -> Keyboard | None:
    """Return the keyboard, if a person can be asked: at a terminal, but not in a CI job, which may have one."""
    return Keyboard.open() if sys.stdin.isatty() and not os.environ.get("CI", "").strip() else None


async def _says_yes(keyboard: Keyboard) -> bool:
    keyboard.discard_input()
    return (await keyboard.read_line()).strip().lower() in ("y", "yes")


async def _offer_embedded_model() -> ModelChoice | None:
    """Ask whether to fetch the embedded model, if it can run here and a person can answer."""
    can_run = local_models_enabled() and find_spec(LOCAL_PACKAGE) is not None
    keyboard = _open_keyboard() if can_run else None
    if keyboard is None:
        return None
    from ...models.local import catalogue, files, progress, store  # noqa: PLC0415 - only where there is no model

    name = catalogue.EMBEDDED
    click.echo(
        "No model is named, no API key is set, and no model server is used.\n"
        "A tiny model can run here without a key. It is meant for small steps and first trials:\n"
        f"  {progress.describe_download(catalogue.lookup(name))}\n"
        f"  goes to {store.models_folder()}\n"
        f"  can be removed: llm-do models rm {name}\n"
        "Fetch it now? [y/N] ",
        err=True,
        nl=False,
    )
    if not await _says_yes(keyboard):
        return None
    await files.ModelFile.from_name(name).find()
    return ModelChoice(f"local:{name}", "it was just fetched", found=True)


def local_file_of(model: object) -> ModelFile | None:
    """Return the file of a local model. A wrong name is reported when the worker starts, as for any model."""
    kind, _, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if kind != "local":
        return None
    from ...models.local.files import ModelFile  # noqa: PLC0415 - only for local models

    with suppress(LocalModelError):
        return ModelFile.from_name(name)
    return None


def _missing_file(model: object) -> ModelFile | None:
    """Return the file of a local model that has to be fetched first."""
    file = local_file_of(model)
    return None if file is None or file.is_here else file
