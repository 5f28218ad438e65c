"""The graph of calls: which names a worker may call, and the cycles among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def called_names(caller: Any, workers: Iterable[str]) -> set[str]:
    """Return the names in `tools` and `allow_workers` of a worker or its definition; `*` stands for `workers`."""
    allowed = getattr(caller, "allow_workers", ())
    names = {tool for tool in getattr(caller, "tools", ()) if isinstance(tool, str)}
    return names.union(workers if "*" in allowed else allowed)


def reachable_from(
    starts: Iterable[T], callees: Callable[[T], Iterable[T]], key: Callable[[T], Hashable] = lambda node: node
) -> Iterator[T]:
    """Yield some nodes and all that can be reached from them, each once, the nearest first."""
    seen, waiting = set[Hashable](), deque(starts)
    while waiting:
        node = waiting.popleft()
        if key(node) not in seen:
            seen.add(key(node))
            waiting.extend(callees(node))
            yield node


def connected_groups(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the groups of workers that can reach each other, and workers that can call themselves."""
    callers: dict[str, list[str]] = {}
    for name, callees in edges.items():
        for callee in callees:
            callers.setdefault(callee, []).append(name)
    order: list[str] = []
    for name in edges:
        _visit(name, edges, set(order), order)
    # From the last in this order, going backwards reaches exactly the workers of its group.
    groups, placed = list[list[str]](), set[str]()
    for name in reversed(order):
        group: list[str] = []
        _visit(name, callers, placed, group)
        placed.update(group)
        if len(group) > 1 or (group and name in edges.get(name, ())):
            groups.append(sorted(group))
    return sorted(groups)


def _visit(start: str, edges: Mapping[str, Sequence[str]], seen: set[str], order: list[str]) -> None:
    """Append what can be reached from a start to `order`, each after all that it reaches itself."""
    if start in seen:
        return
    visited, stack = {start, *seen}, [(start, iter(edges.get(start, ())))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in visited), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            visited.add(following)
            stack.append((following, iter(edges.get(following, ()))))


def shortest_cycle(group: Sequence[str], edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the shortest path from the first of a group back to itself."""
    start = group[0]
    paths, seen = [[start]], {start}
    for path in paths:
        for name in edges.get(path[-1], ()):
            if name == start and (len(path) > 1 or len(group) == 1):
                return [*path, name]
            if name in group and name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return [*group, start]
