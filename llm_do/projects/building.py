"""Build the entry of a worker from its definition, once all that its file names is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic_ai.capabilities import NativeTool

from ..budgets.limits import Limits
from ..core.entry import Entry, ToolsetFactory
from ..core.session_tools import no_such_tool
from ..core.worker import WorkerEntry
from ..definitions.definition import WorkerDefinition
from ..definitions.toolsets import McpToolset, native_tool
from ..errors import RuleError, WorkerFileError, did_you_mean
from ..machine.files import read_file
from ..policy.catalogue import CATALOGUE, TOOLSETS
from ..policy.rules import check_rules
from ..toolsets.table import load, tools_of
from ..values.texts import quote
from .generated import creators_of
from .layout import deciding_files
from .project import Project
from .rule_names import ProjectTools
from .worker_files import BY_PROJECT, WorkerFile


def build_worker(project: Project, definition: WorkerDefinition, file: WorkerFile) -> WorkerEntry[Any]:
    """Return a worker as an entry, whose rules name only tools that are there."""
    own_tools = project.tools_beside(file)
    try:
        entry = _build(project, definition, file, own_tools)
        if entry.rule_book is not None:
            check_rules(entry.rule_book, ProjectTools(project, definition, own_tools))
        return entry
    except RuleError as exc:
        raise WorkerFileError(str(exc)) from exc


def _build(
    project: Project, definition: WorkerDefinition, file: WorkerFile, own_tools: list[Entry[Any]]
) -> WorkerEntry[Any]:
    where = project.files.display_path(file.path)
    input_type: Any = definition.input
    if isinstance(input_type, str) and input_type != "none":
        input_type = project.load_class(input_type, file)
    output: dict[str, Any] = {}
    if isinstance(definition.output, str):
        output["output_type"] = project.load_class(definition.output, file)
    elif definition.output is not None:
        output["output_schema"] = definition.output
    return WorkerEntry[Any](
        name=definition.name,
        description=definition.description,
        instructions=definition.instructions or None,
        model=definition.model,
        compatible_models=definition.compatible_models,
        model_settings=definition.model_settings,  # type: ignore[arg-type]
        input_type=input_type,
        tools=_tools(project, definition, own_tools, where),
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


def _tools(
    project: Project, definition: WorkerDefinition, own_tools: list[Entry[Any]], where: str
) -> list[Entry[Any] | str]:
    own_names = {entry.name for entry in own_tools}
    _check_names(project, definition, where, own_names)
    project.writable.check_roots(definition.sandbox, project.root, where)
    return [*own_tools, *(tool for tool in definition.tools if tool not in own_names), *tools_of(definition)]


def _check_names(project: Project, definition: WorkerDefinition, where: str, own_names: set[str]) -> None:
    """Refuse a definition that names tools, workers or roots that are not there."""

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
    """Return the line of a file where a name stands."""
    lines = read_file(file).decode(errors="replace").splitlines()
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return next((number for number, line in enumerate(lines, 1) if whole.search(line)), 1)


def _protected_paths(root: Path) -> list[Path]:
    """Return the paths that no worker may touch, whatever its roots: files that decide what runs, now or next time."""
    code = [path for pattern in ("*.py", "*/__init__.py") for path in root.glob(pattern)]
    return [*deciding_files(root), root / ".git", *code]


def _toolset(project: Project, declared: str | McpToolset, where: str) -> ToolsetFactory:
    if isinstance(declared, McpToolset):
        connect: ToolsetFactory = load("mcp")(declared, project.root)
        return connect
    factory: ToolsetFactory = project.code.object(declared)
    if not callable(factory):
        raise WorkerFileError(f"{where}: {declared!r} is no toolset factory: it is {quote(factory)}. Name a function.")
    return factory
