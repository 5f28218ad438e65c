"""The rights of generated workers: their definitions, restricted to what their creators have now."""

from __future__ import annotations

from ..core.recorder import logger
from ..definitions.definition import WorkerDefinition
from ..definitions.inherit import cut
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
        restricted = cut(definition, None, project.root, project.providers())
        if creator is None and restricted != definition:
            _warn_without_seal(project, digest, file)
        return restricted
    above = effective_definition(project, creator, creator_file, (*below, name))
    # The creator's own tools are its own: a name that means one of them cannot be handed on.
    own = {tool.name for tool in project.tools_beside(creator_file)}
    shared = tuple(tool for tool in above.tools if tool not in own)
    return cut(definition, above.model_copy(update={"tools": shared}), project.root, project.providers())


def _warn_without_seal(project: Project, digest: str, file: WorkerFile) -> None:
    if digest not in project.warned:
        project.warned.add(digest)
        logger.warning(
            "%s was edited, or not created by a worker or a program, so it has nothing but its words. Move it to "
            "workers/ to give it what it says, or create it anew.",
            project.files.shown(file.path),
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
