"""The project and the worker of a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...machine.files import own_users
from ...projects.discovery import find_root, names_in
from ...values.names import AMONG_FILES, NAME_RULE, is_name
from .exits import Refusal
from .trust import confirm_code, is_trusted, refuse_foreign, refuse_foreign_code

if TYPE_CHECKING:
    from ...core.worker import WorkerEntry
    from ...projects.registry import WorkerRegistry

WORKER_FILES = (".md", ".yaml")


def root_of(ctx: click.Context) -> Path:
    """Return the folder of the project, or raise an error that says how to make one."""
    start = _start(ctx)
    root = find_root(start)
    if root is None:
        raise Refusal(
            f"There is no project in {start} or above it: no folder with workers/ or llm-do.toml. "
            "Make one with `llm-do new`, or name another folder with -C."
        )
    if root != start:  # found, not named
        refuse_foreign(root)
    return root


def open_project(ctx: click.Context, *, asks: bool = False) -> WorkerRegistry:
    """Open the project. With `asks`, ask before the code of a project runs that is not trusted."""
    root = root_of(ctx)
    return _open(ctx, root, is_named=root == _start(ctx), asks=asks)


def _open(
    ctx: click.Context, root: Path, *, only: Path | None = None, is_named: bool = False, asks: bool
) -> WorkerRegistry:
    """Open a project, or `only` the file of a lone worker."""
    from ...projects.code import ProjectCode  # noqa: PLC0415 - with it comes everything
    from ...projects.registry import WorkerRegistry  # noqa: PLC0415

    has_yes = asks and confirm_code(root, ctx.command_path.partition(" ")[2])
    ProjectCode.keeps_output_clean = True
    # The folder of a lone worker may be one for all users: a yes that is not remembered is none to their code.
    is_free = is_named or (has_yes and only is None) or is_trusted(root)
    return WorkerRegistry(root, only=only, owners=None if is_free else own_users())


def open_worker(ctx: click.Context, worker: str, *, asks: bool = False) -> tuple[WorkerRegistry, str]:
    """Open the project of a worker, given by name or as a file relative to -C, and return it with the worker's name."""
    if "/" not in worker and not worker.endswith(WORKER_FILES):
        return open_project(ctx, asks=asks), worker
    file = _start(ctx) / worker
    _check_file(file, worker)
    root = find_root(file.parent)
    if root is None or not file.is_relative_to(root / "workers"):
        _check_name(file.stem, worker)
        refuse_foreign_code(file.parent)
        return _open(ctx, file.parent, only=file, asks=asks), file.stem
    own_folder = file.stem == "worker" and file.parent != root / "workers"
    name = file.parent.name if own_folder else file.stem
    _check_name(name, worker)
    refuse_foreign(root)
    registry = _open(ctx, root, asks=asks)
    found = registry.file_of(name)
    if found is None or not found.path.samefile(file):
        other = f"; {name!r} is {found.path.relative_to(root)}" if found is not None else ""
        raise click.UsageError(
            f"{worker!r} is not a worker of the project{other}. "
            "A worker's file is workers/NAME.md, workers/NAME.yaml or workers/NAME/worker.md."
        )
    return registry, name


def worker_of(registry: WorkerRegistry, name: str, problem: str) -> WorkerEntry[Any]:
    """Return a worker by its name. `problem` is what is wrong with the name of a function."""
    from ...core.worker import WorkerEntry  # noqa: PLC0415 - it imports everything

    entry = registry[name]
    if not isinstance(entry, WorkerEntry):
        raise click.UsageError(f"{name!r} {problem}")
    return entry


def _start(ctx: click.Context) -> Path:
    """Return the folder that -C names, or the current one."""
    return Path(ctx.find_root().obj or "").absolute()


def _check_file(file: Path, path: str) -> None:
    """Reject a path that is not the file of a worker."""
    if not os.path.exists(file):  # noqa: PTH110 - of a name that no file can have, a path raises an error
        from ...errors import did_you_mean  # noqa: PLC0415 - only for an error

        root = find_root(file.parent) or find_root(Path().absolute())
        hint = did_you_mean(Path(path).stem, names_in(root)) if root is not None else ""
        raise click.UsageError(f"There is no file {str(file)!r}.{hint}")
    if file.is_dir():
        raise click.UsageError(f"{path!r} is a folder. Give the file of a worker, or its name.")
    if file.suffix not in WORKER_FILES:
        raise click.UsageError(f"{path!r} is not a worker's file: these end with .md or .yaml.")


def _check_name(name: str, path: str) -> None:
    """Reject a file whose name cannot be that of a worker."""
    if name in AMONG_FILES:
        raise click.UsageError(f"{path!r}: no worker can be named {name!r}, which is reserved. Rename it.")
    if not is_name(name):
        raise click.UsageError(f"{path!r}: a worker is named like its file, and {name!r} cannot be a name: {NAME_RULE}")
