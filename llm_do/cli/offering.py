"""The model of a session, before it starts: which one it is, an offer where there is none, and its weights."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from ..entries import WorkerEntry
from ..errors import LocalModelError
from ..models import ModelChoice, announce, choose_default_model
from ..models.choice import LOCAL_PACKAGE, may_look_for_local
from ..protocols import Entry
from ..registry import WorkerRegistry
from .keys import Keyboard
from .sessions import SessionOptions

if TYPE_CHECKING:
    from ..models.local.files import ModelFile


async def settle_model(
    registry: WorkerRegistry, entry: Entry[Any], options: SessionOptions, *, asks: bool = True
) -> SessionOptions:
    """The options with the model that is used. It says on standard error which, where nobody chose one, and why.

    What has to be fetched for the entry, or for the session, is fetched here, where no screen is in the way. Where a
    worker has no model, a person at a terminal is offered the embedded one, unless `asks` is false.
    """
    own = entry.model if isinstance(entry, WorkerEntry) else None
    choice = choose_default_model(options.model, registry.config.model)
    if choice is None and own is None and isinstance(entry, WorkerEntry) and asks and not options.quiet:
        choice = await _offer()
    else:
        named = own if own is not None else choice.model if choice is not None else None
        if (file := file_of(named)) is not None and not file.is_here:
            await file.find(quiet=options.quiet)
    if choice is None:
        return options
    if (said := announce(choice)) and not options.quiet:
        click.echo(said, err=True)
    return replace(options, model=choice.model)


async def _offer() -> ModelChoice | None:
    """Ask once whether to fetch the embedded model. Nothing is asked where it could not run, or nobody could answer."""
    can_run = may_look_for_local() and find_spec(LOCAL_PACKAGE) is not None
    keyboard = Keyboard.open() if can_run and sys.stdin.isatty() else None
    if keyboard is None:
        return None
    from ..models.local.catalogue import EMBEDDED  # noqa: PLC0415 - for those who have no model at all
    from ..models.local.files import ModelFile  # noqa: PLC0415
    from ..models.local.progress import announcement  # noqa: PLC0415
    from ..models.local.store import models_folder  # noqa: PLC0415

    file = ModelFile.named(EMBEDDED)
    assert file.weights is not None
    click.echo(
        "No model is named, no API key is set, and no model server runs on this machine.\n"
        "A tiny model can run here, with no key. It is for one small step, and for trying:\n"
        f"  {announcement(file.weights)}\n"
        f"  goes to {models_folder()}\n"
        f"  can be removed: llm-do models rm {EMBEDDED}\n"
        "Fetch it now? [y/N] ",
        err=True,
        nl=False,
    )
    keyboard.forget()
    if (await keyboard.line()).strip().lower() not in ("y", "yes"):
        return None
    await file.find()
    return ModelChoice(f"local:{EMBEDDED}", "it was fetched for this", found=True)


def file_of(model: object) -> ModelFile | None:
    """The file of a model that runs here. That a name is wrong is told when the worker starts, as of any model."""
    kind, _, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if kind != "local":
        return None
    from ..models.local.files import ModelFile  # noqa: PLC0415 - for those who use one

    with suppress(LocalModelError):
        return ModelFile.named(name)
    return None
