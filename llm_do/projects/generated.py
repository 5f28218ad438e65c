"""Generated workers: writing their files, and restricting them to what their creators have now."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

from ..core.recorder import logger
from ..definitions.definition import WorkerDefinition
from ..definitions.inherit import restrict_to
from ..errors import WorkerFileError
from ..policy.catalogue import is_reserved
from .project import Project
from .worker_files import BY_PROJECT, WorkerFile


def effective_definition(
    project: Project, name: str, file: WorkerFile, below: tuple[str, ...] = ()
) -> WorkerDefinition:
    """Return the definition in a worker's file, restricted to what its creator has now, and so on up."""
    definition, digest = project.read(name, file)
    if not file.generated:
        if definition.sandbox is None and project.config.sandbox is not None:
            definition = definition.model_copy(update={"sandbox": project.config.sandbox})
        return definition
    creator = project.files.creator(name, file)
    if creator == BY_PROJECT:
        return definition
    creator_file = project.file_of(creator) if creator is not None and creator not in (*below, name) else None
    if creator is None or creator_file is None:
        restricted = restrict_to(definition, None, project.root, project.providers())
        if creator is None and restricted != definition:
            _warn_without_seal(project, digest, file)
        return restricted
    above = effective_definition(project, creator, creator_file, (*below, name))
    # The creator's own tools are its own: a name that means one of them cannot be handed on.
    own = {tool.name for tool in project.tools_beside(creator_file)}
    shared = tuple(tool for tool in above.tools if tool not in own)
    return restrict_to(definition, above.model_copy(update={"tools": shared}), project.root, project.providers())


def _warn_without_seal(project: Project, digest: str, file: WorkerFile) -> None:
    if digest not in project.warned:
        project.warned.add(digest)
        logger.warning(
            "%s was edited, or not created by a worker or a program, so it has no rights, only its "
            "instructions. Move it to workers/ to give it what it asks for, or create it again.",
            project.files.display_path(file.path),
        )


def creators_of(project: Project, name: str) -> list[str]:
    """Return who created a generated worker, and so on up."""
    found: list[str] = []
    while (file := project.file_of(name)) is not None and file.generated:
        creator = project.files.creator(name, file)
        if creator is None or creator == BY_PROJECT or creator in found:
            break
        found.append(creator)
        name = creator
    return found


def write_worker(project: Project, definition: WorkerDefinition, *, force: bool, by_model: bool) -> None:
    """Write `workers/generated/NAME.yaml`, all of it or nothing.

    A seal beside it tells who created it, without which the file would not be believed.
    """
    if is_reserved(definition.name):
        raise WorkerFileError(f"{definition.name!r} is reserved. Choose another name for the worker.")
    existing = project.file_of(definition.name)
    if existing is not None and not existing.generated:
        raise WorkerFileError(
            f"{project.files.display_path(existing.path)}: the worker exists already. Choose another name."
        )
    if definition.name in project.functions():
        raise WorkerFileError(f"{definition.name!r} is the name of a function of the project. Choose another name.")
    for name in (*project.workers(), *project.functions()):  # a person, or a disk, could take one for the other
        if name != definition.name and name.casefold() == definition.name.casefold():
            raise WorkerFileError(f"{definition.name!r} differs from {name!r} only in case. Choose another name.")
    _check_authority(project, definition)
    project.check_symlinks(project.files.generated(definition.name))
    try:
        project.files.store(definition, force=force, by_model=by_model)
    except OSError as exc:
        raise WorkerFileError(
            f"Worker {definition.name!r} cannot be written in workers/generated/: {exc.strerror or exc}."
        ) from exc


def _check_authority(project: Project, definition: WorkerDefinition) -> None:
    """Refuse what the creator does not have, at once. Whatever the file says later, it is restricted at every call."""
    if (creator := definition.created_by or BY_PROJECT) == BY_PROJECT:
        return
    refusal = f"Worker {creator!r} cannot give"
    file = project.file_of(creator)
    own_tools = {tool.name for tool in project.tools_beside(file)}
    if refused := [tool for tool in definition.tools if tool in own_tools]:
        raise WorkerFileError(f"{refusal} the tools of its own folder: {', '.join(refused)}.")
    above = effective_definition(project, creator, file) if file is not None else None
    restricted = restrict_to(definition, above, project.root, project.providers())
    for right in ("tools", "toolsets", "allow_workers", "native"):
        if refused := [str(item) for item in getattr(definition, right) if item not in getattr(restricted, right)]:
            raise WorkerFileError(f"{refusal} what it does not have: {right} {', '.join(refused)}.")
    if definition.model != restricted.model:
        raise WorkerFileError(
            f"{refusal} the model {definition.model!r}: files, and models of the project's own providers, are given "
            "only by a worker that has the very same one."
        )
    if settings := (definition.model_settings or {}).keys() - (restricted.model_settings or {}).keys():
        raise WorkerFileError(f"{refusal} model_settings that it does not have: {', '.join(sorted(settings))}.")
    if definition.sandbox is not None and _roots(definition, project.root) != _roots(restricted, project.root):
        raise WorkerFileError(f"{refusal} files that it does not have.")


def _roots(definition: WorkerDefinition, base: Path) -> dict[str, Hashable]:
    """Return the roots of a definition in a form that does not depend on how their folders are written."""
    paths = definition.sandbox.paths if definition.sandbox is not None else {}
    return {
        name: (root.folder(base), root.mode, root.suffixes and frozenset(root.suffixes), root.max_file_bytes)
        for name, root in paths.items()
    }
