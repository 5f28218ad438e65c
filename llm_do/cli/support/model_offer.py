"""The model of a session, before it starts: which one it is, an offer where there is none, and its weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from ...core.entries import WorkerEntry
from ...core.entry import Entry
from ...errors import LocalModelError, ModelChoiceError, RememberedError
from ...machine import pool
from ...models import ModelChoice, announce, choose_default_model, explain_missing, named_model
from ...models.choice import LOCAL_PACKAGE, DefaultModel, ModelLike, choose_offer, how_to_name, may_look_for_local
from ...models.consent import remember
from ...models.listeners import is_other_ordinary_user, user_name
from ...models.servers import OfferedModel
from ...privacy.display import visible
from ...projects.registry import WorkerRegistry
from ..terminal.keys import Keyboard
from .options import SessionOptions

if TYPE_CHECKING:
    from ...models.local.files import ModelFile
    from ..terminal.approver import Screen


def _echo(line: str) -> None:
    click.echo(line, err=True)


async def settle_model(
    registry: WorkerRegistry, entry: Entry[Any], options: SessionOptions, *, asks: bool = True
) -> SessionOptions:
    """Return the options with the model that is used. Standard error has which and why, where no setting names it.

    A function, and a worker with its own model, need no other one: it is looked for when a worker that they call needs
    it (`choose_later`). What has to be fetched is fetched here, where no screen is in the way. Where a worker has no
    model, a person at a terminal is asked whether to use a model server of this machine, and is offered the embedded
    model, unless `asks` is false.
    """
    if isinstance(entry, WorkerEntry) and entry.model is None:
        model = await choose_model(registry.config.model, options, asks=asks)
        return replace(options, model=model, is_settled=True)
    await _fetch(entry.model, options)
    named = named_model(options.model, registry.config.model)
    file = None if named is None else file_of(named.model)
    if named is None or (file is not None and not file.is_here):
        return options
    return replace(options, model=named.model, is_settled=True)


async def choose_model(
    configured: str | None,
    options: SessionOptions,
    *,
    asks: bool,
    fetches: bool = True,
    tell: Callable[[str], object] = _echo,
) -> ModelLike | None:
    """Return the model of workers that have none of their own, with its weights fetched."""
    choice = await pool.run(choose_default_model, options.model, configured)
    if asks and not options.quiet:
        choice = await _ask_about_servers(choice)
        if choice.model is None:
            choice = await _offer() or choice
    await _fetch(choice.model, options, fetches)
    if not options.quiet:
        for line in announce(choice):
            tell(line)
    return choice.model


async def _fetch(model: ModelLike | None, options: SessionOptions, fetches: bool = True) -> None:
    file = file_of(model)
    if file is None or file.is_here:
        return
    if not fetches:
        raise LocalModelError(
            f"The weights of model local:{visible(file.name)} are not on this machine, and a full-screen chat fetches "
            f"none. Leave it, and fetch them: llm-do models pull {visible(file.name)}"
        )
    await file.find(quiet=options.quiet)


def choose_later(
    registry: WorkerRegistry, options: SessionOptions, *, asks: bool, screen: Screen | None = None
) -> DefaultModel:
    """Return a function that chooses the model when a worker without one is called in a session that began with none.

    `screen` is left alone meanwhile: questions and progress are plain lines.
    """

    async def choose(worker: str, notice: Callable[[str], None]) -> ModelLike:
        if options.is_settled:  # it was looked for, and asked about, before the session began
            raise ModelChoiceError(explain_missing(worker))
        if screen is not None:
            screen.stop()
        try:
            model = await choose_model(registry.config.model, options, asks=asks)
        finally:
            if screen is not None:
                screen.start()
        if model is None:
            raise ModelChoiceError(explain_missing(worker))
        return model

    return choose


def choose_on_screen(registry: WorkerRegistry, options: SessionOptions) -> DefaultModel:
    """Return the same for a chat on the full screen: it tells by notices, asks nothing, and fetches nothing."""

    async def choose(worker: str, notice: Callable[[str], None]) -> ModelLike:
        told: list[str] = []
        model = None
        if not options.is_settled:
            model = await choose_model(registry.config.model, options, asks=False, fetches=False, tell=told.append)
        if model is None:
            raise ModelChoiceError("\n".join([*told, explain_missing(worker)]))
        for line in told:
            notice(f"Worker {worker!r} has no model of its own: {line.removeprefix('llm-do: ')}.")
        return model

    return choose


async def _ask_about_servers(choice: ModelChoice) -> ModelChoice:
    """Ask about the servers that need a yes, in their order, and return the first that gets it.

    Where no person can answer, and after a no to all of them, it is the choice without them.
    """
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
        account = "by an account that cannot be found out"
    elif is_other_ordinary_user(offer.user):
        account = f"by user {user_name(offer.user)}, which is neither you nor root"
    else:
        account = "by you" if offer.user == os.geteuid() else "by root"
    return visible(
        "No model is named, and no API key can be used. A model server on this machine can be used:\n"
        f"  {offer.server.name} on {offer.server.address}, run {account}\n"
        f"  offers {offer.model!r}; to name it for good: {how_to_name(offer)}\n"
        "It is sent all prompts, the contents of files that workers read, and the results of tools.\n"
        "A yes is remembered, and can be taken back: llm-do models forget\n"
        f"Use {offer.server.name}? [y/N] ",
        keep="\n",
    )


def _open_keyboard() -> Keyboard | None:
    """Return the keyboard, if a person can be asked: in a terminal, and not in a CI job, which may have one, too."""
    return Keyboard.open() if sys.stdin.isatty() and not os.environ.get("CI", "").strip() else None


async def _says_yes(keyboard: Keyboard) -> bool:
    keyboard.forget()
    return (await keyboard.line()).strip().lower() in ("y", "yes")


async def _offer() -> ModelChoice | None:
    """Ask once whether to fetch the embedded model. Nothing is asked where it could not run, or nobody could answer."""
    can_run = may_look_for_local() and find_spec(LOCAL_PACKAGE) is not None
    keyboard = _open_keyboard() if can_run else None
    if keyboard is None:
        return None
    from ...models.local.catalogue import EMBEDDED  # noqa: PLC0415 - for those who have no model at all
    from ...models.local.files import ModelFile  # noqa: PLC0415
    from ...models.local.progress import announcement  # noqa: PLC0415
    from ...models.local.store import models_folder  # noqa: PLC0415

    file = ModelFile.named(EMBEDDED)
    assert file.weights is not None
    click.echo(
        "No model is named, no API key is set, and no model server is used.\n"
        "A tiny model can run here, with no key. It is for one small step, and for trying:\n"
        f"  {announcement(file.weights)}\n"
        f"  goes to {models_folder()}\n"
        f"  can be removed: llm-do models rm {EMBEDDED}\n"
        "Fetch it now? [y/N] ",
        err=True,
        nl=False,
    )
    if not await _says_yes(keyboard):
        return None
    await file.find()
    return ModelChoice(f"local:{EMBEDDED}", "it was fetched for this", found=True)


def file_of(model: object) -> ModelFile | None:
    """The file of a model that runs here. That a name is wrong is told when the worker starts, as of any model."""
    kind, _, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if kind != "local":
        return None
    from ...models.local.files import ModelFile  # noqa: PLC0415 - for those who use one

    with suppress(LocalModelError):
        return ModelFile.named(name)
    return None
