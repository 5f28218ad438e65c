"""`WorkerRegistry`: the files of a project as entries.

A project is a folder with `workers/`, perhaps `tools.py`, and perhaps `llm-do.toml`. Nothing is read before it
is needed, so a project of a thousand workers opens as fast as one of one, and a file that changed is seen at
the next call. Reading definitions never imports the project's code. Calling does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic_ai.capabilities import NativeTool

from .authority import cut
from .definition import (
    McpToolset,
    WorkerCreationDefaults,
    WorkerDefinition,
    WorkerSpec,
    define,
    dump_worker,
    native_tool,
    parse_worker,
)
from .entries import WorkerEntry
from .errors import DuplicateEntryError, UnknownEntryError, WorkerFileError, did_you_mean
from .names import describe, index_by_name, is_name
from .project import CONFIG, ProjectCode, ProjectConfig, entries_in, functions_in, read_config
from .protocols import Entry, ToolsetFactory
from .sandbox import SandboxConfig
from .toolsets import FILE_TOOLS, McpFactory, shell, worker_call, worker_create
from .usage import Limits

T = TypeVar("T")

_AS_TOOLS: Mapping[Any, Any] = {"files": FILE_TOOLS, "shell": shell, "worker_create": worker_create}
"""Names among the toolsets of a file that stand for tools of our own."""

RESERVED = ("generated", "worker")
"""Names that mean something else among the files."""

BY_PROJECT = "(project)"
"""The creator of a worker that a person made, with Python or the command line. No worker can be called so."""

GENERATED = "generated"
"""The folder below `workers/` for workers that were not written by a person."""


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """Where a worker is defined."""

    path: Path
    format: Literal["md", "yaml"]
    generated: bool = False
    in_folder: bool = False

    @property
    def own_tools(self) -> Path | None:
        """The file with the worker's own tools, where it has a folder of its own."""
        return self.path.parent / "tools.py" if self.in_folder else None


class WorkerRegistry(Mapping[str, Entry[Any]]):
    """The workers and functions of a project, by name."""

    def __init__(self, root: str | Path = ".") -> None:
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise WorkerFileError(f"There is no project at {root}: it is not a folder.")
        self._code = ProjectCode(self.root)
        self._kept: dict[Hashable, tuple[Hashable, Any]] = {}

    @property
    def config(self) -> ProjectConfig:
        """What `llm-do.toml` says."""
        path = self.root / CONFIG
        return self._fresh(path, (path,), lambda: read_config(path))

    # -- names -------------------------------------------------------------------------------------

    def workers(self) -> list[str]:
        """The names of all workers that have a file. No file is read."""
        folder = self._folder()
        found = {path.stem for pattern in ("*.md", "*.yaml") for path in folder.glob(pattern)}
        found |= {path.parent.name for pattern in ("*/worker.md", "*/worker.yaml") for path in folder.glob(pattern)}
        found |= {path.stem for path in (folder / GENERATED).glob("*.yaml")}
        return sorted(name for name in found if is_name(name) and name not in RESERVED)

    def file_of(self, name: str) -> WorkerFile | None:
        """The file of a worker, if there is one. A file that a person wrote stands before a generated one."""
        if not is_name(name) or name in RESERVED:
            return None
        folder = self._folder()
        candidates = [
            WorkerFile(folder / f"{name}.md", "md"),
            WorkerFile(folder / f"{name}.yaml", "yaml"),
            WorkerFile(folder / name / "worker.md", "md", in_folder=True),
            WorkerFile(folder / name / "worker.yaml", "yaml", in_folder=True),
        ]
        if (folder / f"{name}.yml").is_file():
            raise WorkerFileError(f"workers/{name}.yml: a worker's file ends with .yaml or .md. Rename it.")
        found = [file for file in candidates if file.path.is_file()]
        if len(found) > 1:
            both = " and ".join(self._shown(file.path) for file in found)
            raise DuplicateEntryError(f"Worker {name!r} has two files: {both}. Remove one.")
        generated = WorkerFile(folder / GENERATED / f"{name}.yaml", "yaml", generated=True)
        return found[0] if found else generated if generated.path.is_file() else None

    def definition(self, name: str) -> WorkerDefinition:
        """What the file of a worker says. No code is imported."""
        file = self.file_of(name)
        if file is None:
            raise UnknownEntryError(f"No worker is named {name!r}.{did_you_mean(name, self.workers())}")
        return self._definition(name, file)

    def __getitem__(self, name: str) -> Entry[Any]:
        functions = self._functions()
        file = self.file_of(name)
        if file is None and name not in functions:
            raise UnknownEntryError(
                f"No entry is named {name!r}.{did_you_mean(str(name), {*self.workers(), *functions})}"
            )
        if file is None:
            return functions[name]
        if name in functions:
            where = self._shown(file.path)
            raise DuplicateEntryError(f"{name!r} is a worker, {where}, and also {describe(functions[name])}.")
        return self._worker(name, file)

    def __iter__(self) -> Iterator[str]:
        yield from sorted({*self.workers(), *self._functions()})

    def __len__(self) -> int:
        return len({*self.workers(), *self._functions()})

    # -- from files to entries -----------------------------------------------------------------------

    def _worker(self, name: str, file: WorkerFile) -> WorkerEntry[Any]:
        effective = self._effective(name, file)
        own = [file.own_tools] if file.own_tools is not None else []
        sources = (file.path, self.root / CONFIG, *own)
        # A creator's file may have changed, and with it what this worker has.
        more = (effective.model_dump_json(), self._code.stamp())
        return self._fresh(("worker", file), sources, lambda: self._build(effective, file), more)

    def _effective(self, name: str, file: WorkerFile, below: tuple[str, ...] = ()) -> WorkerDefinition:
        """What a worker has: what its file says, cut to what its creator has now, and so on up."""
        definition = self._definition(name, file)
        if not file.generated:
            if definition.sandbox is None and self.config.sandbox is not None:
                definition = definition.model_copy(update={"sandbox": self.config.sandbox})
            return definition
        creator = definition.created_by
        if creator == BY_PROJECT:
            return definition
        creator_file = self.file_of(creator) if creator is not None and creator not in (*below, name) else None
        if creator is None or creator_file is None:
            return cut(definition, None, self.root)
        above = self._effective(creator, creator_file, (*below, name))
        # The creator's own tools are its own: a name that means one of them cannot be handed on.
        own = {tool.name for tool in self._own_tools(creator_file)}
        shared = tuple(tool for tool in above.tools if tool not in own)
        return cut(definition, above.model_copy(update={"tools": shared}), self.root)

    def _build(self, definition: WorkerDefinition, file: WorkerFile) -> WorkerEntry[Any]:
        where = self._shown(file.path)
        output: dict[str, Any] = {}
        if isinstance(definition.output, str):
            output["output_type"] = self._class(definition.output, where)
        elif definition.output is not None:
            output["output_schema"] = definition.output
        limits = definition.limits
        return WorkerEntry(
            name=definition.name,
            description=definition.description,
            instructions=definition.instructions or None,
            model=definition.model,
            model_settings=definition.model_settings,  # type: ignore[arg-type]
            input_type=self._class(definition.input, where) if isinstance(definition.input, str) else definition.input,
            tools=self._tools(definition, file, where),
            toolsets=[self._toolset(toolset, where) for toolset in definition.toolsets if not _is_ours(toolset)],
            tool_rules=definition.tool_rules,
            sandbox=definition.sandbox,
            base=self.root,
            protected=self._protected(),
            custom_tools_path=file.own_tools,
            allow_workers=definition.allow_workers,
            attachment_policy=definition.attachment_policy,
            limits=None if limits is None else Limits(**dict(limits)),
            capabilities=[NativeTool(native_tool(item)) for item in definition.native],
            definition=definition,
            generated=file.generated,
            **output,
        )

    def _tools(self, definition: WorkerDefinition, file: WorkerFile, where: str) -> list[Entry[Any] | str]:
        own = self._own_tools(file)
        own_names = {entry.name for entry in own}
        self._check(definition, where, own_names)
        tools: list[Entry[Any] | str] = [*own, *(tool for tool in definition.tools if tool not in own_names)]
        if definition.sandbox is not None:
            writable = any(root.mode == "rw" for root in definition.sandbox.paths.values())
            tools.extend(tool for tool in FILE_TOOLS if writable or tool.rule == "sandbox.read")
        if definition.allow_workers:
            tools.append(worker_call)
        tools.extend(_AS_TOOLS[toolset] for toolset in definition.toolsets if toolset in ("shell", "worker_create"))
        return tools

    def _line(self, where: str, word: str) -> int:
        """The line of a file where a name stands."""
        lines = (self.root / where).read_text(encoding="utf-8", errors="replace").splitlines()
        whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        return next((number for number, line in enumerate(lines, 1) if whole.search(line)), 1)

    def _own_tools(self, file: WorkerFile) -> list[Entry[Any]]:
        if file.own_tools is None or not file.own_tools.is_file():
            return []
        return functions_in(self._code.file(file.own_tools))

    def _check(self, definition: WorkerDefinition, where: str, own_names: set[str]) -> None:
        """What only the project can tell: whether all that a file names is there."""
        functions = self._functions()
        for tool in definition.tools:
            if tool not in own_names and tool not in functions and self.file_of(tool) is None:
                known = {*self.workers(), *functions, *own_names}
                line = self._line(where, tool)
                raise WorkerFileError(f"{where}:{line}: there is no tool {tool!r}.{did_you_mean(tool, known)}")
        for worker in definition.allow_workers:
            if worker != "*" and self.file_of(worker) is None:
                line, hint = self._line(where, worker), did_you_mean(worker, self.workers())
                raise WorkerFileError(f"{where}:{line}: there is no worker {worker!r}.{hint}")
        for toolset in ("files", "shell"):
            if toolset in definition.toolsets and definition.sandbox is None:
                raise WorkerFileError(f"{where}: the toolset {toolset!r} needs a sandbox with paths.")
        for name, root in (definition.sandbox.paths if definition.sandbox is not None else {}).items():
            if root.mode == "rw" and self.root.is_relative_to(root.folder(self.root)):
                raise WorkerFileError(f"{where}: the root {name!r} is the project itself. What it runs stays as it is.")
        rule = definition.tool_rules.get("shell")
        if rule is not None and rule.disposition == "allow":
            raise WorkerFileError(f"{where}: shell: allow is not possible. A command runs as you, so it always asks.")

    def _protected(self) -> list[Path]:
        """What no worker may touch, whatever its roots: what it is made of, and what would run the next time."""
        code = [path for pattern in ("*.py", "*/__init__.py") for path in self.root.glob(pattern)]
        return [self._folder(), self.root / ".git", self.root / CONFIG, self.root / "tools.py", *code]

    def _toolset(self, declared: str | McpToolset, where: str) -> ToolsetFactory:
        if isinstance(declared, McpToolset):
            return McpFactory(declared, self.root)
        made: ToolsetFactory = self._code.object(declared)
        if not callable(made):
            raise WorkerFileError(f"{where}: {declared!r} is no toolset factory: it is {made!r:.60}.")
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
        """Write `workers/generated/NAME.yaml`, all of it or nothing."""
        definition = define(spec, defaults or WorkerCreationDefaults(), created_by or BY_PROJECT)
        if definition.name in RESERVED:
            raise WorkerFileError(f"No worker can be called {definition.name!r}. Choose another name.")
        path = self._folder() / GENERATED / f"{definition.name}.yaml"
        existing = self.file_of(definition.name)
        if existing is not None and not existing.generated:
            raise WorkerFileError(f"{self._shown(existing.path)}: there is a worker of that name. Choose another one.")
        if definition.name in self._functions():
            raise WorkerFileError(f"{definition.name!r} is the name of a function of the project. Choose another one.")
        if existing is not None and force and by_model:
            old = self._definition(definition.name, existing)
            if old.locked or old.created_by != definition.created_by:
                raise WorkerFileError(f"{self._shown(path)}: the worker is locked, or another one's. It stays.")
        if created_by is not None:
            self._check_authority(definition, created_by)
        try:
            write_atomically(path, dump_worker(definition), replace=force)
        except FileExistsError:
            shown = self._shown(path)
            raise WorkerFileError(f"{shown}: the worker exists. With force it would be replaced.") from None
        return definition

    def _check_authority(self, wanted: WorkerDefinition, creator: str) -> None:
        """Say at once what a creator does not have. Whatever the file says later, it is cut at every call."""
        if creator == BY_PROJECT:
            return
        file = self.file_of(creator)
        have = cut(wanted, self._effective(creator, file) if file is not None else None, self.root)
        for right in ("tools", "toolsets", "allow_workers", "native"):
            if missing := [str(item) for item in getattr(wanted, right) if item not in getattr(have, right)]:
                raise WorkerFileError(
                    f"Worker {creator!r} cannot give what it does not have: {right} {', '.join(missing)}."
                )
        if wanted.sandbox is not None and _folders(wanted.sandbox, self.root) != _folders(have.sandbox, self.root):
            raise WorkerFileError(f"Worker {creator!r} cannot give files that it does not have.")

    def _class(self, reference: str, where: str) -> type[Any]:
        made = self._code.object(reference)
        if not isinstance(made, type):  # a function would be called with whatever a model says
            raise WorkerFileError(f"{where}: {reference!r} is no class: it is {made!r:.60}.")
        return made

    def _definition(self, name: str, file: WorkerFile) -> WorkerDefinition:
        def read() -> WorkerDefinition:
            return parse_worker(file.path.read_bytes(), name=name, path=self._shown(file.path), format=file.format)

        return self._fresh(("definition", file), (file.path,), read)

    def _functions(self) -> Mapping[str, Entry[Any]]:
        path = self.root / "tools.py"
        if not path.is_file():
            path = self.root / "tools" / "__init__.py"
        if not path.is_file():
            return {}
        make = lambda: index_by_name(entries_in(self._code.file(path)), f"the project ({path.name})")  # noqa: E731
        return self._fresh(path, (path,), make, self._code.stamp())

    def _folder(self) -> Path:
        return self.root / "workers"

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _fresh(self, key: Hashable, sources: tuple[Path, ...], make: Callable[[], T], more: Hashable = None) -> T:
        """What was made from files, until one of them changes."""
        stamp = (more, *(_stamp(path) for path in sources))
        kept = self._kept.get(key)
        if kept is None or kept[0] != stamp:
            kept = self._kept[key] = (stamp, make())
        made: T = kept[1]
        return made


def _stamp(path: Path) -> Hashable:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _is_ours(toolset: str | McpToolset) -> bool:
    return isinstance(toolset, str) and toolset in _AS_TOOLS


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


def write_atomically(path: Path, text: str, *, replace: bool) -> None:
    """Write a file so that whoever reads it finds all of it or nothing, whatever fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if replace:
            Path(temporary).replace(path)
        else:
            os.link(temporary, path)  # which fails if somebody else was faster
    finally:
        Path(temporary).unlink(missing_ok=True)
