"""The names and values of arguments in rules, from their JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from pydantic import RootModel

from ..errors import ArgumentError
from ..privacy.secret_fields import SecretFields
from ..values.canonical import SameObject
from ..values.fields import Fields, alias_map, fields_of
from .validation import Problem, schema_validator

_JSON = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Vocabulary:
    """The names by which rules speak of arguments: those of the schema that a model sees, and Python's own."""

    entry: str
    schema: dict[str, Any]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """From the names of arguments to those in the schema, where these differ."""
    lone: str | None = None
    """The argument that a model does not see: it sees its fields instead."""
    lone_type: Any = None
    unchecked: bool = False
    """Whether the arguments have not been validated against the schema."""
    may_wrap: bool = False
    """Whether the validator may put all arguments of a model into one, whose name the schema does not have."""

    @cached_property
    def shape(self) -> dict[str, Any]:
        """The schema with all names of the arguments."""
        properties = dict(self.schema.get("properties", {}))
        for name, other in self.renamed.items():
            if other in properties:
                properties.setdefault(name, properties[other])
        if self.lone is not None:
            for name, others in alias_map(_visible_type(self.lone_type)).items():
                if alias := next((other for other in others if other in properties), None):
                    properties.setdefault(name, properties[alias])
            properties.setdefault(self.lone, {"type": "object"})
        return {**self.schema, "properties": properties}

    def facts(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated arguments as rules see them. Missing ones have their defaults."""
        lone = self.lone or self._wrapping_argument(arguments)
        checked = arguments if lone is None else arguments.get(lone)
        if self.unchecked and _is_json(checked) and (problem := _foreign_validator(SameObject(self.schema))(checked)):
            # The tool may convert it to another value than the one that was judged.
            raise ArgumentError(f"{self.entry}(): {problem}")
        properties = self.schema.get("properties", {})
        if lone is None and not self.renamed:
            facts, complete = dict(arguments), not self.unchecked or arguments.keys() <= properties.keys()
        else:
            facts, complete = self._by_all_names(arguments, lone, properties)
        if not complete:
            return facts  # an argument with another name cannot be told from a missing one
        for name, schema in properties.items():
            if name not in facts and isinstance(schema, dict) and "default" in schema:
                facts[name] = schema["default"]
        return facts

    def _by_all_names(
        self, arguments: Mapping[str, Any], lone: str | None, properties: Mapping[str, Any]
    ) -> tuple[dict[str, Any], bool]:
        """Return the arguments by all their names, and whether each has a name of the schema.

        Where one name means several values (an extra value with the name of a field, two fields with each other's
        names), it has the list of them: a restriction needs one that matches, a permission needs all.
        """
        by_name: dict[str, list[Any]] = {}
        complete = True
        if lone is not None and lone in arguments:
            fields, other = self._fields(arguments[lone])
            complete = all({name, *other.get(name, ())} & properties.keys() for name in fields.declared)
            if not any(lone in (name, *other.get(name, ())) for name in fields.declared):
                by_name[lone] = [arguments[lone]]
        else:
            other = {name: (alias,) for name, alias in self.renamed.items()}
            fields = Fields(dict(arguments), {})
        for name, value in fields.declared.items():
            for each in dict.fromkeys((name, *other.get(name, ()))):
                by_name.setdefault(each, []).append(value)
        for name, value in fields.extra.items():
            by_name.setdefault(name, []).append(value)
        return {name: values[0] if len(values) == 1 else values for name, values in by_name.items()}, complete

    def _fields(self, value: Any) -> tuple[Fields, Mapping[str, tuple[str, ...]]]:
        """Return the fields of a value that stands for all arguments, and their other names."""
        while isinstance(value, RootModel):  # a model sees the value inside
            value = value.root
        if (fields := fields_of(value)) is not None:
            return fields, alias_map(type(value))
        other = alias_map(_visible_type(self.lone_type))
        return Fields(dict(value) if isinstance(value, Mapping) else {}, {}), other

    def _wrapping_argument(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the one argument of a foreign tool that holds all that its schema names."""
        if not self.may_wrap or len(arguments) != 1:
            return None
        name, value = next(iter(arguments.items()))
        has_fields = isinstance(value, Mapping) or fields_of(value) is not None
        return name if has_fields and name not in self.schema.get("properties", {}) else None

    def as_schema_says(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by the names of the schema, for a validator."""
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            alias = self.renamed.get(name, name)
            if alias in values:
                raise ArgumentError(f"{self.entry}() got two values for argument {alias!r}.")
            values[alias] = value
        return values


def _visible_type(kind: Any) -> Any:
    """Return the type whose fields a model sees: of a root model, the one inside."""
    while isinstance(kind, type) and issubclass(kind, RootModel):
        kind = kind.model_fields["root"].annotation
    return kind if isinstance(kind, type) else None


@lru_cache(maxsize=256)
def _foreign_validator(schema: SameObject) -> Callable[[Any], Problem]:
    """Return the validator for the schema of a foreign tool. It is cached."""
    target: Any = schema.target
    return schema_validator(target, SecretFields.of(target), foreign=True)


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return all(map(_is_json, value)) if isinstance(value, list) else isinstance(value, _JSON)
