"""Arguments: from a Python-style call to a mapping of validated values, the same for tools and workers.

The signature decides how a call is read, never the data:

- positional and keyword arguments bind as in Python;
- a lone mapping, or a lone pydantic model, *is* the arguments, unless the first parameter takes a mapping (or `Any`, or
  that model's class): then it is that parameter's value. A parameter without an annotation takes neither.

Callers that pass a mapping of arguments (`run_worker`, the command line, `worker_call`) mean keywords, whatever the
first parameter takes: `bind_named`.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typing_extensions
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, with_config

from ..errors import ArgumentError, did_you_mean
from ..privacy.secret_fields import HIDDEN, SecretFields
from ..privacy.secrets import Values, texts_in
from ..values.fields import fields_of
from ..values.snapshots import ATOMS
from ..values.texts import escape_surrogates, quote
from .vocabulary import Vocabulary


@dataclasses.dataclass(kw_only=True, eq=False)
class Parameters(ABC):
    entry: str
    json_schema: dict[str, Any]
    """The schema of the parameters that a model gets."""
    validator: Any
    """Validates what a model sends, to a mapping from parameter names to values."""
    secret_fields: SecretFields | None = None
    """The arguments, or parts of them, that are secret."""
    vocabulary: Vocabulary
    """The names of the arguments in rules."""

    @abstractmethod
    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_files: bool = False) -> dict[str, Any]:
        """Return validated arguments, or raise an `ArgumentError`. With files beside them, the input may be empty."""

    def bind_named(
        self, values: Mapping[str, Any], *, by_name: bool = False, has_files: bool = False
    ) -> dict[str, Any]:
        """Validate arguments that are passed as a mapping.

        With `by_name`, fields with an alias can have their own names too, at any depth.
        """
        return self.bind((), keywords_of(self.entry, values), has_files=has_files)


def keywords_of(entry: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy of a mapping. Raise an `ArgumentError` if a key is not a string."""
    for key in values:
        if not isinstance(key, str):
            raise ArgumentError(f"{entry}(): argument names must be strings, got {key!r}.")
    return dict(values)


def closed_mapping(keys: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    """Return an adapter for mappings with these keys, each with a value of its type, and no other keys."""
    shape: Any = typing_extensions.TypedDict("Input", keys)  # type: ignore[misc]
    forbid_others: Any = with_config(ConfigDict(extra="forbid"))
    return TypeAdapter(forbid_others(shape))


@dataclasses.dataclass(kw_only=True, eq=False)
class DeclaredParameters(Parameters):
    """Named parameters: those of a function, or the fields of a worker's `input_type`."""

    positional: Sequence[str]
    keyword_only: Sequence[str] = ()
    positional_only: Sequence[str] = ()
    rest: str | None = None
    """The name of `*args`."""
    first: FirstParameter
    validate: Callable[..., dict[str, Any]]
    """Validates what Python code passes."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_files: bool = False) -> dict[str, Any]:
        if len(args) == 1 and not kwargs:
            if type(args[0]) not in ATOMS and (arguments := self.first.lone(self.entry, args[0])) is not None:
                return self._bind_dict(arguments)
            if self.positional and self.rest is None:
                return self._validate_values({self.positional[0]: args[0]})
        if args or self.rest is not None or self.positional_only:
            return self._validate_values(self._place(args, kwargs))
        return self._validate_values(kwargs)

    def bind_named(
        self, values: Mapping[str, Any], *, by_name: bool = False, has_files: bool = False
    ) -> dict[str, Any]:
        return self._bind_dict(keywords_of(self.entry, values), by_name=by_name)

    def _bind_dict(self, arguments: dict[str, Any], *, by_name: bool = False) -> dict[str, Any]:
        """Bind arguments by name, in a dict that belongs to this call."""
        is_empty = not arguments
        if self.rest is not None:
            arguments.setdefault(self.rest, [])
        try:
            return self._validate_values(arguments, by_name=by_name)
        except ArgumentError as exc:
            name = self.first.value_of
            if name is None or name in arguments or is_empty:
                raise
            text = str(exc).rstrip(".")
            hint = f'If the mapping is the value of {name!r}, write {{"{name}": {{...}}}}.'
            raise ArgumentError(f"{text}{' ' if text.endswith('?') else '. '}{hint}") from exc.__cause__

    def _validate_values(self, values: dict[str, Any], *, by_name: bool = False) -> dict[str, Any]:
        try:
            return self.validate(values, by_alias=True, by_name=True) if by_name else self.validate(values)
        except ValidationError as exc:
            error = self._explain(exc)
            if self.secret_fields is None:
                raise error from exc
        secrets = Values(text for each in self._all_secret_fields() for text in texts_in(each.split(values)[1]))
        # The error of pydantic has the values in it, and must not be visible as the cause of this one.
        raise ArgumentError(secrets.text(str(error)))

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return positional values under their names, next to the keywords."""
        values = dict(zip(self.positional, args, strict=False))
        if len(args) > len(self.positional) and self.rest is None:
            raise ArgumentError(
                f"{self.entry}() takes at most {len(self.positional)} positional arguments, got {len(args)}."
            )
        if self.rest is not None:
            values[self.rest] = list(args[len(self.positional) :])
        for name, value in kwargs.items():
            if name in self.positional_only or name == self.rest:
                raise ArgumentError(f"{self.entry}() takes {name!r} by position, not as a keyword.")
            if name in values:
                raise ArgumentError(f"{self.entry}() got two values for argument {name!r}.")
            values[name] = value
        return values

    def _explain(self, exc: ValidationError) -> ArgumentError:
        names = (*self.positional, *self.keyword_only)
        problems = []
        for error in exc.errors(include_url=False, include_context=False):
            where = ".".join(str(part) for part in error["loc"]) if error["loc"] else "input"
            if error["type"] == "missing":
                problems.append(f"missing argument {where!r}")
            elif error["type"] == "extra_forbidden":
                problems.append(f"unknown argument {where!r}.{did_you_mean(where, names)}".rstrip("."))
            elif error["type"] == "argument":
                problems.append(error["msg"].rstrip("."))
            else:
                value = HIDDEN if self._is_secret_at(error["loc"]) else quote(error["input"])
                problems.append(f"argument {where!r}: {error['msg']} (got {value})")
        return ArgumentError(escape_surrogates(f"{self.entry}(): {'; '.join(problems)}"))

    def _is_secret_at(self, where: tuple[int | str, ...]) -> bool:
        # The first name may be an alias, from the schema that a model sees.
        return any(not where or each.has_secret_in(where[0]) for each in self._all_secret_fields())

    def _all_secret_fields(self) -> list[SecretFields]:
        """Return the secret fields by the names in Python, and by those that a model sees."""
        of_model = None if self.secret_fields is None else SecretFields.of(self.json_schema)
        return [each for each in (self.secret_fields, of_model) if each is not None]


@dataclasses.dataclass(frozen=True, slots=True)
class FirstParameter:
    """Whether the first parameter's own annotation takes a mapping or a pydantic model."""

    takes_mapping: bool = False
    takes_models: tuple[type, ...] = ()
    fields_of: type | None = None
    """The `input_type` whose fields the parameters are: an instance of it is the arguments, whatever they take."""
    field_names: tuple[str, ...] = ()
    value_of: str | None = None
    """The name of the first parameter, if a mapping of arguments may be meant as its value."""

    @classmethod
    def of(cls, annotation: Any, name: str) -> FirstParameter:
        """Read an annotation. `inspect.Parameter.empty` means that there is none, which is not `Any`."""
        if annotation is inspect.Parameter.empty:
            return cls(value_of=name)
        mapping, models, has_fields = False, [], False
        for part in _alternatives(annotation):
            if part is Any or part is object or isinstance(part, TypeVar | typing_extensions.TypeVar):
                return cls(takes_mapping=True, takes_models=(BaseModel,), value_of=name)
            if isinstance(part, type) and issubclass(part, BaseModel):
                models.append(part)
            elif typing_extensions.is_typeddict(part) or (isinstance(part, type) and issubclass(part, Mapping)):
                mapping = True
            has_fields = has_fields or dataclasses.is_dataclass(part)
        value_of = name if mapping or models or has_fields else None
        return cls(takes_mapping=mapping, takes_models=tuple(models), value_of=value_of)

    def lone(self, entry: str, value: Any) -> dict[str, Any] | None:
        """Return the arguments that a lone value stands for; `None` if it is the value of the first parameter."""
        if self.fields_of is not None and isinstance(value, self.fields_of):
            if isinstance(value, BaseModel):
                return as_arguments(value)
            return {name: getattr(value, name) for name in self.field_names}
        if isinstance(value, BaseModel):
            return None if isinstance(value, self.takes_models) else as_arguments(value)
        if not isinstance(value, Mapping) or self.takes_mapping:
            return None
        return keywords_of(entry, value)


NAMED_ONLY = FirstParameter()


def as_arguments(model: BaseModel) -> dict[str, Any]:
    """Return the fields and the extra values of a model as keywords. Raise an `ArgumentError` if two have one name."""
    fields = fields_of(model)
    assert fields is not None
    if (name := next((name for name in fields.extra if name in fields.declared), None)) is not None:
        raise ArgumentError(
            f"{name!r} is a field of {type(model).__name__} and an extra value as well: leave out the extra one."
        )
    return {**fields.declared, **fields.extra}


def _alternatives(annotation: Any) -> list[Any]:
    """Return the classes that an annotation admits, with unions, aliases and `Annotated` resolved."""
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, typing_extensions.TypeAliasType):
        return _alternatives(origin.__value__)
    if isinstance(origin, typing.NewType):
        return _alternatives(origin.__supertype__)
    if origin is Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin is typing.Union or origin is types.UnionType:
        return [part for arg in typing.get_args(annotation) for part in _alternatives(arg)]
    return [origin]
