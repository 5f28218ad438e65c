"""All checks of a project in order, and those of file names and of calls between workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ....definitions.call_graph import connected_groups, shortest_cycle
from ....projects.discovery import names_in_code
from ....projects.layout import files_of, tools_file
from ....projects.registry import WorkerRegistry
from ....values.names import AMONG_FILES, NAME_RULE, is_name
from ..sessions import DEFAULT_DEPTH
from .models import check_models, check_providers
from .project import CheckedProject, Problem, join_names, line_of
from .workers import check_worker, find_missing_names

_PLACES = "llm-do looks for workers/NAME.md, workers/NAME.yaml, and workers/NAME/worker.md or worker.yaml"


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
    yield from _find_stray_files(registry.root)
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
    yield from _find_cycles(project)
    yield from _find_unused(project)


def _check_workers(project: CheckedProject) -> Iterator[Problem]:
    registry = project.registry
    for name in project.definitions:
        yield from check_worker(project, name)
    if len(project.own_tools) == len(project.definitions):
        yield from project.attempt("rules", registry.rule_book, project.config_file)
    elif registry.config.tool_rules:
        message = "its rules were not compared with tools, since not all tools can be imported."
        yield project.problem("note", "not-checked", message, project.config_file)


def _find_stray_files(root: Path) -> Iterator[Problem]:
    """Yield files and folders in `workers/` that would be ignored without an error."""
    folder = root / "workers"
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        file = str(path.relative_to(root))
        if path.suffix in (".md", ".yaml", ".yml") and path.is_file():
            yield from _check_file_name(path, file)
        elif path.is_dir() and path.name not in ("generated", "__pycache__"):
            yield from _check_folder(path, file)
    for path in sorted((folder / "generated").glob("*")):
        if path.suffix in (".md", ".yml"):
            message = "a generated worker is a .yaml file, not this."
            yield Problem("warning", "no-worker-file", message, str(path.relative_to(root)))


def _check_folder(path: Path, file: str) -> Iterator[Problem]:
    names = [child.name for child in path.iterdir()]
    if "worker.md" in names or "worker.yaml" in names:
        yield from _check_name(path.name, file)
    elif any(name.endswith((".md", ".yaml", ".yml")) or name == "tools.py" for name in names):
        yield Problem("warning", "no-worker-file", f"there is no worker in this folder: {_PLACES}.", file)


def _check_file_name(path: Path, file: str) -> Iterator[Problem]:
    if path.suffix == ".yml":
        yield Problem("error", "name", "a worker's file ends with .yaml or .md. Rename it.", file)
    elif path.stem in AMONG_FILES:
        yield Problem("error", "name", f"no worker can be called {path.stem!r}. Rename it.", file)
    else:
        yield from _check_name(path.stem, file)


def _check_name(name: str, file: str) -> Iterator[Problem]:
    if not is_name(name):
        yield Problem("error", "name", f"{name!r} cannot be a worker's name: {NAME_RULE} Rename it.", file)


def _find_cycles(project: CheckedProject) -> Iterator[Problem]:
    edges = _edges(project)
    for group in connected_groups(edges):
        cycle = shortest_cycle(group, edges)
        who = f"{' > '.join(cycle)}: they can call each other" if len(group) > 1 else f"{group[0]} can call itself"
        message = (
            f"{who} without end. That is fine if max_depth (by default {DEFAULT_DEPTH}) and the limits end it in time."
        )
        path = project.path_of(group[0])
        line = line_of(path, cycle[1], "tools") or line_of(path, "allow_workers")
        yield Problem("warning", "cycle", message, project.relative(path), line, tuple(group))


def _find_unused(project: CheckedProject) -> Iterator[Problem]:
    """Yield workers and functions that neither workers nor code of the project name."""
    in_code = names_in_code(project.registry.root)
    called = {callee for name, callees in _edges(project).items() for callee in callees if callee != name}
    workers = [name for name in project.definitions if name not in called | in_code]
    if workers and len(project.definitions) > len(workers):  # where no worker calls another, all are run by name
        message = f"no worker calls {join_names(workers)}: run by name only."
        yield Problem("note", "unreached", message, names=tuple(workers))
    tools = {tool for definition in project.definitions.values() for tool in definition.tools}
    functions = [name for name in project.functions if name not in tools | in_code]
    if functions:
        path = tools_file(project.registry.root)
        where = None if path is None else project.relative(path)
        message = f"no worker has {join_names(functions)}: run by name only."
        yield Problem("note", "unused", message, where, names=tuple(functions))


def _edges(project: CheckedProject) -> dict[str, list[str]]:
    """Return the workers that each worker can call, by their files."""
    workers = set(project.workers)
    return {
        name: sorted(workers & {*definition.tools, *definition.allow_workers})
        if "*" not in definition.allow_workers
        else project.workers
        for name, definition in project.definitions.items()
    }
