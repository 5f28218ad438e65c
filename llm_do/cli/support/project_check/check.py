"""All checks of a project, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ....projects.layout import files_of, tools_file
from ....projects.registry import WorkerRegistry
from .calls import find_cycles, find_unused
from .files import find_stray_files
from .models import check_models, check_providers
from .project import CheckedProject, Problem
from .workers import check_worker, find_missing_names


@dataclass
class Findings:
    """The problems of a project, the worst first."""

    workers: int
    functions: int
    problems: list[Problem]


def check_project(registry: WorkerRegistry, *, strict: bool = False) -> Findings:
    """Find all problems that can be found without running anything. With `strict`, warnings are errors."""
    project = CheckedProject(registry)
    problems = list(dict.fromkeys(_find_problems(project)))
    if strict:
        problems = [problem._replace(level="error") if problem.level == "warning" else problem for problem in problems]
    levels = ("error", "warning", "note")
    problems.sort(key=lambda problem: (levels.index(problem.level), problem.file or "", problem.line or 0))
    return Findings(len(project.workers), len(project.functions), problems)


def _find_problems(project: CheckedProject) -> Iterator[Problem]:
    registry = project.registry
    yield from find_stray_files(registry.root)
    config = list(project.attempt("config", lambda: registry.config, project.config_file))
    functions = list(project.attempt("code", project.read_functions, tools_file(registry.root)))
    yield from (*config, *functions)
    for name in project.workers:
        path = next(iter(files_of(registry.root, name)), None)
        yield from project.attempt("file", partial(project.read_worker, name), path)
    if config or functions:
        broken = [problem.file for problem in (*config, *functions) if problem.file]
        reason = f"since {' and '.join(dict.fromkeys(broken)) or 'the project'} cannot be used"
        yield Problem("note", "not-built", f"No worker was built, {reason}.")
        for name, definition in () if functions else project.definitions.items():
            if (file := registry.file_of(name)) is not None and not file.generated:
                yield from find_missing_names(project, definition)
    else:
        yield from _check_workers(project)
        yield from check_providers(project)
        yield from check_models(project)
    yield from find_cycles(project)
    yield from find_unused(project)


def _check_workers(project: CheckedProject) -> Iterator[Problem]:
    registry = project.registry
    for name in project.definitions:
        yield from check_worker(project, name)
    if len(project.own_tools) == len(project.definitions):
        yield from project.attempt("rules", registry.rule_book, project.config_file)
    elif registry.config.tool_rules:
        message = "its rules were not compared with tools, since not all tools can be imported."
        yield project.problem("note", "not-checked", message, project.config_file)
