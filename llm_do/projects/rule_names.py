"""The tools of a project that rules can name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

from ..arguments.inputs import OpenParameters
from ..arguments.signatures import model_parameters
from ..core.adapt import parameters_of, rule_name
from ..core.entry import Entry
from ..definitions.call_graph import called_names, reachable_from
from ..definitions.definition import WorkerDefinition
from ..errors import LlmDoError
from ..policy.catalogue import RULE_NAMES, TOOLSETS
from ..policy.rules import Shape, shape_of
from .generated import effective_definition
from .project import Project
from .worker_files import WorkerFile


class ProjectTools:
    """The tools of a project that the rules of a worker, or of the project itself, can name."""

    def __init__(
        self, project: Project, worker: WorkerDefinition | None = None, own: Sequence[Entry[Any]] = ()
    ) -> None:
        self._project = project
        self._worker = worker
        self._entries = [*own, *project.functions().values()]
        own_names = {tool.name: rule_name(tool) for tool in self._entries}
        self.rule_names: Mapping[str, str] = {**RULE_NAMES, **own_names}
        self.servers: Collection[str] = ()

    def shapes(self, name: str) -> Sequence[Shape] | None:
        found = [self._shape(entry) for entry in self._entries if rule_name(entry) == name]
        if not found and (file := self._project.file_of(name)) is not None:
            found = [_shape_of_worker(self._project, name, file)]
        if not found and name in NATIVE_TOOL_TYPES:
            found = [{}]
        if not found:  # own tools of workers that it can call: they inherit its rules
            tools = (tool for below in self._definitions_below() for tool in self._project.own_tools(below))
            found = [self._shape(tool) for tool in tools if tool.name == name]
        return found or None

    def _shape(self, entry: Entry[Any]) -> Shape:
        return shape_of(parameters_of(entry).vocabulary.shape)

    def names(self) -> Iterable[str]:
        return {*self._project.workers(), *map(rule_name, self._entries)}

    def may_grow(self) -> bool:
        definitions = [*([] if self._worker is None else [self._worker]), *self._definitions_below().values()]
        return any(toolset not in TOOLSETS for each in definitions for toolset in each.toolsets)

    def _definitions_below(self) -> dict[str, WorkerDefinition]:
        """Return the workers that can be called from here, at any depth, if their files can be read."""
        found: dict[str, WorkerDefinition] = {}
        workers = self._project.workers()

        def callees(name: str) -> set[str]:
            with suppress(LlmDoError):  # an error in its file is raised when it is called
                found[name] = self._project.definition(name)
            return called_names(found.get(name), workers)

        list(reachable_from(workers if self._worker is None else called_names(self._worker, workers), callees))
        return found


def _shape_of_worker(project: Project, name: str, file: WorkerFile) -> Shape:
    """Return the arguments in a worker's definition: building its entry here could recurse without end."""
    declared = effective_definition(project, name, file).input
    if declared == "none":
        return {}
    if isinstance(declared, str):
        declared_type = project.load_class(declared, file)
        return shape_of(model_parameters(name, declared_type).vocabulary.shape)
    return shape_of(OpenParameters(name).json_schema if declared is None else declared)
