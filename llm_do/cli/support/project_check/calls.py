"""The calls that a project allows: cycles, and workers and functions that nothing calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ....machine.files import MAX_CODE, read_file
from ....projects.layout import tools_file
from ..sessions import DEFAULT_DEPTH
from .problem import Problem, join_names, line_of
from .project import CheckedProject


def find_cycles(project: CheckedProject) -> Iterator[Problem]:
    """Yield the groups of workers that can call each other without end."""
    edges = _edges(project)
    for group in connected_groups(edges):
        cycle = _shortest_cycle(group, edges)
        who = f"{' > '.join(cycle)}: they can call each other" if len(group) > 1 else f"{group[0]} can call itself"
        message = (
            f"{who} without end. That is fine if max_depth (by default {DEFAULT_DEPTH}) and the limits end it in time."
        )
        path = project.path_of(group[0])
        line = line_of(path, cycle[1], "tools") or line_of(path, "allow_workers")
        yield Problem("warning", "cycle", message, project.relative(path), line, tuple(group))


def find_unused(project: CheckedProject) -> Iterator[Problem]:
    """Yield what no worker and no code of the project names. It can still be run by name."""
    in_code = _names_in_code(project.registry.root)
    called = {callee for name, callees in _edges(project).items() for callee in callees if callee != name}
    workers = [name for name in project.definitions if name not in called | in_code]
    if workers and len(project.definitions) > len(workers):  # where no worker calls another, all are run by name
        message = f"no worker calls {join_names(workers)}: run by name only."
        yield Problem("note", "unreached", message, names=tuple(workers))
    tools = {tool for definition in project.definitions.values() for tool in definition.tools}
    functions = [name for name in project.functions if name not in tools | in_code]
    if functions:
        path = tools_file(project.registry.root)
        message = f"no worker has {join_names(functions)}: run by name only."
        where = None if path is None else project.relative(path)
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


def _names_in_code(root: Path) -> set[str]:
    """Return the names in the project's code, as strings or variables: it may call the entries of these names."""
    names: set[str] = set()
    for path in (*root.glob("*.py"), *root.glob("tools/*.py"), *root.glob("workers/*/*.py")):
        try:
            tree = ast.parse(read_file(path, MAX_CODE))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        nodes = list(ast.walk(tree))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        # A decorator names the function itself.
        skipped = {id(part) for node in functions for mark in node.decorator_list for part in ast.walk(mark)}
        for node in nodes:
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
    return names


def connected_groups(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the strongly connected components: workers that can reach each other, or that call themselves."""
    callers: dict[str, list[str]] = {}
    for name, callees in edges.items():
        for callee in callees:
            callers.setdefault(callee, []).append(name)
    order: list[str] = []
    for name in edges:
        _visit(name, edges, set(order), order)
    # Kosaraju: in the reverse order, all that can still reach a worker belong to its group.
    groups, placed = list[list[str]](), set[str]()
    for name in reversed(order):
        group: list[str] = []
        _visit(name, callers, placed, group)
        placed.update(group)
        if len(group) > 1 or (group and name in edges.get(name, ())):
            groups.append(sorted(group))
    return sorted(groups)


def _visit(start: str, edges: Mapping[str, Sequence[str]], visited: set[str], order: list[str]) -> None:
    """Append all that can be reached from `start`, except what was `visited`, in postorder."""
    if start in visited:
        return
    visited, stack = {start, *visited}, [(start, iter(edges.get(start, ())))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in visited), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            visited.add(following)
            stack.append((following, iter(edges.get(following, ()))))


def _shortest_cycle(group: Sequence[str], edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the shortest path from the first of a group back to itself."""
    start = group[0]
    paths, visited = [[start]], {start}
    for path in paths:
        for name in edges.get(path[-1], ()):
            if name == start and (len(path) > 1 or len(group) == 1):
                return [*path, name]
            if name in group and name not in visited:
                visited.add(name)
                paths.append([*path, name])
    return [*group, start]
