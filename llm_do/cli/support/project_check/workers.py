"""One worker: what its file names (tools, workers, types, servers), its settings and its folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_ai.settings import ModelSettings

from ....core.session_tools import no_such_tool
from ....core.worker import WorkerEntry
from ....definitions.definition import WorkerDefinition, places_of
from ....definitions.toolsets import McpToolset
from ....errors import did_you_mean
from ....machine.installation import install_extra
from ....policy.rules import RuleBook, check_rules
from ....projects.rule_names import ProjectTools
from ....sandbox.commands.bwrap import find_sandbox_problem
from .project import CheckedProject, Problem, line_of

_MAX_MISSING_NAMES = 100


def check_worker(project: CheckedProject, name: str) -> Iterator[Problem]:
    """Yield the names in a worker's file that do not exist, or else the first error of building the worker."""
    registry, definition = project.registry, project.definitions[name]
    file = registry.file_of(name)
    assert file is not None
    if file.generated:  # what its file says is not trusted: only what it may have is imported
        project.own_tools[name] = set()
        yield from _build(project, name, file.path)
        return
    problems = list(project.attempt("code", lambda: project.read_own_tools(name), file.own_tools or file.path))
    problems += find_missing_names(project, definition)
    values = [definition.input, definition.output, *definition.toolsets]
    for reference in [value for value in values if isinstance(value, str) and ":" in value]:
        for problem in project.attempt("reference", partial(registry.load, reference), file.path):
            # A wrong reference is reported where it is written, code that cannot be imported in its own file.
            is_here = problem.file == project.relative(file.path)
            problems.append(problem._replace(line=line_of(file.path, reference)) if is_here else problem)
    yield from problems
    yield from _check_settings(project, definition)
    if problems:
        # It cannot be built, but its rules can be checked.
        yield from project.attempt("rules", lambda: _check_rules(project, definition), file.path)
    else:
        yield from _build(project, name, file.path)


def find_missing_names(project: CheckedProject, definition: WorkerDefinition) -> Iterator[Problem]:
    path, workers = project.path_of(definition.name), project.workers
    known = {*workers, *project.functions, *project.own_tools.get(definition.name, ())}
    missing_tools = (tool for tool in dict.fromkeys(definition.tools) if tool not in known)
    for tool in islice(missing_tools, _MAX_MISSING_NAMES):
        yield project.problem("error", "no-tool", no_such_tool(tool, known), path, tool, "tools", names=(tool,))
    missing_workers = (each for each in dict.fromkeys(definition.allow_workers) if each not in {"*", *workers})
    for worker in islice(missing_workers, _MAX_MISSING_NAMES):
        message = f"there is no worker {worker!r}.{did_you_mean(worker, workers)}"
        yield project.problem("error", "no-worker", message, path, worker, "allow_workers", names=(worker,))


def _check_settings(project: CheckedProject, definition: WorkerDefinition) -> Iterator[Problem]:
    """Yield model settings that look misspelled: no provider reports these."""
    for name in (definition.model_settings or {}).keys() - ModelSettings.__annotations__.keys():
        if close := get_close_matches(name, ModelSettings.__annotations__, n=1, cutoff=0.8):
            message = f"model_settings has {name!r}, which no model knows. Did you mean {close[0]!r}?"
            path = project.path_of(definition.name)
            yield project.problem("warning", "settings", message, path, name, names=(definition.name,))


def _build(project: CheckedProject, name: str, path: Path) -> Iterator[Problem]:
    built: list[Any] = []
    yield from project.attempt("worker", lambda: built.append(project.registry[name]), path)
    if built and isinstance(built[0], WorkerEntry):
        if built[0].definition is not None:
            project.definitions[name] = built[0].definition  # a generated worker may have less than its file says
        yield from _check_surroundings(project, built[0])


def _check_rules(project: CheckedProject, definition: WorkerDefinition) -> None:
    registry = project.registry
    sandbox = definition.sandbox or registry.config.sandbox
    places = places_of(sandbox, registry.root)
    book = RuleBook(f"worker {definition.name!r}", definition.tool_rules, places)
    check_rules(book, ProjectTools(registry, definition, registry.own_tools(definition.name)))


def _check_surroundings(project: CheckedProject, entry: WorkerEntry[Any]) -> Iterator[Problem]:
    """Yield the folders and programs that a worker needs and that this machine does not have."""
    path, definition, names = project.path_of(entry.name), entry.definition, (entry.name,)
    for name, root in (entry.sandbox.paths if entry.sandbox is not None else {}).items():
        if not (folder := root.folder(entry.base.absolute())).is_dir():
            message = f"the folder of the root {name!r} does not exist: {folder}"
            yield project.problem("note", "no-folder", message, path, root.root, "sandbox", names=names)
    if definition is None:
        return
    if "shell" in definition.toolsets and (problem := find_sandbox_problem()):
        yield project.problem("warning", "no-sandbox", problem, path, "shell", "toolsets", names=names)
    for toolset in definition.toolsets:
        if isinstance(toolset, McpToolset) and (reason := _explain_unreachable(toolset)):
            yield project.problem("warning", "mcp", reason, path, "mcp", "toolsets", names=names)


def _explain_unreachable(toolset: McpToolset) -> str | None:
    """Return why the server of a toolset cannot be started here, as far as can be known without starting it."""
    if find_spec("fastmcp") is None:
        return f"MCP servers need `{install_extra('mcp')}`."
    command = toolset.mcp.command
    if command is not None and "/" not in command[0] and shutil.which(command[0]) is None:
        return f"the program {command[0]!r} of an MCP server is not on PATH."
    return None
