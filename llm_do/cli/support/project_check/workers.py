"""One worker: the tools, workers, types and servers that its file names, its settings, and its folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_ai.settings import ModelSettings

from ....core.names import no_such_tool
from ....core.worker import WorkerEntry
from ....definitions.definition import WorkerDefinition, places_of
from ....definitions.toolsets import McpToolset
from ....errors import did_you_mean
from ....machine.installation import install_extra
from ....policy.rules import RuleBook, check_rules
from ....projects.rule_names import ProjectTools
from ....sandbox.commands.selection import select_runner
from .problem import Problem, line_of
from .project import CheckedProject

_MOST_MISSING = 100
"""How many missing names of one worker are reported."""


def check_worker(project: CheckedProject, name: str) -> Iterator[Problem]:
    """Yield all names of a worker that lead nowhere; only if there are none, the first error of building it."""
    registry, definition = project.registry, project.definitions[name]
    file = registry.file_of(name)
    assert file is not None
    where = project.relative(file.path)
    if file.generated:  # what its file says is not trusted: only what it may have is imported
        project.own_tools[name] = set()
        yield from _build(project, name, where)
        return
    code = project.relative(file.own_tools) if file.own_tools is not None else where
    problems = list(project.attempt("code", lambda: project.read_own_tools(name), code))
    problems += find_missing_names(project, definition)
    for reference in _references(definition):
        for problem in project.attempt("reference", lambda ref=reference: registry.load(ref), where):  # type: ignore[misc]
            # A wrong reference is wrong where it is written; code that cannot be imported is wrong itself.
            is_here = problem.file == where
            problems.append(problem._replace(line=line_of(file.path, reference)) if is_here else problem)
    yield from problems
    yield from _check_settings(definition, file.path, where)
    if problems:
        # It cannot be built, but its rules can be checked.
        yield from project.attempt("rules", lambda: _check_rules(project, definition), where)
    else:
        yield from _build(project, name, where)


def find_missing_names(project: CheckedProject, definition: WorkerDefinition) -> Iterator[Problem]:
    """Yield the tools and workers that a worker names and that do not exist."""
    path, workers = project.path_of(definition.name), project.workers
    where = project.relative(path)
    known = {*workers, *project.functions, *project.own_tools.get(definition.name, ())}
    missing_tools = (tool for tool in dict.fromkeys(definition.tools) if tool not in known)
    for tool in islice(missing_tools, _MOST_MISSING):
        message, line = no_such_tool(tool, known), line_of(path, tool, "tools")
        yield Problem("error", "no-tool", message, where, line, (tool,))
    missing_workers = (each for each in dict.fromkeys(definition.allow_workers) if each not in {"*", *workers})
    for worker in islice(missing_workers, _MOST_MISSING):
        message = f"there is no worker {worker!r}.{did_you_mean(worker, workers)}"
        yield Problem("error", "no-worker", message, where, line_of(path, worker, "allow_workers"), (worker,))


def _references(definition: WorkerDefinition) -> list[str]:
    values = [definition.input, definition.output, *definition.toolsets]
    return [value for value in values if isinstance(value, str) and ":" in value]


def _check_settings(definition: WorkerDefinition, path: Path, where: str) -> Iterator[Problem]:
    """Yield model settings that look like misspelled ones: no provider reports these."""
    for name in (definition.model_settings or {}).keys() - ModelSettings.__annotations__.keys():
        if close := get_close_matches(name, ModelSettings.__annotations__, n=1, cutoff=0.8):
            message = f"model_settings has {name!r}, which no model knows. Did you mean {close[0]!r}?"
            yield Problem("warning", "settings", message, where, line_of(path, name), (definition.name,))


def _build(project: CheckedProject, name: str, where: str) -> Iterator[Problem]:
    built: list[Any] = []
    yield from project.attempt("worker", lambda: built.append(project.registry[name]), where)
    if built and isinstance(built[0], WorkerEntry):
        if built[0].definition is not None:
            project.definitions[name] = built[0].definition  # a generated worker may have less than its file says
        yield from _check_surroundings(project, built[0], where)


def _check_rules(project: CheckedProject, definition: WorkerDefinition) -> None:
    registry = project.registry
    sandbox = definition.sandbox or registry.config.sandbox
    places = places_of(sandbox, registry.root)
    book = RuleBook(f"worker {definition.name!r}", definition.tool_rules, places)
    check_rules(book, ProjectTools(registry, definition, registry.own_tools(definition.name)))


def _check_surroundings(project: CheckedProject, entry: WorkerEntry[Any], where: str) -> Iterator[Problem]:
    """Yield the folders, programs and features of this machine that a worker needs and that are not there."""
    path, definition = project.path_of(entry.name), entry.definition
    for name, root in (entry.sandbox.paths if entry.sandbox is not None else {}).items():
        if not (folder := root.folder(entry.base.absolute())).is_dir():
            message = f"the folder of the root {name!r} does not exist: {folder}"
            yield Problem("note", "no-folder", message, where, line_of(path, root.root, "sandbox"), (entry.name,))
    if definition is None:
        return
    if "shell" in definition.toolsets and (problem := select_runner(sandboxed=True).unavailable_reason()):
        yield Problem("warning", "no-sandbox", problem, where, line_of(path, "shell", "toolsets"), (entry.name,))
    for toolset in definition.toolsets:
        if isinstance(toolset, McpToolset) and (reason := _why_unreachable(toolset)):
            yield Problem("warning", "mcp", reason, where, line_of(path, "mcp", "toolsets"), (entry.name,))


def _why_unreachable(toolset: McpToolset) -> str | None:
    """Return why the server of a toolset cannot be started here. Only starting it could tell more."""
    if find_spec("fastmcp") is None:
        return f"MCP servers need `{install_extra('mcp')}`."
    command = toolset.mcp.command
    if command is not None and "/" not in command[0] and shutil.which(command[0]) is None:
        return f"the program {command[0]!r} of an MCP server is not on PATH."
    return None
