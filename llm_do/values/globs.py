"""Patterns of paths and commands step by step: `**` is any number of names, and any other step is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Step: TypeAlias = Callable[[str], bool] | None
"""Returns whether a name matches; `None` is `**`."""


class Glob:
    """A pattern of steps. Names match one by one; a set has the numbers of steps that they may have used up."""

    def __init__(self, pattern: Sequence[str], match_name: Callable[[str], Callable[[str], bool]]) -> None:
        self.steps: list[Step] = [None if step == "**" else match_name(step) for step in pattern]

    def start(self, used: int = 0) -> set[int]:
        """Return how many steps may be used up before any name."""
        places = {used}
        while used < len(self.steps) and self.steps[used] is None:
            used += 1
            places.add(used)
        return places

    def after(self, places: set[int], name: str) -> set[int]:
        """Return how many steps may be used up after one more name."""
        after = set[int]()
        for place in places:
            if place < len(self.steps):
                if (step := self.steps[place]) is None:
                    after |= self.start(place)
                elif step(name):
                    after |= self.start(place + 1)
        return after

    def is_complete(self, places: set[int]) -> bool:
        """Return whether the names so far match."""
        return len(self.steps) in places

    def matches(self, names: Sequence[str]) -> bool:
        """Return whether names match."""
        for at, step in enumerate(self.steps):
            if step is None:
                break
            if at == len(names) or not step(names[at]):
                return False
        else:
            return len(self.steps) == len(names)
        tail = self.steps[at + 1 :]
        if not tail:  # the usual pattern, such as `folder/**`
            return True
        if None not in tail:
            rest = len(names) - len(tail)
            return rest >= at and all(step(name) for step, name in zip(tail, names[rest:], strict=True) if step)
        places = self.start(at)
        for name in names[at:]:
            places = self.after(places, name)
        return self.is_complete(places)
