"""The project and the worker of a command, and whether the user trusts their code."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from importlib.machinery import all_suffixes
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...machine.files import foreign_part, own_users, part_open_to_all
from ...projects.discovery import find_root, names_in
from ...projects.layout import CODE, deciding_files
from ...values.names import AMONG_FILES, NAME_RULE, is_name
from ..terminal.errors import Refusal, escape

if TYPE_CHECKING:
    from ...core.worker import WorkerEntry
    from ...projects.registry import WorkerRegistry

WORKER_FILES = (".md", ".yaml")
TRUST = "project"
"""The kind of the remembered answers. Their subjects are the real paths of projects."""
_MOST_FOLDERS = 1000


def root_of(ctx: click.Context) -> Path:
    """Return the folder of the project of a command."""
    start = start_folder(ctx)
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
    """Open the project. With `asks`, ask before untrusted code runs."""
    root = root_of(ctx)
    return _open(ctx, root, is_named=root == start_folder(ctx), asks=asks)


def _open(
    ctx: click.Context, root: Path, *, only: Path | None = None, is_named: bool = False, asks: bool
) -> WorkerRegistry:
    """Open a project, or `only` the file of a lone worker."""
    from ...projects.code import ProjectCode  # noqa: PLC0415 - with it comes everything
    from ...projects.registry import WorkerRegistry  # noqa: PLC0415

    has_yes = asks and confirm_code(root, ctx.command_path.partition(" ")[2])
    ProjectCode.keeps_output_clean = True
    # The folder of a lone worker may be one for all users: a yes that is not remembered does not cover their code.
    is_free = is_named or (has_yes and only is None) or is_trusted(root)
    return WorkerRegistry(root, only=only, owners=None if is_free else own_users())


def open_worker(ctx: click.Context, worker: str, *, asks: bool = False) -> tuple[WorkerRegistry, str]:
    """Open the project of a worker, given by name or as a file relative to -C. Return it and the name."""
    if "/" not in worker and not worker.endswith(WORKER_FILES):
        return open_project(ctx, asks=asks), worker
    file = start_folder(ctx) / worker
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
    """Return a worker by its name. `problem` completes the error about a function."""
    from ...core.worker import WorkerEntry  # noqa: PLC0415 - it imports everything

    entry = registry[name]
    if not isinstance(entry, WorkerEntry):
        raise click.UsageError(f"{name!r} {problem}")
    return entry


def start_folder(ctx: click.Context) -> Path:
    """Return the folder that -C names, or the current one."""
    return Path(ctx.find_root().obj or "").absolute()


def _check_file(file: Path, path: str) -> None:
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
    if name in AMONG_FILES:
        raise click.UsageError(f"{path!r}: no worker can be named {name!r}, which is reserved. Rename it.")
    if not is_name(name):
        raise click.UsageError(f"{path!r}: a worker is named like its file, and {name!r} cannot be a name: {NAME_RULE}")


def is_trusted(root: Path) -> bool:
    from ...machine.remembered import is_remembered  # noqa: PLC0415 - only for untrusted projects

    return is_remembered(TRUST, str(root.resolve()))


def trust(root: Path) -> None:
    """Remember that the user trusts a project, unless every user of the machine can change what it runs."""
    from ...machine.remembered import Remembered  # noqa: PLC0415 - only for untrusted projects

    real = root.resolve()
    parts = (part_open_to_all(path, real) for path in (real, *deciding_files(real)))
    if (part := next(filter(None, parts), None)) is not None:
        status = part.stat()
        # A folder for all users, such as /tmp, cannot be closed to the others.
        is_shared = status.st_uid not in own_users() or (part == real and bool(status.st_mode & stat.S_ISVTX))
        way_out = "Move it to a folder of yours." if is_shared else f"First: chmod o-w {shlex.quote(str(part))}"
        raise Refusal(
            f"{part} can be written by every user of this machine, so a yes to {real} is not remembered. {way_out}"
        )
    Remembered.load().add(TRUST, str(real))


def trust_or_explain(root: Path) -> None:
    """Remember that the user trusts a project, or print why that failed."""
    from ...errors import RememberedError  # noqa: PLC0415 - only for untrusted projects

    try:
        trust(root)
    except (Refusal, RememberedError) as exc:
        click.echo(f"Note: {escape(exc)}", err=True)


def refuse_foreign(root: Path) -> None:
    """Refuse a project that was found, not named, if another user could have written what it runs."""
    _refuse_foreign(root, [root, *deciding_files(root)], root)


def refuse_foreign_code(folder: Path) -> None:
    """Refuse code of another user beside a lone worker's file, whoever owns the folder."""
    for name in CODE:
        _refuse_foreign(folder, [folder / name], folder / Path(name).parts[0])


def _refuse_foreign(root: Path, parts: list[Path], top: Path) -> None:
    part = next(filter(None, (foreign_part(part, top, own_users()) for part in parts)), None)
    if part is not None and not is_trusted(root):
        raise Refusal(
            f"The project in {root} is not used: {part} belongs to another user, and its code would run as you. "
            f"{_how_to_trust(root)}"
        )


def confirm_code(root: Path, command: str) -> bool:
    """Ask before a command imports untrusted code. Return whether it is trusted; without a terminal, print a note."""
    if not _has_code(root):
        return False
    if is_trusted(root):
        return True
    what = f"`llm-do {command}` imports the Python code of {escape(root)}, which can do everything that you can."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        click.echo(f"Note: {what} Without a terminal, there is no question; `llm-do trust` answers it.", err=True)
        return False
    if not click.confirm(f"{what}\nDo you trust this project?", default=False, err=True):
        raise Refusal(
            "The project is not trusted, so its code was not run; `llm-do list` runs no code. " + _how_to_trust(root)
        )
    trust_or_explain(root)
    return True


def _how_to_trust(root: Path) -> str:
    return f"If you trust it: llm-do trust {shlex.quote(str(root))}"


def _has_code(root: Path) -> bool:
    """Return whether Python could import anything in a project. A large project counts as having code."""
    endings = tuple(all_suffixes())
    # Links are followed, as Python does, also into hidden folders. A circular one ends at the limit.
    for number, (_, _, files) in enumerate(islice(os.walk(root, followlinks=True), _MOST_FOLDERS + 1)):
        if number == _MOST_FOLDERS or any(name.endswith(endings) for name in files):
            return True
    return False
