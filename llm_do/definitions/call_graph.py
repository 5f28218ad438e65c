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
    """Yield nodes and everything that can be reached from them, each once, the nearest first."""
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
    groups, placed = list[list[str]](), set[str]()
    for name in edges.keys() & callers.keys():
        if name not in placed:
            group = _reached(name, edges) & _reached(name, callers)
            placed |= group
            groups += [sorted(group)] if group else []
    return sorted(groups)


def _reached(start: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names that can be reached from a start, which itself counts only if it is on a cycle."""
    return set(reachable_from(edges[start], lambda name: edges.get(name, ())))


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
