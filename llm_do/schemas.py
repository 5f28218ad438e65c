"""JSON Schemas of arguments: what rules can say about the arguments they describe."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo

from .errors import ArgumentError
from .secrets import Marks
from .validation import Problem, schema_validator
from .values import SameObject, model_fields

_JSON = (str, int, float, bool, type(None))


def aliases(info: FieldInfo) -> Iterator[str]:
    """The other names that a field can be given by."""
    alias = info.validation_alias if info.validation_alias is not None else info.alias
    for choice in alias.choices if isinstance(alias, AliasChoices) else [alias]:
        path = choice.path[0] if isinstance(choice, AliasPath) else choice
        if isinstance(path, str):
            yield path


@dataclass(frozen=True)
class Vocabulary:
    """The names by which rules speak of arguments: those of the schema that a model is told, and Python's own."""

    entry: str
    schema: dict[str, Any]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """From the names of arguments to those of the schema, where they are not the same."""
    lone: str | None = None
    """The argument whose fields a model is told in place of it."""
    unchecked: bool = False
    """Whether nobody has compared the arguments with the schema."""

    @cached_property
    def shape(self) -> dict[str, Any]:
        """The schema, with every name that can be used."""
        properties = dict(self.schema.get("properties", {}))
        for name, other in self.renamed.items():
            if other in properties:
                properties.setdefault(name, properties[other])
        if self.lone is not None:
            properties.setdefault(self.lone, {"type": "object"})
        return {**self.schema, "properties": properties}

    def facts(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validated arguments as rules see them. What a call does not say is judged as what it will be."""
        lone = self.lone or self._only_stranger(arguments)
        told = arguments if lone is None else arguments.get(lone)
        if self.unchecked and _is_json(told) and (problem := _foreign_validator(SameObject(self.schema))(told)):
            # Whoever runs it may make another value of it than the one that was judged.
            raise ArgumentError(f"{self.entry}(): {problem}")
        properties = self.schema.get("properties", {})
        facts = dict(arguments)
        if lone is not None and lone in arguments:
            facts.update(_fields(arguments[lone]))
        facts.update({self.renamed[name]: value for name, value in arguments.items() if name in self.renamed})
        given = arguments if lone is None else _plain_fields(arguments.get(lone))
        if (self.unchecked or lone is not None) and not _known(given, facts, properties):
            return facts  # what goes by another name cannot be told from what is not there
        for name, schema in properties.items():
            if name not in facts and isinstance(schema, dict) and "default" in schema:
                facts[name] = schema["default"]
        return facts

    def _only_stranger(self, arguments: Mapping[str, Any]) -> str | None:
        """The one argument of a tool of somebody else that stands for all that its schema names."""
        if not self.unchecked or len(arguments) != 1:
            return None
        name, value = next(iter(arguments.items()))
        has_fields = isinstance(value, BaseModel | Mapping) or dataclasses.is_dataclass(value)
        return name if has_fields and name not in self.schema.get("properties", {}) else None

    def as_schema_says(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by their own names, as whoever validates them wants them."""
        return {self.renamed.get(name, name): value for name, value in arguments.items()}


@lru_cache(maxsize=256)
def _foreign_validator(schema: SameObject) -> Callable[[Any], Problem]:
    """Return the validator of the schema of a foreign tool, which is made once."""
    target: Any = schema.target
    return schema_validator(target, Marks.of(target), foreign=True)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a value that stands for all arguments, by all their names."""
    made = _plain_fields(value)
    infos = getattr(type(value), "__pydantic_fields__", None) or _annotated_fields(type(value))
    for name, info in infos.items():
        if name in made:
            made.update(dict.fromkeys(aliases(info), made[name]))
    return made


def _plain_fields(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return model_fields(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else {}


def _annotated_fields(kind: type) -> dict[str, FieldInfo]:
    """The fields of a plain dataclass that say more of themselves in their annotation."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True) if dataclasses.is_dataclass(kind) else {}
    except Exception:  # an annotation that means nothing here
        return {}
    found = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: info for name, extras in found.items() for info in extras if isinstance(info, FieldInfo)}


def _known(given: Mapping[str, Any], facts: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    """Whether every value that was given is there under a name of the schema."""
    told = [facts[name] for name in properties if name in facts]
    return all(name in properties or any(value is each for each in told) for name, value in given.items())


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return all(map(_is_json, value)) if isinstance(value, list) else isinstance(value, _JSON)
