"""Create generated workers, which have no more than their creators."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

from ..definitions.definition import WorkerDefinition
from ..definitions.inherit import cut
from ..errors import WorkerFileError
from ..policy.catalogue import is_reserved
from ..sandbox import SandboxConfig
from .inheritance import effective_definition
from .project import Project
from .worker_files import BY_PROJECT


def write_worker(project: Project, definition: WorkerDefinition, *, force: bool, by_model: bool) -> None:
    """Write `workers/generated/NAME.yaml`, all of it or nothing.

    A seal beside it tells who created it, without which the file would not be believed.
    """
    if is_reserved(definition.name):
        raise WorkerFileError(f"No new worker can be called {definition.name!r}: the name means something else.")
    existing = project.file_of(definition.name)
    if existing is not None and not existing.generated:
        raise WorkerFileError(
            f"{project.files.shown(existing.path)}: there is a worker of that name. Choose another one."
        )
    if definition.name in project.functions():
        raise WorkerFileError(f"{definition.name!r} is the name of a function of the project. Choose another one.")
    for name in (*project.workers(), *project.functions()):  # a person, or a disk, could take one for the other
        if name != definition.name and name.casefold() == definition.name.casefold():
            raise WorkerFileError(f"{definition.name!r} differs from {name!r} only in case. Choose another one.")
    _check_authority(project, definition, definition.created_by or BY_PROJECT)
    project.check_way(project.files.generated(definition.name))
    try:
        project.files.store(definition, force=force, by_model=by_model)
    except OSError as exc:
        raise WorkerFileError(
            f"Worker {definition.name!r} cannot be written in workers/generated/: {exc.strerror or exc}."
        ) from exc


def _check_authority(project: Project, wanted: WorkerDefinition, creator: str) -> None:
    """Say at once what a creator does not have. Whatever the file says later, it is cut at every call."""
    if creator == BY_PROJECT:
        return
    file = project.file_of(creator)
    own = {tool.name for tool in project.tools_beside(file)}
    if mine := [tool for tool in wanted.tools if tool in own]:
        raise WorkerFileError(f"Worker {creator!r} cannot give the tools of its own folder: {', '.join(mine)}.")
    above = effective_definition(project, creator, file) if file is not None else None
    have = cut(wanted, above, project.root, project.providers())
    for right in ("tools", "toolsets", "allow_workers", "native"):
        if missing := [str(item) for item in getattr(wanted, right) if item not in getattr(have, right)]:
            raise WorkerFileError(
                f"Worker {creator!r} cannot give what it does not have: {right} {', '.join(missing)}."
            )
    if wanted.model != have.model:
        raise WorkerFileError(
            f"Worker {creator!r} cannot give the model {wanted.model!r}: files, and models of the project's own "
            "providers, are given only by a worker that has the very same one."
        )
    if refused := (wanted.model_settings or {}).keys() - (have.model_settings or {}).keys():
        raise WorkerFileError(
            f"Worker {creator!r} cannot give model_settings that it does not have: {', '.join(sorted(refused))}."
        )
    if wanted.sandbox is not None and _folders(wanted.sandbox, project.root) != _folders(have.sandbox, project.root):
        raise WorkerFileError(f"Worker {creator!r} cannot give files that it does not have.")


def _folders(sandbox: SandboxConfig | None, base: Path) -> dict[str, Hashable]:
    """What a sandbox comes to, however its folders are written."""
    return {
        name: (
            root.folder(base),
            root.mode,
            None if root.suffixes is None else frozenset(root.suffixes),
            root.max_file_bytes,
        )
        for name, root in (sandbox.paths if sandbox is not None else {}).items()
    }
