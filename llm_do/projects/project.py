"""The files of a project: its configuration, its worker files and its code.

A project is a folder with `workers/`, perhaps `tools.py`, and perhaps `llm-do.toml`. Files are read when they are
needed: a project of a thousand workers opens as fast as one of one, and the next call sees a changed file. Reading
definitions never imports the project's code.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_ai.models import Model

from ..budgets.prices import Price
from ..core.adapt import index_by_name, rule_name
from ..core.entry import Entry
from ..definitions.definition import WorkerDefinition
from ..errors import LlmDoError, UnknownEntryError, WorkerFileError, did_you_mean
from ..machine.files import Owners
from ..models.resolve import make_custom_model
from ..values.texts import quote
from .code import ProjectCode, entries_in, explain_public_name, functions_in
from .config import ProjectConfig, read_config
from .layout import CONFIG, tools_file
from .worker_files import FileCache, WorkerFile, WorkerFiles, check_owner
from .writable import WritableFolders


class Project:
    """A folder with workers, and what its files and its code define."""

    def __init__(
        self, root: str | Path = ".", *, only: Path | None = None, owners: Collection[int] | None = None
    ) -> None:
        """Open the project in a folder, or the worker of one file with `only`.

        With `owners`, files of other users are refused; the owner of the folder around `only` does not matter.
        """
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise WorkerFileError(f"There is no project at {root}: it is not a folder.")
        self._owners = None if owners is None else Owners(owners, self.root, lone=only is not None)
        self.code = ProjectCode(
            self.root, lambda: self.writable.folders(), lambda: self.writable.check_made_in_python(), self._owners
        )
        self.files = WorkerFiles(self.root, only, self._owners)
        self.writable = WritableFolders(self.root, self.files, self.code, self._read_config)
        self._cache = FileCache()
        self.warned: set[str] = set()
        """Digests of the files of generated workers about which the user was warned."""

    @property
    def config(self) -> ProjectConfig:
        """The settings of `llm-do.toml`."""
        self.writable.check_symlinks(self.root / CONFIG)
        return self._read_config()

    def _read_config(self) -> ProjectConfig:
        path = self.root / CONFIG

        def read() -> ProjectConfig:
            check_owner(path, self.root, self._owners)
            return read_config(path)

        return self._cache.get(path, (path,), read)

    def secret_names(self) -> tuple[str, ...]:
        """Return the environment variables that `llm-do.toml` keeps secret in every session."""
        return self.config.secrets

    def model_prices(self) -> Mapping[str, Price]:
        """Return the prices that `llm-do.toml` gives for every session."""
        return self.config.prices

    def providers(self) -> Mapping[str, str]:
        """Return the providers in `llm-do.toml`: references to their factories, by the prefix of their models."""
        return self.config.providers

    def make_model(self, name: str) -> Model | None:
        """Import and call the factory of a model, if its prefix is one of the project's providers."""
        return make_custom_model(name, self.providers(), self.load, self.root)

    def workers(self) -> list[str]:
        """Return the names of all workers that have a file. No file is read."""
        return self.files.names()

    def file_of(self, name: str) -> WorkerFile | None:
        """Return the file of a worker, if it has one: the one that a person wrote, before a generated one."""
        return self.files.find(name)

    def definition(self, name: str) -> WorkerDefinition:
        """Return the definition in the file of a worker. No code is imported."""
        file = self.file_of(name)
        if file is None:
            raise UnknownEntryError(f"No worker is named {name!r}.{did_you_mean(name, self.workers())}")
        definition = self.read(name, file)[0]
        return definition.at(self.root, self.config.sandbox) if definition.tool_rules else definition

    def read(self, name: str, file: WorkerFile) -> tuple[WorkerDefinition, str]:
        """Return the definition in a file, and its digest. A file that a worker could have put there is refused."""
        self.check_symlinks(file)
        return self.files.read(name, file)

    def check_symlinks(self, file: WorkerFile) -> None:
        """Refuse a file, or a seal, that is reached through a symlink that a worker can change."""
        self.writable.check_symlinks(file.path)
        if file.generated:
            self.writable.check_symlinks(file.seal)

    def load(self, reference: str) -> Any:
        """Return the object that `module:Name` or `file.py:Name` names. The project's code is imported."""
        return self.code.object(reference)

    def load_class(self, reference: str, file: WorkerFile) -> type[Any]:
        """Return the class that a worker's file names as its input or output."""
        found = self.load(reference)
        if not isinstance(found, type):  # a function would be called with whatever a model says
            where = self.files.display_path(file.path)
            raise WorkerFileError(f"{where}: {reference!r} is not a class: it is {quote(found)}. Name a class.")
        return found

    def functions(self) -> Mapping[str, Entry[Any]]:
        """Return the entries that `tools.py` defines, by name."""
        if (path := tools_file(self.root)) is None:
            return {}
        owner = f"the project ({path.name})"
        return self._cache.get(
            path, (path,), lambda: index_by_name(entries_in(self.code.file(path)), owner), self.code.stamp()
        )

    def own_tools(self, name: str) -> list[Entry[Any]]:
        """Return the tools that a worker has of its own, in its folder."""
        return self.tools_beside(self.file_of(name))

    def tools_beside(self, file: WorkerFile | None) -> list[Entry[Any]]:
        """Return the tools in the folder of a worker's file, if it has a folder of its own."""
        if file is None or file.own_tools is None or not os.path.lexists(file.own_tools):
            return []
        return functions_in(self.code.file(file.own_tools))

    def with_rule_name(self, name: str) -> Entry[Any] | None:
        """Return the function, or a worker's own tool, that rules know by a name. All code is imported for this."""
        found = list(self.functions().values())
        for worker in self.workers():
            with suppress(LlmDoError):  # an error in it is raised when it is called
                found += self.own_tools(worker)
        return next((tool for tool in found if name in (tool.name, rule_name(tool))), None)

    def explain_name(self, name: str) -> str | None:
        """Return why a public name of `tools.py` is no entry, if it looks like one."""
        path = tools_file(self.root)
        if path is None or not isinstance(name, str) or name.startswith("_"):
            return None
        return explain_public_name(self.code.file(path), name, self.root)
