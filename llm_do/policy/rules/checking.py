"""Check rules against tools: the tool exists, it has the argument, and the argument can have the value."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

from ...errors import RuleError, did_you_mean
from ...values.json_schema import UNIONS, leaves
from ...values.texts import quote_json
from ..catalogue import ARGUMENTS, DEFAULTS
from .calls import CALL_CONDITIONS
from .conditions import NUMBERS, OPERATORS, as_list
from .format import Condition
from .judging import RuleBook


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that an argument can have. Nothing is known where both are `None`."""

    types: frozenset[str] | None = None
    """Types of JSON, or `path` and `command`. Those of a list are those of its items."""
    values: tuple[Any, ...] | None = None


Shape: TypeAlias = Mapping[str, Kind]
"""The arguments of a tool."""


class KnownTools(Protocol):
    """The tools that rules can speak of."""

    rule_names: Mapping[str, str]
    """The names in rules of tools that go by another name there."""
    servers: Collection[str]
    """Names of servers all of whose tools are known."""

    def shapes(self, name: str) -> Sequence[Shape] | None:
        """Return the arguments of all tools that a name may mean; `None` if there is no such tool."""

    def names(self) -> Iterable[str]: ...

    def may_grow(self) -> bool:
        """Return whether tools may be added: those of a server are known only when it is connected."""


_CALL: Shape = {name: Kind(condition.types) for name, condition in CALL_CONDITIONS.items()}
_BUILT_IN: Mapping[str, Shape] = {
    name: {argument: Kind(frozenset({kind})) for argument, kind in kinds.items()} for name, kinds in ARGUMENTS.items()
}
_ANYTHING = Kind()


def shape_of(json_schema: Mapping[str, Any]) -> Shape:
    """Return the arguments of a tool, from the schema that a model sees."""
    shape: dict[str, Kind] = {}
    parts_left = 10_000  # the same union may be behind every argument
    for name, schema in json_schema.get("properties", {}).items():
        parts = list(islice(leaves(json_schema, schema, (*UNIONS, "items")), parts_left))
        parts_left -= len(parts)
        shape[name] = _kind(parts) if parts_left else _ANYTHING
    return shape


def _kind(schemas: Iterable[Mapping[str, Any]]) -> Kind:
    """Return the values that fit any of some schemas, which have no unions."""
    values: list[Any] = []
    types: set[str] = set()
    for schema in schemas:
        named, enum = schema.get("type"), schema.get("enum")
        if isinstance(enum, list) or "const" in schema:
            values += enum if isinstance(enum, list) else [schema["const"]]
        elif isinstance(named, list) or (isinstance(named, str) and named != "array"):
            types.update(map(str, [named] if isinstance(named, str) else named))
        else:
            return _ANYTHING
    if values and types <= {"null"}:
        return Kind(values=(*values, None) if types else tuple(values))
    return Kind(frozenset(types.union(map(_type_of, values))) or None)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else "string"


def check_rules(book: RuleBook, tools: KnownTools, only: Container[str] | None = None) -> None:
    """Raise a `RuleError` with everything that is wrong with rules, or `only` with those on some names."""
    problems: list[str] = []
    for name, rules in book.rules.items():
        if only is not None and name not in only:
            continue
        shapes = [_BUILT_IN[name]] if name in _BUILT_IN else tools.shapes(name)
        if shapes is None:
            if tools.rule_names.get(name, name) != name:
                hint = f" Rules speak of it as {tools.rule_names[name]!r}."
            elif tools.may_grow() and name.partition("/")[0] not in tools.servers:
                continue
            else:
                hint = did_you_mean(name, {*tools.names(), *DEFAULTS})
            problems.append(f"{book.where(rules[0])}: there is no tool {name!r} for rules to speak of.{hint}")
            continue
        for rule in rules:
            for condition in (rule.when, *rule.unless):
                mistakes = (*_problems(condition, shapes), *_unknown_names(condition, name, tools))
                problems += [f"{book.where(rule)}: {name}: {problem}" for problem in mistakes]
    if problems:
        raise RuleError("\n".join(problems))


def _unknown_names(condition: Condition, name: str, tools: KnownTools) -> Iterable[str]:
    """Yield a problem for each name of a worker that does not exist."""
    for key, value in condition.items():
        is_entry = CALL_CONDITIONS[key].is_entry if key in CALL_CONDITIONS else (name, key) == ("worker.call", "worker")
        if not is_entry:
            continue
        for each in as_list(value):
            if isinstance(each, str) and each not in (names := set(tools.names())) and not tools.may_grow():
                yield f"{key}: there is no {each!r}.{did_you_mean(each, names)}"


def _problems(condition: Condition, shapes: Sequence[Shape]) -> Iterable[str]:
    for name, value in condition.items():
        kinds = [shape[name] for shape in (*shapes, _CALL) if name in shape]
        if not kinds:
            arguments = {argument for shape in shapes for argument in shape}
            yield f"there is no argument {name!r}.{did_you_mean(name, arguments)}"
        elif all(contradictions := [_contradiction(value, kind) for kind in kinds]):
            yield f"{name}: {contradictions[0]}"


def _contradiction(value: Any, kind: Kind) -> str | None:
    """Return why an argument of this kind never has the value; `None` if it may."""
    if isinstance(value, list | tuple):
        return next((problem for item in value if (problem := _contradiction(item, kind))), None)
    if kind.values is not None:
        never = not isinstance(value, Mapping) and value not in kind.values
        known = ", ".join(map(quote_json, kind.values))
        return f"it is never {quote_json(value)}, but one of {known}." if never else None
    if kind.types is None or (isinstance(value, str) and kind.types & {"path", "command"}):
        return None
    if isinstance(value, Mapping):
        needed = OPERATORS[next(iter(value))].types
        words = ", ".join(map(str, value))
        return None if kind.types & needed else f"{words} is for {_words(needed)}, and it is {_words(kind.types)}."
    json_type = _type_of(value)
    fits = NUMBERS if json_type == "number" else {json_type}
    return None if kind.types & fits else f"it is {_words(kind.types)}, never {quote_json(value)}."


_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
    "object": "an object",
    "path": "a path",
    "command": "a command",
}


def _words(types: Iterable[str]) -> str:
    names = sorted(set(types) - ({"integer"} if "number" in types else set()))
    return " or ".join(_NAMES.get(name, name) for name in names)
