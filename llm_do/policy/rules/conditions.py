"""Conditions on parsed, validated arguments, never on rendered text.

Whether a rule loosens or restricts decides what happens with a value that cannot be judged, and with a list: what
loosens needs every value to match, what restricts needs one, and a value that cannot be judged counts against the call.
There are no regular expressions, so that no argument can make matching slow.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import partial
from math import inf, isnan
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pydantic import AnyUrl

from ...errors import RuleError, did_you_mean
from ...sandbox.commands.command_line import unwrap
from ...values.patterns import Glob
from ...values.texts import quote_json
from .calls import CALL_CONDITIONS, CALL_PREFIX, Call, Case

NUMBERS, TEXTS = frozenset({"number", "integer"}), frozenset({"string"})


class Operator(NamedTuple):
    """A comparison of an argument with an operand."""

    types: frozenset[str]
    """The JSON types of what it compares, and of its operand."""
    compare: Callable[[Any, Any], bool]


OPERATORS: Mapping[str, Operator] = {
    "over": Operator(NUMBERS, operator.gt),
    "under": Operator(NUMBERS, operator.lt),
    "at_least": Operator(NUMBERS, operator.ge),
    "at_most": Operator(NUMBERS, operator.le),
    "prefix": Operator(TEXTS, str.startswith),
}

MOST = 1000  # values, words or folders that are compared. An argument with more cannot be judged

_PLAIN = frozenset({str, int, bool, type(None)})

Test: TypeAlias = Callable[[Any], bool | None]
"""Returns whether a plain value matches; `None` if that cannot be told."""

Match: TypeAlias = Callable[[Any, bool], bool]
"""Returns whether a value matches. The second argument says whether the rule restricts: then doubt counts as yes."""

UNKNOWN: Any = object()
"""The value of an argument that cannot be judged: it is no plain value, or not known yet."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that paths in the rules of one speaker are relative to."""

    roots: Mapping[str, Path] = field(default_factory=dict)
    base: Path = field(default_factory=Path)

    def anchor(self, pattern: str) -> str:
        """Return the absolute form of a pattern: `root/...` by the roots, `./...` by the project's folder."""
        if ".." in pattern.split("/"):
            raise RuleError(f"{pattern!r} has '..' in it: write the path that it leads to.")
        if pattern.startswith("/"):
            return _real(pattern)
        first, _, rest = pattern.partition("/")
        folder = self.base.resolve() if first == "." else self.roots.get(first)
        if folder is None:
            roots = ", ".join(self.roots) or "none"
            raise RuleError(
                f"{pattern!r} starts with no root (roots: {roots}).{did_you_mean(first, self.roots)} "
                "A path of the project starts with './'."
            )
        whole = f"{str(folder).rstrip('/')}/{rest}" if rest else str(folder)
        return _real(whole) if first == "." else whole

    def locate(self, path: Any) -> Any:
        """Return the real path of one such as `root/file.txt`, or of each in a list. Any other value stays as it is."""
        if isinstance(path, list | tuple):
            return [self.locate(each) for each in path]
        if not isinstance(path, str | PurePath) or ".." in PurePath(path).parts or "\0" in str(path):
            return path
        if PurePath(path).is_absolute():
            return Path(path).resolve()
        first, _, rest = str(PurePath(path)).partition("/")
        folder = self.roots.get(first)
        return path if folder is None else (folder / rest).resolve()  # a worker may have put a symlink there


def _real(pattern: str) -> str:
    """Resolve symlinks in the folders that a pattern names in full: files are judged by their real paths."""
    parts = pattern.split("/")
    stars = next((at for at, part in enumerate(parts) if "*" in part), len(parts))
    return "/".join([str(Path("/".join(parts[:stars]) or "/").resolve()).rstrip("/"), *parts[stars:]]) or "/"


# -- the shape of conditions ------------------------------------------------------------------------


def check_condition(condition: Mapping[str, Any]) -> None:
    """Check a condition as far as possible without knowing the tool."""
    for name, value in condition.items():
        if name.startswith(CALL_PREFIX):
            if (about_call := CALL_CONDITIONS.get(name)) is None:
                raise RuleError(f"there is no condition {name!r}.{did_you_mean(name, CALL_CONDITIONS)}")
            if about_call.types == {"boolean"} and not isinstance(value, bool):
                raise RuleError(f"{name} is true or false.")
        _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        _check_operators(name, value)
    elif isinstance(value, list | tuple):
        if not value:
            raise RuleError(f"{name}: an empty list matches nothing.")
        for item in value:
            if isinstance(item, Mapping | list | tuple):
                raise RuleError(f"{name}: a list has plain values, got {quote_json(item)}.")
            _check_value(name, item)
    elif not isinstance(value, str | bool | None) and not _is_number(value):
        raise RuleError(f"{name}: {quote_json(value)} is no text, number, true, false or list of such.")


def _check_operators(name: str, operators: Mapping[Any, Any]) -> None:
    for word, operand in operators.items():
        if word not in OPERATORS:
            raise RuleError(f"{name}: there is no {word!r}.{did_you_mean(str(word), OPERATORS)}")
        if OPERATORS[word].types == NUMBERS and not _is_number(operand):
            raise RuleError(f"{name}: {word} needs a number, got {quote_json(operand)}.")
        if OPERATORS[word].types == TEXTS and not (isinstance(operand, str) and operand):
            raise RuleError(f"{name}: {word} needs a text, got {quote_json(operand)}.")
    if not operators or not _satisfiable(operators):
        raise RuleError(f"{name}: nothing is like {quote_json(dict(operators))}.")


def _satisfiable(operators: Mapping[str, Any]) -> bool:
    if any(OPERATORS[word].types == TEXTS for word in operators):
        return all(OPERATORS[word].types == TEXTS for word in operators)
    low = max(operators.get(word, -inf) for word in ("over", "at_least"))
    high = min(operators.get(word, inf) for word in ("under", "at_most"))
    return bool(low < high or (low == high and not {"over", "under"} & set(operators)))


def _is_number(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and not isnan(value))


# -- matching ------------------------------------------------------------------------------------------

Clause: TypeAlias = tuple[str, bool, Match]
"""A part of a compiled condition: its argument, whether that is about the call path, and which values match."""


def compile_condition(condition: Mapping[str, Any], kinds: Mapping[str, str], places: Places) -> list[Clause]:
    """Compile a condition. `kinds` says which arguments are paths and which are commands."""
    return [
        (name, name in CALL_CONDITIONS, _matcher(name, value, kinds.get(name), places))
        for name, value in condition.items()
    ]


def holds(compiled: Sequence[Clause], case: Case, call: Call, restricts: bool) -> bool:
    """Return whether all of a condition holds for one case of a call."""
    for name, is_about_call, match in compiled:
        facts = call.facts if is_about_call else case.facts
        if not match(facts.get(name, UNKNOWN), restricts):
            return False
    return True


def _matcher(name: str, value: Any, kind: str | None, places: Places) -> Match:
    if kind in ("path", "command"):
        if wrong := [pattern for pattern in as_list(value) if not isinstance(pattern, str) or not pattern.strip()]:
            raise ValueError(f"{quote_json(wrong[0])} is no pattern of a {kind}: write a text, with * and **.")
        make = partial(_path_matcher, places=places) if kind == "path" else _command_matcher
        return _any_of([make(pattern) for pattern in as_list(value)])
    test = _comparison(value) if isinstance(value, Mapping) else _equal_to(as_list(value))
    if name in CALL_CONDITIONS and CALL_CONDITIONS[name].fits_any:
        return lambda names, restricts: any(map(test, names))
    return _each(test)


def as_list(value: Any) -> list[Any]:
    """Return the value or values of a condition as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _any_of(matches: list[Match]) -> Match:
    if len(matches) == 1:
        return matches[0]
    return lambda value, restricts: any(match(value, restricts) for match in matches)


def _each(test: Test) -> Match:
    """Apply a test of plain values to arguments, which may be lists of them, or of any other type."""

    def match(value: Any, restricts: bool) -> bool:
        if type(value) in _PLAIN:  # most are, and this is done for every rule at every call
            result = test(value)
            return restricts if result is None else result
        if isinstance(value, list | tuple | set | frozenset):
            if len(value) > MOST:
                return restricts
            tested = [one(item, restricts) for item in value]
            return any(tested) if restricts else bool(tested) and all(tested)
        return one(value, restricts)

    def one(value: Any, restricts: bool) -> bool:
        plain = _plain(value)
        result = None if plain is UNKNOWN else test(plain)
        return restricts if result is None else result

    return match


def _plain(value: Any) -> Any:
    """Return the plain value that stands for an argument in comparisons."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, PurePath | UUID | AnyUrl):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | float) and (value.is_nan() if isinstance(value, Decimal) else isnan(value)):
        return UNKNOWN  # neither over nor under anything
    return value if value is None or isinstance(value, str | bool | int | float | Decimal) else UNKNOWN


def _key(value: Any) -> Any:
    """Return a key that is equal for values that rules do not tell apart: 1 and 1.0, but not true."""
    return (bool, value) if isinstance(value, bool) else value


def _equal_to(values: list[Any]) -> Test:
    keys = frozenset(map(_key, values))
    if any(isinstance(value, bool) for value in values):
        # Code often converts 1 and "true" to true.
        return lambda value: _key(value) in keys if value is None or isinstance(value, bool) else None
    return lambda value: _key(value) in keys


def _comparison(operators: Mapping[str, Any]) -> Test:
    tests = [(OPERATORS[word].compare, operand) for word, operand in operators.items()]
    if any(OPERATORS[word].types == TEXTS for word in operators):
        return lambda value: isinstance(value, str) and all(compare(value, operand) for compare, operand in tests)

    def test(value: Any) -> bool | None:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return all(compare(value, operand) for compare, operand in tests)
        return False if value is None else None  # code often converts "1000" to a number

    return test


# -- steps: folders of a path, words of a command ------------------------------------------------------

_MOST_INNER = 8  # words of a command that are tried as the program it starts. With more, a restriction matches


def _path_matcher(pattern: str, places: Places) -> Match:
    glob = Glob([part for part in places.anchor(pattern).split("/") if part not in ("", ".")], name_matcher)

    def match(value: Any, restricts: bool) -> bool:
        if value is None:  # the call uses no path
            return False
        if not isinstance(value, PurePath) or len(value.parts) > MOST:
            return restricts
        return glob.matches(value.parts[1:])

    return match


def _command_matcher(pattern: str) -> Match:
    glob = Glob(split_pattern(pattern), name_matcher)
    is_program = glob.steps[0] if glob.steps else None

    def match(value: Any, restricts: bool) -> bool:
        if not isinstance(value, tuple):  # it needs a shell, and only its text is known
            return restricts or value == pattern
        if len(value) > MOST:
            return restricts
        if glob.matches(value):
            return True
        # A restriction sees through paths of programs, and through programs that start others.
        return restricts and any_inner(value)

    def any_inner(words: tuple[str, ...]) -> bool:
        inner = (each for each in unwrap(words) if is_program is None or is_program(each[0]))
        return any(tried >= _MOST_INNER or glob.matches(each) for tried, each in enumerate(inner))

    return match


_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_QUOTED = re.compile(r"""(['"])(.*?)\1""", re.DOTALL)


def split_pattern(pattern: str) -> list[str]:
    """Split a command pattern into words. Quotes keep spaces in a word."""
    if _WORD.sub("", pattern).strip():
        raise ValueError(f"{pattern!r}: a quote is not closed.")
    return [_QUOTED.sub(r"\2", word) for word in _WORD.findall(pattern)]


def name_matcher(word: str) -> Callable[[str], bool]:
    """Return a test of names in which `*` is any text."""
    pieces = word.split("*")
    return partial(operator.eq, word) if len(pieces) == 1 else partial(_match_pieces, pieces)


def _match_pieces(pieces: Sequence[str], name: str) -> bool:
    first, *between, last = pieces
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in between:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
