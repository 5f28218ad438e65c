"""Match patterns in bounded time: regular expressions of servers and models, and globs of paths and commands.

Regular expressions run on the engine of pydantic-core, which does not backtrack. Its time is the size of the pattern
times the length of the text, so both are bounded as well. Globs match step by step: `**` is any number of names, and
any other step is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from pydantic_core import SchemaError, SchemaValidator, core_schema

LONGEST = 2_000  # characters of a pattern
LARGEST = 10_000  # positions of a pattern with its repetitions spelled out
MOST_WORK = 5_000_000  # positions times characters: about half a second in the worst case

_TOKEN = re.compile(
    r"""(?P<count>\{\s*(?P<least>\d*)\s*(?:,\s*(?P<most>\d*)\s*)?\})
      | (?P<open>\((?:\?(?:[a-zA-Z-]*:|P?<\w+>))?)
      | (?P<close>\))
      | (?P<none>[*+?|^$])
      | \\[pP]\{[^}]*\}|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|.""",
    re.VERBOSE | re.DOTALL,
)
_HAS_MANY_CHARACTERS = re.compile(r"\\[wWpP]")
_MANY = 100  # the size of a class of all letters: it compiles to as much as this many characters
_IGNORES_SPACES = re.compile(r"\(\?[a-zA-Z-]*x[a-zA-Z-]*[:)]")


class UncheckablePattern(ValueError):
    """A pattern cannot be matched within bounds."""


Matcher: TypeAlias = Callable[[str], bool | None]
"""Returns whether some part of a text matches; `None` if the text is too long to tell."""


@lru_cache(maxsize=32)  # each may have 7 MB
def compile_pattern(pattern: str) -> Matcher:
    """Compile a pattern, or raise `UncheckablePattern`."""
    if len(pattern) > LONGEST:
        raise UncheckablePattern(f"it has more than {LONGEST} characters")
    if _IGNORES_SPACES.search(pattern):
        raise UncheckablePattern("the flag x is not supported")
    positions = measure(pattern).positions
    if positions > LARGEST:
        raise UncheckablePattern(f"its repetitions come to more than {LARGEST} positions")
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError as error:
        why = [line.strip() for line in str(error).splitlines() if line.strip().startswith("error:")]
        raise UncheckablePattern(why[0].removeprefix("error: ") if why else "it is too large") from None
    return lambda text: validator.isinstance_python(text) if positions * len(text) <= MOST_WORK else None


@dataclass(frozen=True, slots=True)
class Measure:
    """The size of a pattern with its repetitions spelled out."""

    positions: int
    compiled: int
    """The positions, where a large class counts as many times as it is compiled to."""

    @property
    def steps_to_compile(self) -> int:
        """The steps, of some microseconds each, to compile the pattern. One that is too large is not compiled."""
        return 1 + self.compiled // 10 if self.positions <= LARGEST else 1

    def steps_to_match(self, length: int) -> int:
        """Return the steps to match a text of some length. One that is too long is not matched."""
        work = self.positions * length
        return work // 1_000 if work <= MOST_WORK else 0


def measure(pattern: str) -> Measure:
    """Measure a pattern. One that is too long to be compiled is not parsed."""
    if len(pattern) > LONGEST:
        return Measure(LARGEST + 1, LARGEST + 1)
    return _measure(pattern)


@lru_cache(maxsize=1024)
def _measure(pattern: str) -> Measure:
    tokens = list(_TOKEN.finditer(pattern))
    compiled = [_MANY if _HAS_MANY_CHARACTERS.search(token[0]) else 1 for token in tokens]
    return Measure(_total(tokens, [1] * len(tokens)), _total(tokens, compiled))


def _total(tokens: list[re.Match[str]], sizes: list[int]) -> int:
    """Add up the sizes of the tokens, each as often as it is repeated."""
    groups, last = [0], 0
    for token, size in zip(tokens, sizes, strict=True):
        if token["open"]:
            groups.append(0)
            last = 0
        elif token["close"]:
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif token["count"]:
            times = max(1, *(int(number[:9] or 0) for number in (token["least"], token["most"] or "")))
            groups[-1] += last * (times - 1)
            last *= times
        elif not token["none"]:
            last = size
            groups[-1] += size
    return max(1, sum(groups))


Step: TypeAlias = Callable[[str], bool] | None
"""Returns whether a name matches; `None` is `**`."""


class Glob:
    """A pattern of steps. Names match one by one; `places` are the numbers of steps that they may have used up."""

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
