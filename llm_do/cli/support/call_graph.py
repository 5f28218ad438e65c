"""Who can call whom in a project: circles, ways round, and the names that code mentions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...machine.files import MAX_CODE, read_file


def mentioned(root: Path) -> set[str]:
    """The names that code of the project mentions, as text or as variables: it may call what is called so."""
    found: set[str] = set()
    for path in (*root.glob("*.py"), *root.glob("tools/*.py"), *root.glob("workers/*/*.py")):
        try:
            tree = ast.parse(read_file(path, MAX_CODE))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        nodes = list(ast.walk(tree))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        # A decorator says what a function itself is called.
        skipped = {id(part) for node in functions for mark in node.decorator_list for part in ast.walk(mark)}
        for node in nodes:
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found


def circles(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The groups of workers that can reach each other, and workers that can call themselves."""
    back: dict[str, list[str]] = {}
    for name, callees in edges.items():
        for callee in callees:
            back.setdefault(callee, []).append(name)
    order: list[str] = []
    for name in edges:
        _visit(name, edges, set(order), order)
    # Whoever is done last comes first now, and whoever can get back to it belongs to it.
    groups, placed = list[list[str]](), set[str]()
    for name in reversed(order):
        group: list[str] = []
        _visit(name, back, placed, group)
        placed.update(group)
        if len(group) > 1 or (group and name in edges.get(name, ())):
            groups.append(sorted(group))
    return sorted(groups)


def _visit(start: str, edges: Mapping[str, Sequence[str]], seen: set[str], done: list[str]) -> None:
    """Go wherever the edges lead from a start, and write down who is done, those furthest away first."""
    if start in seen:
        return
    here, waiting = {start, *seen}, [(start, iter(edges.get(start, ())))]
    while waiting:
        name, rest = waiting[-1]
        following = next((each for each in rest if each not in here), None)
        if following is None:
            done.append(name)
            waiting.pop()
        else:
            here.add(following)
            waiting.append((following, iter(edges.get(following, ()))))


def way_round(group: Sequence[str], edges: Mapping[str, Iterable[str]]) -> list[str]:
    """The shortest way from the first of a group back to itself."""
    start = group[0]
    ways, seen = [[start]], {start}
    for way in ways:
        for name in edges.get(way[-1], ()):
            if name == start and (len(way) > 1 or len(group) == 1):
                return [*way, name]
            if name in group and name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return [*group, start]
