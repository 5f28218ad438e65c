"""Which project a command is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .light import find_root

if TYPE_CHECKING:
    from ..registry import WorkerRegistry

WORKER_FILES = (".md", ".yaml")


def root_of(ctx: click.Context) -> Path:
    """The folder of the project, or an error that says how to make one."""
    start = (ctx.find_root().obj or Path()).absolute()
    root = find_root(start)
    if root is None:
        raise click.UsageError(
            f"There is no project in {start} or above it: no folder with workers/ or llm-do.toml. "
            "Make one with `llm-do new`, or name another folder with -C."
        )
    return root


def open_project(ctx: click.Context) -> WorkerRegistry:
    """The project as a registry."""
    from ..registry import WorkerRegistry  # noqa: PLC0415 - with it comes everything

    return WorkerRegistry(root_of(ctx))


def open_worker(ctx: click.Context, worker: str) -> tuple[WorkerRegistry, str]:
    """The registry that a worker is in, and its name there. A worker can be given as a file as well."""
    path = Path(worker)
    if path.suffix not in WORKER_FILES or not path.is_file():
        return open_project(ctx), worker
    from ..registry import WorkerRegistry  # noqa: PLC0415

    file = path.absolute()
    root = find_root(file.parent)
    name = file.parent.name if file.stem == "worker" else file.stem
    if root is not None and file.is_relative_to(root / "workers"):
        return WorkerRegistry(root), name
    return WorkerRegistry(file.parent, only=file), file.stem
