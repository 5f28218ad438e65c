"""The project that is checked, as far as it could be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ....definitions.definition import WorkerDefinition
from ....projects.registry import WorkerRegistry
from .problem import Problem, problems_of


class CheckedProject:
    """A registry, with what the check has read of it so far."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self.registry = registry
        self.workers = registry.workers()
        self.functions: dict[str, Any] = {}
        self.definitions: dict[str, WorkerDefinition] = {}
        """Of the workers whose files can be read."""
        self.own_tools: dict[str, set[str]] = {}
        """Names of the functions that a worker has for itself, of the workers whose code can be imported."""

    def attempt(self, code: str, work: Callable[[], object], file: str | None = None) -> Iterator[Problem]:
        """Do something, and yield its error as problems instead of raising it."""
        try:
            work()
        except Exception as exc:  # code of the project may raise anything
            yield from problems_of(exc, code, file, self.registry.root)

    def read_functions(self) -> None:
        workers = set(self.workers)
        self.functions = {name: self.registry[name] for name in self.registry if name not in workers}

    def read_worker(self, name: str) -> None:
        self.definitions[name] = self.registry.definition(name)

    def read_own_tools(self, name: str) -> None:
        self.own_tools[name] = {tool.name for tool in self.registry.own_tools(name)}

    def relative(self, path: Path) -> str:
        """Return a path as problems name it."""
        return str(path.relative_to(self.registry.root))

    def path_of(self, worker: str) -> Path:
        """Return the file of a worker."""
        file = self.registry.file_of(worker)
        assert file is not None
        return file.path

    def is_generated(self, worker: str) -> bool:
        """Return whether a model created the worker."""
        file = self.registry.file_of(worker)
        return file is not None and file.generated
