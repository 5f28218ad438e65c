"""`WorkerRegistry`: the workers and functions of a project as entries, and the sessions of a project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.adapt import describe
from ..core.entry import Entry
from ..core.runtime import Runtime
from ..core.worker import WorkerEntry
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition, WorkerSpec, define, places_of
from ..errors import DuplicateEntryError, RuleError, UnknownEntryError, WorkerFileError, did_you_mean
from ..models.choice import named_model
from ..policy.rules import RuleBook, check_rules
from .building import build_worker
from .generated import effective_definition, write_worker
from .layout import CONFIG
from .project import Project
from .rule_names import ProjectTools
from .worker_files import BY_PROJECT, WorkerFile


class WorkerRegistry(Project, Mapping[str, Entry[Any]]):
    """The workers and functions of a project, by name."""

    def runtime(self, **options: Any) -> Runtime:
        """Open a session of the project. The options are those of `Runtime`.

        Without `limits`, those of `llm-do.toml` hold. Without `choose_model`, the model is the one that is given, or
        else the one that `LLM_DO_MODEL` or `llm-do.toml` names.
        """
        options.setdefault("limits", self.config.session_limits())
        if options.get("choose_model") is None:
            named = named_model(options.get("model"), self.config.model)
            options["model"] = None if named is None else named.model
        return Runtime(self, **options)

    def rule_book(self) -> RuleBook | None:
        """Return the rules of `llm-do.toml`, which hold in every session of the project."""
        config = self.config
        if not config.tool_rules:
            return None
        places = places_of(config.sandbox, self.root)
        try:
            book = RuleBook(CONFIG, config.tool_rules, places)
            self.check_rules(book)
        except RuleError as exc:
            raise WorkerFileError(str(exc)) from exc
        return book

    def check_rules(self, book: RuleBook) -> None:
        """Check rules that are to hold in a session of the project."""
        check_rules(book, ProjectTools(self))

    def __getitem__(self, name: str) -> Entry[Any]:
        functions = self.functions()
        file = self.file_of(name)
        if file is None and name not in functions:
            why = self.explain_name(name)
            hint = did_you_mean(str(name), {*self.workers(), *functions}) if why is None else f" {why}"
            raise UnknownEntryError(f"No entry is named {name!r}.{hint}")
        if file is None:
            return functions[name]
        if name in functions:
            where = self.files.display_path(file.path)
            raise DuplicateEntryError(
                f"{name!r} is a worker, {where}, and also {describe(functions[name])}. Rename one."
            )
        return self._worker(name, file)

    def __iter__(self) -> Iterator[str]:
        yield from sorted({*self.workers(), *self.functions()})

    def __contains__(self, name: object) -> bool:
        """Return whether there is such an entry. Nothing is built, and no file of a worker is read."""
        return isinstance(name, str) and (self.file_of(name) is not None or name in self.functions())

    def __len__(self) -> int:
        return len({*self.workers(), *self.functions()})

    def _worker(self, name: str, file: WorkerFile) -> WorkerEntry[Any]:
        effective = effective_definition(self, name, file)
        own = [file.own_tools] if file.own_tools is not None else []
        sources = (file.path, self.root / CONFIG, *own)
        # A creator's file may have changed, and with it what this worker has.
        more = (effective.model_dump_json(), self.code.stamp())
        return self._cache.get(("worker", file), sources, lambda: build_worker(self, effective, file), more)

    def create(
        self,
        spec: WorkerSpec,
        defaults: WorkerCreationDefaults | None = None,
        *,
        created_by: str | None = None,
        force: bool = False,
        by_model: bool = False,
    ) -> WorkerDefinition:
        """Write `workers/generated/NAME.yaml`, all of it or nothing, and return its definition."""
        definition = define(spec, defaults or WorkerCreationDefaults(), created_by or BY_PROJECT)
        write_worker(self, definition, force=force, by_model=by_model)
        return definition.at(self.root)
