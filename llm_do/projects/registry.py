"""`WorkerRegistry`: the files of a project as entries.

A project is a folder with `workers/`, perhaps `tools.py`, and perhaps `llm-do.toml`. Nothing is read before it
is needed, so a project of a thousand workers opens as fast as one of one, and a file that changed is seen at
the next call. Reading definitions never imports the project's code. Calling does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models import Model
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES

from .. import toolsets
from ..arguments.inputs import NoParameters, OpenParameters
from ..arguments.signatures import model_parameters
from ..budgets.limits import Limits
from ..budgets.prices import Price
from ..core.adapt import describe, parameters_of, rule_name
from ..core.entries import WorkerEntry
from ..core.entry import Entry, ToolsetFactory
from ..core.names import index_by_name, no_such_tool
from ..core.recorder import logger
from ..definitions.definition import (
    McpToolset,
    WorkerCreationDefaults,
    WorkerDefinition,
    WorkerSpec,
    define,
    native_tool,
    places_of,
)
from ..definitions.inherit import cut
from ..errors import DuplicateEntryError, LlmDoError, RuleError, UnknownEntryError, WorkerFileError, did_you_mean
from ..machine.files import Owners, read_file
from ..models import make_own_model
from ..policy.catalogue import is_reserved
from ..policy.rules import RuleBook, Shape, check_rules, shape_of
from ..sandbox import SandboxConfig
from ..values.texts import quote
from .code import ProjectCode, ProjectConfig, entries_in, explain_public_name, functions_in, read_config
from .layout import CONFIG, deciding_files, tools_file
from .worker_files import BY_PROJECT, Fresh, WorkerFile, WorkerFiles, check_owner
from .writable import WritableFolders

_OURS = ("files", "shell", "worker_create")
"""Names among the toolsets of a file that stand for tools of our own."""


class WorkerRegistry(Mapping[str, Entry[Any]]):
    """The workers and functions of a project, by name."""

    def __init__(
        self, root: str | Path = ".", *, only: Path | None = None, owners: Collection[int] | None = None
    ) -> None:
        """Open the project in a folder.

        `only` is the file of a lone worker, to be used without a project. With `owners`, nothing is used that belongs
        to other users than these; for a lone worker, the owner of its folder does not matter.
        """
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise WorkerFileError(f"There is no project at {root}: it is not a folder.")
        self._owners = None if owners is None else Owners(owners, self.root, lone=only is not None)
        self._code = ProjectCode(self.root, lambda: self._writable.folders(), self._owners)
        self._files = WorkerFiles(self.root, only, self._owners)
        self._writable = WritableFolders(self.root, self._files, self._code, self._read_config)
        self._fresh = Fresh()
        self._told: set[str] = set()
        """What the user was told about files that are no more what the project wrote."""

    @property
    def config(self) -> ProjectConfig:
        """What `llm-do.toml` says."""
        self._writable.check_way(self.root / CONFIG)
        return self._read_config()

    def _read_config(self) -> ProjectConfig:
        path = self.root / CONFIG

        def read() -> ProjectConfig:
            check_owner(path, self.root, self._owners)
            return read_config(path)

        return self._fresh.get(path, (path,), read)

    def rule_book(self) -> RuleBook | None:
        """The rules of `llm-do.toml`, which hold in every session of the project."""
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

    def secret_names(self) -> tuple[str, ...]:
        """The environment variables that `llm-do.toml` keeps secret, in every session of the project."""
        return self.config.secrets

    def model_prices(self) -> Mapping[str, Price]:
        """The prices that `llm-do.toml` gives, for every session of the project."""
        return self.config.prices

    def providers(self) -> Mapping[str, str]:
        """The providers that `llm-do.toml` declares: prefixes of models, and their factories. No code is imported."""
        return self.config.providers

    def make_model(self, name: str) -> Model | None:
        """The model of this name, if its prefix is one of the project's providers. Its factory is imported and runs."""
        return make_own_model(name, self.providers(), self.load, self.root)

    def load(self, reference: str) -> Any:
        """Return the object that `module:Name` or `file.py:Name` names. The project's code is imported."""
        found = self._code.object(reference)
        self._writable.check_made_in_python()
        return found

    # -- names -------------------------------------------------------------------------------------

    def workers(self) -> list[str]:
        """The names of all workers that have a file. No file is read."""
        return self._files.names()

    def file_of(self, name: str) -> WorkerFile | None:
        """The file of a worker, if there is one. A file that a person wrote stands before a generated one."""
        return self._files.find(name)

    def definition(self, name: str) -> WorkerDefinition:
        """What the file of a worker says. No code is imported."""
        file = self.file_of(name)
        if file is None:
            raise UnknownEntryError(f"No worker is named {name!r}.{did_you_mean(name, self.workers())}")
        definition = self._read(name, file)[0]
        return definition.at(self.root, self.config.sandbox) if definition.tool_rules else definition

    def _read(self, name: str, file: WorkerFile) -> tuple[WorkerDefinition, str]:
        """Return what a file says, and its digest, if neither the file nor its seal can be the work of a worker."""
        self._check_way(file)
        return self._files.read(name, file)

    def _check_way(self, file: WorkerFile) -> None:
        self._writable.check_way(file.path)
        if file.generated:
            self._writable.check_way(file.seal)

    def __getitem__(self, name: str) -> Entry[Any]:
        functions = self._functions()
        file = self.file_of(name)
        if file is None and name not in functions:
            why = self.explain_name(name)
            hint = did_you_mean(str(name), {*self.workers(), *functions}) if why is None else f" {why}"
            raise UnknownEntryError(f"No entry is named {name!r}.{hint}")
        if file is None:
            return functions[name]
        if name in functions:
            where = self._shown(file.path)
            raise DuplicateEntryError(f"{name!r} is a worker, {where}, and also {describe(functions[name])}.")
        return self._worker(name, file)

    def explain_name(self, name: str) -> str | None:
        """Say why a public name of `tools.py` is no entry, where it could be meant as one."""
        path = tools_file(self.root)
        if path is None or not isinstance(name, str) or name.startswith("_"):
            return None
        return explain_public_name(self._code.file(path), name, self.root)

    def __iter__(self) -> Iterator[str]:
        yield from sorted({*self.workers(), *self._functions()})

    def __contains__(self, name: object) -> bool:
        """Whether there is such an entry. Nothing is built, and no file of a worker is read."""
        return isinstance(name, str) and (self.file_of(name) is not None or name in self._functions())

    def __len__(self) -> int:
        return len({*self.workers(), *self._functions()})

    # -- from files to entries -----------------------------------------------------------------------

    def _worker(self, name: str, file: WorkerFile) -> WorkerEntry[Any]:
        effective = self._effective(name, file)
        own = [file.own_tools] if file.own_tools is not None else []
        sources = (file.path, self.root / CONFIG, *own)
        # A creator's file may have changed, and with it what this worker has.
        more = (effective.model_dump_json(), self._code.stamp())
        return self._fresh.get(("worker", file), sources, lambda: self._build_checked(effective, file), more)

    def _effective(self, name: str, file: WorkerFile, below: tuple[str, ...] = ()) -> WorkerDefinition:
        """What a worker has: what its file says, cut to what its creator has now, and so on up."""
        definition, digest = self._read(name, file)
        if not file.generated:
            if definition.sandbox is None and self.config.sandbox is not None:
                definition = definition.model_copy(update={"sandbox": self.config.sandbox})
            return definition
        creator = self._files.creator(name, file)
        if creator == BY_PROJECT:
            return definition
        if creator is None:
            return self._without_authority(definition, digest, file)
        creator_file = self.file_of(creator) if creator not in (*below, name) else None
        if creator_file is None:
            return cut(definition, None, self.root, self.providers())
        above = self._effective(creator, creator_file, (*below, name))
        # The creator's own tools are its own: a name that means one of them cannot be handed on.
        own = {tool.name for tool in self._own_tools(creator_file)}
        shared = tuple(tool for tool in above.tools if tool not in own)
        return cut(definition, above.model_copy(update={"tools": shared}), self.root, self.providers())

    def _creators(self, name: str, file: WorkerFile | None) -> list[str]:
        """Who created a generated worker, and so on up."""
        found: list[str] = []
        while file is not None and file.generated:
            creator = self._files.creator(name, file)
            if creator is None or creator == BY_PROJECT or creator in found:
                break
            found.append(creator)
            name, file = creator, self.file_of(creator)
        return found

    def _without_authority(self, definition: WorkerDefinition, digest: str, file: WorkerFile) -> WorkerDefinition:
        have = cut(definition, None, self.root, self.providers())
        if have != definition and digest not in self._told:
            self._told.add(digest)
            logger.warning(
                "%s was edited, or not created by a worker or a program, so it has nothing but its words. Move it to "
                "workers/ to give it what it says, or create it anew.",
                self._shown(file.path),
            )
        return have

    def _build_checked(self, definition: WorkerDefinition, file: WorkerFile) -> WorkerEntry[Any]:
        try:
            entry = self._build(definition, file)
            if entry.rule_book is not None:
                check_rules(entry.rule_book, ProjectTools(self, definition, self._own_tools(file)))
            return entry
        except RuleError as exc:
            raise WorkerFileError(str(exc)) from exc

    def _build(self, definition: WorkerDefinition, file: WorkerFile) -> WorkerEntry[Any]:
        where = self._shown(file.path)
        output: dict[str, Any] = {}
        if isinstance(definition.output, str):
            output["output_type"] = self._class(definition.output, where)
        elif definition.output is not None:
            output["output_schema"] = definition.output
        limits = definition.limits
        return WorkerEntry[Any](
            name=definition.name,
            description=definition.description,
            instructions=definition.instructions or None,
            model=definition.model,
            compatible_models=definition.compatible_models,
            model_settings=definition.model_settings,  # type: ignore[arg-type]
            input_type=self._input_type(definition.input, where),
            tools=self._tools(definition, self._own_tools(file), where),
            toolsets=[self._toolset(toolset, where) for toolset in definition.toolsets if not _is_ours(toolset)],
            tool_rules=definition.tool_rules,
            sandbox=definition.sandbox,
            base=self.root,
            protected=self._protected(),
            custom_tools_path=file.own_tools,
            allow_workers=definition.allow_workers,
            attachment_policy=definition.attachment_policy,
            limits=None if limits is None else Limits(**dict(limits)),
            on_cut_off=definition.on_cut_off,
            capabilities=[NativeTool(native_tool(item)) for item in definition.native],
            definition=definition.at(self.root),
            creators=self._creators(definition.name, file),
            generated=file.generated and self._files.creator(definition.name, file) != BY_PROJECT,
            **output,
        )

    def _tools(self, definition: WorkerDefinition, own: list[Entry[Any]], where: str) -> list[Entry[Any] | str]:
        own_names = {entry.name for entry in own}
        self._check(definition, where, own_names)
        tools: list[Entry[Any] | str] = [*own, *(tool for tool in definition.tools if tool not in own_names)]
        if definition.sandbox is not None:
            writable = any(root.mode == "rw" for root in definition.sandbox.paths.values())
            tools.extend(tool for tool in toolsets.FILE_TOOLS if writable or tool.rule == "sandbox.read")
        if definition.allow_workers:
            tools.append(toolsets.worker_call)
        if "shell" in definition.toolsets:
            tools.append(toolsets.shell)
        if "worker_create" in definition.toolsets:
            tools.append(toolsets.worker_create)
        return tools

    def _line(self, where: str, word: str) -> int:
        """The line of a file where a name stands."""
        lines = read_file(self.root / where).decode(errors="replace").splitlines()
        whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        return next((number for number, line in enumerate(lines, 1) if whole.search(line)), 1)

    def _own_tools(self, file: WorkerFile) -> list[Entry[Any]]:
        if file.own_tools is None or not os.path.lexists(file.own_tools):
            return []
        found = functions_in(self._code.file(file.own_tools))
        self._writable.check_made_in_python()
        return found

    def _check(self, definition: WorkerDefinition, where: str, own_names: set[str]) -> None:
        """What only the project can tell: whether all that a file names is there."""
        functions = self._functions()
        for tool in definition.tools:
            if tool not in own_names and tool not in functions and self.file_of(tool) is None:
                known, why = {*self.workers(), *functions, *own_names}, self.explain_name(tool)
                problem = no_such_tool(tool, known) if why is None else f"there is no tool {tool!r}. {why}"
                raise WorkerFileError(f"{where}:{self._line(where, tool)}: {problem}")
        for worker in definition.allow_workers:
            if worker != "*" and self.file_of(worker) is None:
                line, hint = self._line(where, worker), did_you_mean(worker, self.workers())
                raise WorkerFileError(f"{where}:{line}: there is no worker {worker!r}.{hint}")
        for toolset in ("files", "shell"):
            if toolset in definition.toolsets and definition.sandbox is None:
                raise WorkerFileError(f"{where}: the toolset {toolset!r} needs a sandbox with paths.")
        roots = definition.sandbox.paths if definition.sandbox is not None else {}
        for server in definition.toolsets:
            for name in server.mcp.roots if isinstance(server, McpToolset) else ():
                if name not in roots:
                    line, hint = self._line(where, name), did_you_mean(name, roots)
                    raise WorkerFileError(
                        f"{where}:{line}: the worker has no root {name!r} that an MCP server could be told.{hint} "
                        "Name one of `sandbox.paths`."
                    )
        self._writable.check_roots(definition.sandbox, self.root, where)

    def _protected(self) -> list[Path]:
        """What no worker may touch, whatever its roots: what it is made of, and what would run the next time."""
        code = [path for pattern in ("*.py", "*/__init__.py") for path in self.root.glob(pattern)]
        return [*deciding_files(self.root), self.root / ".git", *code]

    def _toolset(self, declared: str | McpToolset, where: str) -> ToolsetFactory:
        if isinstance(declared, McpToolset):
            return toolsets.McpFactory(declared, self.root)
        made: ToolsetFactory = self._code.object(declared)
        if not callable(made):
            raise WorkerFileError(f"{where}: {declared!r} is no toolset factory: it is {quote(made)}.")
        return made

    # -- creating workers ----------------------------------------------------------------------------

    def create(
        self,
        spec: WorkerSpec,
        defaults: WorkerCreationDefaults | None = None,
        *,
        created_by: str | None = None,
        force: bool = False,
        by_model: bool = False,
    ) -> WorkerDefinition:
        """Write `workers/generated/NAME.yaml`, all of it or nothing.

        A seal beside it tells who created it, without which the file would not be believed.
        """
        definition = define(spec, defaults or WorkerCreationDefaults(), created_by or BY_PROJECT)
        if is_reserved(definition.name):
            raise WorkerFileError(f"No new worker can be called {definition.name!r}: the name means something else.")
        existing = self.file_of(definition.name)
        if existing is not None and not existing.generated:
            raise WorkerFileError(f"{self._shown(existing.path)}: there is a worker of that name. Choose another one.")
        if definition.name in self._functions():
            raise WorkerFileError(f"{definition.name!r} is the name of a function of the project. Choose another one.")
        for name in (*self.workers(), *self._functions()):  # a person, or a disk, could take one for the other
            if name != definition.name and name.casefold() == definition.name.casefold():
                raise WorkerFileError(f"{definition.name!r} differs from {name!r} only in case. Choose another one.")
        if created_by is not None:
            self._check_authority(definition, created_by)
        self._check_way(self._files.generated(definition.name))
        try:
            self._files.store(definition, force=force, by_model=by_model)
        except OSError as exc:
            raise WorkerFileError(
                f"Worker {definition.name!r} cannot be written in workers/generated/: {exc.strerror or exc}."
            ) from exc
        return definition.at(self.root)

    def _check_authority(self, wanted: WorkerDefinition, creator: str) -> None:
        """Say at once what a creator does not have. Whatever the file says later, it is cut at every call."""
        if creator == BY_PROJECT:
            return
        file = self.file_of(creator)
        own = {tool.name for tool in self._own_tools(file)} if file is not None else set()
        if mine := [tool for tool in wanted.tools if tool in own]:
            raise WorkerFileError(f"Worker {creator!r} cannot give the tools of its own folder: {', '.join(mine)}.")
        above = self._effective(creator, file) if file is not None else None
        have = cut(wanted, above, self.root, self.providers())
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
        if wanted.sandbox is not None and _folders(wanted.sandbox, self.root) != _folders(have.sandbox, self.root):
            raise WorkerFileError(f"Worker {creator!r} cannot give files that it does not have.")

    def _class(self, reference: str, where: str) -> type[Any]:
        made = self._code.object(reference)
        if not isinstance(made, type):  # a function would be called with whatever a model says
            raise WorkerFileError(f"{where}: {reference!r} is no class: it is {quote(made)}.")
        return made

    def _input_type(self, declared: str | dict[str, Any] | None, where: str) -> Any:
        return self._class(declared, where) if isinstance(declared, str) and declared != "none" else declared

    def _shape_of_worker(self, name: str, file: WorkerFile) -> Shape:
        """The arguments of a worker, from its definition: to build it here could go round in circles."""
        declared = self._effective(name, file).input
        if declared == "none":
            return shape_of(NoParameters(name).json_schema)
        if isinstance(declared, str):
            declared_type = self._class(declared, self._shown(file.path))
            return shape_of(model_parameters(name, declared_type).vocabulary.shape)
        return shape_of(OpenParameters(name).json_schema if declared is None else declared)

    def own_tools(self, name: str) -> list[Entry[Any]]:
        """The tools that a worker has of its own, in its folder."""
        file = self.file_of(name)
        return [] if file is None else self._own_tools(file)

    def with_rule_name(self, name: str) -> Entry[Any] | None:
        """Return a function of the project, or a worker's own tool, that rules call so. It imports the code of all."""
        found = list(self._functions().values())
        for worker in self.workers():
            with suppress(LlmDoError):  # what is wrong with it is said when it is called
                found += self.own_tools(worker)
        return next((tool for tool in found if name in (tool.name, rule_name(tool))), None)

    def _functions(self) -> Mapping[str, Entry[Any]]:
        if (path := tools_file(self.root)) is None:
            return {}
        return self._fresh.get(path, (path,), lambda: self._read_functions(path), self._code.stamp())

    def _read_functions(self, path: Path) -> Mapping[str, Entry[Any]]:
        found = index_by_name(entries_in(self._code.file(path)), f"the project ({path.name})")
        self._writable.check_made_in_python()
        return found

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root))


class ProjectTools:
    """The tools of a project that the rules of a worker, or of the project itself, can speak of."""

    def __init__(
        self, registry: WorkerRegistry, worker: WorkerDefinition | None = None, own: Sequence[Entry[Any]] = ()
    ) -> None:
        self._registry = registry
        self._worker = worker
        self._entries = [*own, *registry._functions().values()]
        ours: list[Entry[Any]] = [*toolsets.FILE_TOOLS, toolsets.shell, toolsets.worker_call, toolsets.worker_create]
        self.rule_names: Mapping[str, str] = {tool.name: rule_name(tool) for tool in (*ours, *self._entries)}
        self.servers: Collection[str] = ()

    def shapes(self, name: str) -> Sequence[Shape] | None:
        found = [self._shape(entry) for entry in self._entries if rule_name(entry) == name]
        if not found and (file := self._registry.file_of(name)) is not None:
            found = [self._registry._shape_of_worker(name, file)]
        if not found and name in NATIVE_TOOL_TYPES:
            found = [{}]
        return found or self._shapes_below(name) or None

    def _shapes_below(self, name: str) -> list[Shape]:
        """What a worker's rules say holds for those it calls, so they may speak of the own tools of these."""
        return [
            self._shape(tool)
            for below in self._below()
            for tool in self._registry.own_tools(below)
            if tool.name == name
        ]

    def _shape(self, entry: Entry[Any]) -> Shape:
        return shape_of(parameters_of(entry).vocabulary.shape)

    def names(self) -> Iterable[str]:
        return {*self._registry.workers(), *map(rule_name, self._entries)}

    def may_grow(self) -> bool:
        known = [] if self._worker is None else [self._worker]
        definitions = [*known, *map(self._registry.definition, self._below())]
        return any(not _is_ours(toolset) for each in definitions for toolset in each.toolsets)

    def _below(self) -> list[str]:
        """The workers that can be called from here, at any depth. One that cannot be read says so when it is called."""
        registry, found, seen = self._registry, list[str](), set[str]()
        waiting = registry.workers() if self._worker is None else [*self._worker.tools, *self._worker.allow_workers]
        while waiting:
            name = waiting.pop()
            if name == "*":
                waiting = registry.workers()
            elif name not in seen:
                seen.add(name)
                with suppress(LlmDoError):
                    definition = registry.definition(name)
                    found.append(name)
                    waiting += [*definition.tools, *definition.allow_workers]
        return found


def _is_ours(toolset: str | McpToolset) -> bool:
    return isinstance(toolset, str) and toolset in _OURS


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
