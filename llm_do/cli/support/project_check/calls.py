"""The calls that a project allows: cycles, and workers and functions that nothing calls."""

from __future__ import annotations

from collections.abc import Iterator

from ....definitions.call_graph import connected_groups, shortest_cycle
from ....projects.discovery import names_in_code
from ....projects.layout import tools_file
from ..sessions import DEFAULT_DEPTH
from .project import CheckedProject, Problem, join_names, line_of


def find_cycles(project: CheckedProject) -> Iterator[Problem]:
    """Yield the groups of workers that can call each other without end."""
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


def find_unused(project: CheckedProject) -> Iterator[Problem]:
    """Yield what no worker and no code of the project names. It can still be run by name."""
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
    """Return which workers each worker can call, by its file."""
    workers = set(project.workers)
    return {
        name: sorted(workers & {*definition.tools, *definition.allow_workers})
        if "*" not in definition.allow_workers
        else project.workers
        for name, definition in project.definitions.items()
    }
