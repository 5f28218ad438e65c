"""Generated workers: writing their files, and restricting them to what their creators have now."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.recorder import logger
from ..definitions.definition import WorkerDefinition, WorkerLimits, places_of
from ..definitions.fields import AttachmentPolicy
from ..errors import WorkerFileError
from ..models.resolve import custom_provider, names_model_file
from ..policy.catalogue import is_reserved
from ..policy.rules import ToolRule, anchor_rules, remove_ineffective
from ..sandbox import SandboxConfig
from .project import Project
from .worker_files import BY_PROJECT, WorkerFile

_HARMLESS_SETTINGS = {
    *("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("stop_sequences", "thinking", "parallel_tool_calls", "timeout"),
}
"""Settings that change how a model writes. Others reach its provider as they are: headers, and tools that it runs."""


def effective_definition(
    project: Project, name: str, file: WorkerFile, below: tuple[str, ...] = ()
) -> WorkerDefinition:
    """Return the definition in a worker's file, restricted to what all its creators have now."""
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
        restricted = _restrict(project, definition, None)
        if creator is None and restricted != definition and digest not in project.warned:
            project.warned.add(digest)
            logger.warning(
                "%s was edited, or not created by a worker or a program, so it has no rights, only its "
                "instructions. Move it to workers/ to give it what it asks for, or create it again.",
                project.files.display_path(file.path),
            )
        return restricted
    above = effective_definition(project, creator, creator_file, (*below, name))
    # The tools in the creator's own folder cannot be handed on: elsewhere, their names mean other entries.
    own = {tool.name for tool in project.tools_beside(creator_file)}
    shared = tuple(tool for tool in above.tools if tool not in own)
    return _restrict(project, definition, above.model_copy(update={"tools": shared}))


def creators_of(project: Project, name: str) -> list[str]:
    """Return the creator of a generated worker, the creator of that one, and so on."""
    found: list[str] = []
    while (file := project.file_of(name)) is not None and file.generated:
        creator = project.files.creator(name, file)
        if creator is None or creator == BY_PROJECT or creator in found:
            break
        found.append(creator)
        name = creator
    return found


def write_worker(project: Project, definition: WorkerDefinition, *, force: bool, by_model: bool) -> None:
    """Write `workers/generated/NAME.yaml` atomically, and then the seal that records its creator."""
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
    """Refuse at once what the creator does not have. Every call restricts the worker again, as the file is then."""
    if (creator := definition.created_by or BY_PROJECT) == BY_PROJECT:
        return
    refusal = f"Worker {creator!r} cannot give"
    file = project.file_of(creator)
    own_tools = {tool.name for tool in project.tools_beside(file)}
    if refused := [tool for tool in definition.tools if tool in own_tools]:
        raise WorkerFileError(f"{refusal} the tools of its own folder: {', '.join(refused)}.")
    above = effective_definition(project, creator, file) if file is not None else None
    restricted = _restrict(project, definition, above)
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
    """Return the roots of a definition, to compare them however their folders are written."""
    paths = definition.sandbox.paths if definition.sandbox is not None else {}
    return {
        name: (root.folder(base), root.mode, root.suffixes and frozenset(root.suffixes), root.max_file_bytes)
        for name, root in paths.items()
    }


def _restrict(project: Project, worker: WorkerDefinition, creator: WorkerDefinition | None) -> WorkerDefinition:
    """Return a generated worker without what its creator does not have; without a creator, only its instructions."""
    creator = creator or WorkerDefinition(name=worker.name)
    # A reference runs code of the project, so only the creator's own references stay.
    shapes = {
        key: None if isinstance(shape, str) and shape != getattr(creator, key) else shape
        for key, shape in (("input", worker.input), ("output", worker.output))
    }
    sandbox = worker.sandbox and worker.sandbox.restrict_to(creator.sandbox or SandboxConfig(), project.root)
    # The project's own provider is code that gets the name of the model.
    runs_code = names_model_file(worker.model) or custom_provider(worker.model, project.providers()) is not None
    common = {key: _common(getattr(worker, key), getattr(creator, key)) for key in ("tools", "toolsets", "native")}
    return worker.model_copy(
        update={
            **shapes,
            **common,
            "model": creator.model if runs_code else worker.model,
            "model_settings": _restrict_settings(worker.model_settings, creator.model_settings or {}),
            "allow_workers": _restrict_workers(worker.allow_workers, creator.allow_workers),
            "tool_rules": _restrict_rules(worker, creator, project.root),
            "sandbox": sandbox if sandbox and sandbox.paths else None,
            "attachment_policy": _stricter_policy(worker.attachment_policy, creator.attachment_policy),
            "limits": _lower_limits(worker.limits, creator.limits),
        }
    )


def _common(items: tuple[Any, ...], allowed: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(item for item in items if item in allowed)


def _restrict_settings(settings: dict[str, Any] | None, allowed: dict[str, Any]) -> dict[str, Any] | None:
    return settings and {
        name: value
        for name, value in settings.items()
        if name in _HARMLESS_SETTINGS or (name in allowed and allowed[name] == value)
    }


def _restrict_workers(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    if allowed == ("*",):
        return names
    return allowed if names == ("*",) else _common(names, allowed)


def _restrict_rules(worker: WorkerDefinition, creator: WorkerDefinition, base: Path) -> dict[str, tuple[ToolRule, ...]]:
    """Return the restrictions of both. A permission stays only if the creator has the very same."""
    # Paths become absolute: two workers may have different folders as roots of one name.
    own, inherited = (anchor_rules(each.tool_rules, places_of(each.sandbox, base)) for each in (worker, creator))
    restricted: dict[str, tuple[ToolRule, ...]] = {}
    for name in (*inherited, *(name for name in own if name not in inherited)):
        rules, above = own.get(name, ()), inherited.get(name, ())
        combined = [_without_permission(rule) for rule in above if rule not in rules]
        combined += [rule if _is_permitted(rule, above) else _without_permission(rule) for rule in rules]
        if effective := remove_ineffective([rule for rule in combined if rule is not None]):
            restricted[name] = effective
    return restricted


def _is_permitted(rule: ToolRule, above: Sequence[ToolRule]) -> bool:
    only_allows = rule.disposition == "allow" and not rule.shell and not rule.unsandboxed
    return rule in above or (only_allows and any(other.disposition == "allow" and other.always for other in above))


def _without_permission(rule: ToolRule) -> ToolRule | None:
    # Without a rule, commands that need a shell are refused, which is stricter than asking.
    return None if rule.disposition == "allow" or rule.shell else replace(rule, unsandboxed=False)


def _stricter_policy(own: AttachmentPolicy, above: AttachmentPolicy) -> AttachmentPolicy:
    suffixes = own.suffixes if above.suffixes is None else above.suffixes
    if own.suffixes is not None and above.suffixes is not None:
        suffixes = tuple(suffix for suffix in own.suffixes if suffix.endswith(above.suffixes))
    return AttachmentPolicy(
        max_attachments=min(own.max_attachments, above.max_attachments),
        max_total_bytes=min(own.max_total_bytes, above.max_total_bytes),
        suffixes=suffixes,
    )


def _lower_limits(own: WorkerLimits | None, above: WorkerLimits | None) -> WorkerLimits | None:
    if own is None or above is None:
        return own or above
    values = {}
    for name in WorkerLimits.model_fields:
        limits = [value for value in (getattr(own, name), getattr(above, name)) if value is not None]
        values[name] = min(limits, default=None)
    return WorkerLimits(**values)
