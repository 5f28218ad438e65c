"""`WorkerRegistry`: the workers and functions of a project as entries, and the sessions of a project."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic_ai.capabilities import NativeTool

from ..budgets.limits import Limits
from ..core.adapt import describe
from ..core.entry import Entry, ToolsetFactory
from ..core.runtime import Runtime
from ..core.session_tools import no_such_tool
from ..core.tool import ToolEntry
from ..core.worker import WorkerEntry
from ..definitions.definition import WorkerCreationDefaults, WorkerDefinition, WorkerSpec, define, places_of
from ..definitions.toolsets import McpToolset, native_tool
from ..errors import DuplicateEntryError, RuleError, UnknownEntryError, WorkerFileError, did_you_mean
from ..machine.files import read_file
from ..models.choice import named_model
from ..policy.catalogue import CATALOGUE, TOOLSETS
from ..policy.rules import RuleBook, check_rules
from ..values.texts import quote
from .generated import creators_of, effective_definition, write_worker
from .layout import CONFIG, deciding_files
from .project import Project
from .rule_names import ProjectTools
from .worker_files import BY_PROJECT, WorkerFile


class WorkerRegistry(Project, Mapping[str, Entry[Any]]):
    """The workers and functions of a project, by name."""

    def runtime(self, **options: Any) -> Runtime:
        """Open a session of the project. The options are those of `Runtime`.

        `limits` are by default those of `llm-do.toml`. `model` is by default the one that `LLM_DO_MODEL` or
        `llm-do.toml` names, unless there is a `choose_model`.
        """
        options.setdefault("limits", self.config.session_limits())
        if options.get("choose_model") is None:
            named = named_model(options.get("model"), self.config.model)
            options["model"] = None if named is None else named.model
        return Runtime(self, **options)

    def rule_book(self) -> RuleBook | None:
        """Return the rules of `llm-do.toml`, which apply in every session of the project."""
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
        """Check rules for a session of the project."""
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
        """Return whether an entry has this name. No file of a worker is read."""
        return isinstance(name, str) and (self.file_of(name) is not None or name in self.functions())

    def __len__(self) -> int:
        return len({*self.workers(), *self.functions()})

    def _worker(self, name: str, file: WorkerFile) -> WorkerEntry[Any]:
        effective = effective_definition(self, name, file)
        own = [file.own_tools] if file.own_tools is not None else []
        sources = (file.path, self.root / CONFIG, *own)
        # A change of its creator's file may change its rights.
        more = (effective.model_dump_json(), self.code.stamp())
        return self._cache.get(("worker", file), sources, lambda: _build(self, effective, file), more)

    def create(
        self,
        spec: WorkerSpec,
        defaults: WorkerCreationDefaults | None = None,
        *,
        created_by: str | None = None,
        force: bool = False,
        by_model: bool = False,
    ) -> WorkerDefinition:
        """Write `workers/generated/NAME.yaml` atomically, and return its definition."""
        definition = define(spec, defaults or WorkerCreationDefaults(), created_by or BY_PROJECT)
        write_worker(self, definition, force=force, by_model=by_model)
        return definition.at(self.root)


def _build(project: Project, definition: WorkerDefinition, file: WorkerFile) -> WorkerEntry[Any]:
    """Make the entry of a worker, and check that everything that its file and its rules name exists."""
    own_tools = project.tools_beside(file)
    try:
        entry = _make_entry(project, definition, file, own_tools)
        if entry.rule_book is not None:
            check_rules(entry.rule_book, ProjectTools(project, definition, own_tools))
        return entry
    except RuleError as exc:
        raise WorkerFileError(str(exc)) from exc


def _make_entry(
    project: Project, definition: WorkerDefinition, file: WorkerFile, own_tools: list[Entry[Any]]
) -> WorkerEntry[Any]:
    where, own_names = project.files.display_path(file.path), {entry.name for entry in own_tools}
    input_type: Any = definition.input
    if isinstance(input_type, str) and input_type != "none":
        input_type = project.load_class(input_type, file)
    output: dict[str, Any] = {}
    if isinstance(definition.output, str):
        output["output_type"] = project.load_class(definition.output, file)
    elif definition.output is not None:
        output["output_schema"] = definition.output
    _check_names(project, definition, where, own_names)
    project.writable.check_roots(definition.sandbox, project.root, where)
    return WorkerEntry[Any](
        name=definition.name,
        description=definition.description,
        instructions=definition.instructions or None,
        model=definition.model,
        compatible_models=definition.compatible_models,
        model_settings=definition.model_settings,  # type: ignore[arg-type]
        input_type=input_type,
        tools=[*own_tools, *(tool for tool in definition.tools if tool not in own_names), *_tools_of(definition)],
        toolsets=[_toolset(project, each, where) for each in definition.toolsets if each not in TOOLSETS],
        tool_rules=definition.tool_rules,
        sandbox=definition.sandbox,
        base=project.root,
        protected=_protected_paths(project.root),
        custom_tools_path=file.own_tools,
        allow_workers=definition.allow_workers,
        attachment_policy=definition.attachment_policy,
        limits=None if definition.limits is None else Limits(**dict(definition.limits)),
        on_cut_off=definition.on_cut_off,
        capabilities=[NativeTool(native_tool(item)) for item in definition.native],
        definition=definition.at(project.root),
        creators=creators_of(project, definition.name),
        generated=file.generated and project.files.creator(definition.name, file) != BY_PROJECT,
        **output,
    )


def _check_names(project: Project, definition: WorkerDefinition, where: str, own_names: set[str]) -> None:
    """Refuse a definition that names tools, workers or roots that do not exist."""

    def line(word: str) -> str:
        return f"{where}:{_line_of(project.root / where, word)}"

    functions = project.functions()
    for tool in definition.tools:
        if tool not in own_names and tool not in functions and project.file_of(tool) is None:
            known, why = {*project.workers(), *functions, *own_names}, project.explain_name(tool)
            problem = no_such_tool(tool, known) if why is None else f"there is no tool {tool!r}. {why}"
            raise WorkerFileError(f"{line(tool)}: {problem}")
    for worker in definition.allow_workers:
        if worker != "*" and project.file_of(worker) is None:
            hint = did_you_mean(worker, project.workers())
            raise WorkerFileError(f"{line(worker)}: there is no worker {worker!r}.{hint}")
    for row in CATALOGUE:
        if row.needs_sandbox and row.name in definition.toolsets and definition.sandbox is None:
            raise WorkerFileError(f"{where}: the toolset {row.name!r} needs a sandbox with paths. Add `sandbox`.")
    roots = definition.sandbox.paths if definition.sandbox is not None else {}
    for server in definition.toolsets:
        for name in server.mcp.roots if isinstance(server, McpToolset) else ():
            if name not in roots:
                raise WorkerFileError(
                    f"{line(name)}: the worker has no root {name!r} to announce to its MCP server."
                    f"{did_you_mean(name, roots)} Name one of `sandbox.paths`."
                )


def _line_of(file: Path, word: str) -> int:
    lines = read_file(file).decode(errors="replace").splitlines()
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return next((number for number, line in enumerate(lines, 1) if whole.search(line)), 1)


def _protected_paths(root: Path) -> list[Path]:
    """Return the paths that no worker may touch, whatever its roots: they decide what runs, now or next time."""
    code = [path for pattern in ("*.py", "*/__init__.py") for path in root.glob(pattern)]
    return [*deciding_files(root), root / ".git", *code]


def _toolset(project: Project, declared: str | McpToolset, where: str) -> ToolsetFactory:
    if isinstance(declared, McpToolset):
        connect: ToolsetFactory = load_toolset("mcp")(declared, project.root)
        return connect
    factory: ToolsetFactory = project.load(declared)
    if not callable(factory):
        raise WorkerFileError(f"{where}: {declared!r} is no toolset factory: it is {quote(factory)}. Name a function.")
    return factory


def _tools_of(definition: WorkerDefinition) -> list[ToolEntry[Any]]:
    """Return our tools that a worker file asks for. If no root is writable, none of them writes."""
    tools: list[ToolEntry[Any]] = []
    for row in CATALOGUE:
        if row.name in definition.toolsets if row.key == "toolsets" else getattr(definition, row.key):
            loaded = load_toolset(row.name)
            tools += loaded if isinstance(loaded, tuple) else (loaded,)
    roots = definition.sandbox.paths.values() if definition.sandbox is not None else ()
    is_writable = any(root.mode == "rw" for root in roots)
    return [tool for tool in tools if is_writable or tool.rule != "sandbox.write"]


def load_toolset(name: str) -> Any:
    """Import a toolset of the catalogue: a tool, a tuple of tools or a factory. Most workers use few."""
    module, _, attribute = next(row.place for row in CATALOGUE if row.name == name).partition(":")
    return getattr(import_module(f"..toolsets.{module}", __package__), attribute)
