"""Arguments: from a Python-style call to a mapping of validated values, the same for tools and workers.

The signature decides how a call is read, never the data:

- positional and keyword arguments bind as in Python;
- a lone mapping, or a lone pydantic model, *is* the arguments, unless the first parameter takes a
  mapping (or `Any`, or that model's class): then it is that parameter's value.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Protocol, TypeVar

import typing_extensions
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic.fields import FieldInfo
from pydantic_ai import Tool
from pydantic_ai.messages import MultiModalContent, UserContent
from pydantic_core import PydanticCustomError

from .errors import ArgumentError, did_you_mean
from .fields import aliases, fields_of, with_extra_apart
from .schemas import Vocabulary
from .secrets import HIDDEN, Marks, Values, texts_in
from .texts import described, encodable, json_text
from .validation import schema_validator
from .values import ATOMS


class WorkerInput(BaseModel):
    """What a worker that declares no `input_type` takes: `input`, files to look at, and any other keywords."""

    model_config = ConfigDict(extra="allow")

    input: Any = None
    """The task or the question: text as a rule, and anything that can be shown as JSON."""
    attachments: list[MultiModalContent] = []
    """PydanticAI content (`BinaryContent`, `ImageUrl`, ...) that goes to the model beside the text."""


class Parameters(Protocol):
    """What an entry takes."""

    json_schema: dict[str, Any]
    """What a model is told about the parameters."""
    validator: Any
    """Validates what a model sends, to a mapping from parameter names to values."""
    marks: Marks | None
    """Which of the arguments, or parts of them, are secret."""
    vocabulary: Vocabulary
    """What rules can say about the arguments."""

    @property
    def secret_names(self) -> frozenset[str]:
        """The parameters that are secret as a whole."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, by_name: bool = False) -> dict[str, Any]:
        """The validated arguments of a call made from Python, or an `ArgumentError`.

        With `by_name`, fields with an alias can be given by their own names too, at any depth.
        """


class DeclaredParameters:
    """Named parameters: those of a function, or the fields of a worker's `input_type`."""

    __slots__ = (
        "_entry",
        "_first",
        "_keyword_only",
        "_positional",
        "_positional_only",
        "_rest",
        "_validate",
        "json_schema",
        "marks",
        "validator",
        "vocabulary",
    )

    def __init__(
        self,
        entry: str,
        *,
        positional: Sequence[str],
        keyword_only: Sequence[str] = (),
        positional_only: Sequence[str] = (),
        rest: str | None = None,
        first: FirstParameter,
        validate: Callable[..., dict[str, Any]],
        validator: Any,
        json_schema: dict[str, Any],
        marks: Marks | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._entry = entry
        self.marks = marks
        self._positional = tuple(positional)
        self._keyword_only = tuple(keyword_only)
        self._positional_only = frozenset(positional_only)
        self._rest = rest
        self._first = first
        self._validate = validate
        self.validator = validator
        self.json_schema = json_schema
        self.vocabulary = vocabulary or Vocabulary(entry, json_schema)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, by_name: bool = False) -> dict[str, Any]:
        if (
            len(args) == 1
            and not kwargs
            and type(args[0]) not in ATOMS
            and (given := self._first.lone(self._entry, args[0])) is not None
        ):
            values = given
            if self._rest is not None:
                values.setdefault(self._rest, [])
        elif len(args) == 1 and not kwargs and self._positional and self._rest is None:
            values = {self._positional[0]: args[0]}
        elif args or self._rest is not None or self._positional_only:
            values = self._place(args, kwargs)
        else:
            values = kwargs
        try:
            return self._validate(values, by_alias=True, by_name=True) if by_name else self._validate(values)
        except ValidationError as exc:
            error = self._explain(exc)
            if self.marks is None:
                raise error from exc
        # What pydantic says has the values in it, and is not to be seen behind what is said here.
        raise _without_marked(error, values, self.marks, Marks.of(self.json_schema))

    @property
    def secret_names(self) -> frozenset[str]:
        return frozenset() if self.marks is None else self.marks.names

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Positional values under their names, next to the keywords."""
        values = dict(zip(self._positional, args, strict=False))
        if len(args) > len(self._positional) and self._rest is None:
            raise ArgumentError(
                f"{self._entry}() takes at most {len(self._positional)} positional arguments, got {len(args)}."
            )
        if self._rest is not None:
            values[self._rest] = list(args[len(self._positional) :])
        for name, value in kwargs.items():
            if name in self._positional_only or name == self._rest:
                raise ArgumentError(f"{self._entry}() takes {name!r} by position, not as a keyword.")
            if name in values:
                raise ArgumentError(f"{self._entry}() got two values for argument {name!r}.")
            values[name] = value
        return values

    def _explain(self, exc: ValidationError) -> ArgumentError:
        known = (*self._positional, *self._keyword_only)
        problems = []
        for error in exc.errors(include_url=False, include_context=False):
            where = ".".join(str(part) for part in error["loc"]) or "input"
            if error["type"] == "missing":
                problems.append(f"missing argument {where!r}")
            elif error["type"] == "extra_forbidden":
                problems.append(f"unknown argument {where!r}.{did_you_mean(where, known)}".rstrip("."))
            elif error["type"] == "argument":
                problems.append(error["msg"].rstrip("."))
            else:
                shown = HIDDEN if self._touches_secret(error["loc"]) else described(error["input"])
                shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
                problems.append(f"argument {where!r}: {error['msg']} (got {shown})")
        return ArgumentError(encodable(f"{self._entry}(): {'; '.join(problems)}"))

    def _touches_secret(self, where: tuple[int | str, ...]) -> bool:
        # It may be named by an alias, as the model that calls knows it.
        by_alias = Marks.of(self.json_schema)
        return self.marks is not None and (
            not where or self.marks.touches(where[0]) or (by_alias is not None and by_alias.touches(where[0]))
        )


def _without_marked(error: ArgumentError, values: dict[str, Any], *marks: Marks | None) -> ArgumentError:
    """An error that may quote the arguments, without those that are secret."""
    hidden = Values()
    for each in marks:
        if each is not None:
            for text in texts_in(each.split(values)[1]):
                hidden.add(text)
    return ArgumentError(hidden.text(str(error)))


class OpenParameters:
    """The parameters of a worker that declares none: those of `WorkerInput`."""

    __slots__ = ("_entry", "_optional", "json_schema", "validator", "vocabulary")
    marks: Marks | None = None
    secret_names: frozenset[str] = frozenset()

    def __init__(self, entry: str, *, optional: bool = True) -> None:
        self._entry = entry
        self._optional = optional
        """Whether it makes sense to call with nothing at all."""
        # A model is shown one field: it has no other caller's conventions to follow.
        self.json_schema = _TEXT_INPUT.json_schema()
        self.validator = _TEXT_INPUT.validator
        self.vocabulary = Vocabulary(entry, self.json_schema)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, by_name: bool = False) -> dict[str, Any]:
        values = self._place(args, kwargs)
        if not values and not self._optional:
            raise ArgumentError(f"{self._entry}(): missing argument 'input'")
        if "attachments" not in values:  # anything else is taken as it is
            return dict(values)
        try:
            given = WorkerInput.model_validate(values)
        except ValidationError as exc:
            raise ArgumentError(
                f"{self._entry}(): 'attachments' takes a list of PydanticAI content, "
                f"such as BinaryContent.from_path(...); got {described(values.get('attachments')):.100}."
            ) from exc
        return {**values, "attachments": given.attachments}

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs
        if len(args) > 1:
            raise ArgumentError(f"{self._entry}() takes one positional argument, 'input', got {len(args)}.")
        if not kwargs and (given := _NAMED_ONLY.lone(self._entry, args[0])) is not None:
            return given
        if "input" in kwargs:
            raise ArgumentError(f"{self._entry}() got two values for argument 'input'.")
        return {"input": args[0], **kwargs}


@with_config(ConfigDict(extra="forbid"))
class _TextInput(typing_extensions.TypedDict):
    input: Annotated[str, Field(description="The task or the question, as text.")]


_TEXT_INPUT = TypeAdapter(_TextInput)


@dataclasses.dataclass(frozen=True, slots=True)
class FirstParameter:
    """Whether the first parameter's own annotation takes a mapping or a pydantic model."""

    takes_mapping: bool = False
    takes_models: tuple[type, ...] = ()
    fields_of: type | None = None
    """The dataclass whose fields the parameters are: an instance of it is the arguments too."""
    field_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, annotation: Any) -> FirstParameter:
        mapping, models = False, []
        for part in _alternatives(annotation):
            if part is Any or part is object or isinstance(part, TypeVar | typing_extensions.TypeVar):
                return cls(takes_mapping=True, takes_models=(BaseModel,))
            if isinstance(part, type) and issubclass(part, BaseModel):
                models.append(part)
            elif typing_extensions.is_typeddict(part) or (isinstance(part, type) and issubclass(part, Mapping)):
                mapping = True
        return cls(takes_mapping=mapping, takes_models=tuple(models))

    def lone(self, entry: str, value: Any) -> dict[str, Any] | None:
        """The arguments that a lone value stands for; `None` when it is the first parameter's value."""
        if isinstance(value, BaseModel):
            return None if isinstance(value, self.takes_models) else _as_arguments(value)
        if self.fields_of is not None and isinstance(value, self.fields_of):
            return {name: getattr(value, name) for name in self.field_names}
        if not isinstance(value, Mapping) or self.takes_mapping:
            return None
        for key in value:
            if not isinstance(key, str):
                raise ArgumentError(f"{entry}(): argument names must be strings, got {key!r}.")
        return dict(value)


_NAMED_ONLY = FirstParameter()


def _alternatives(annotation: Any) -> list[Any]:
    """The classes that an annotation admits, with unions, aliases and `Annotated` taken apart."""
    if isinstance(annotation, typing_extensions.TypeAliasType):
        return _alternatives(annotation.__value__)
    if isinstance(annotation, typing.NewType):
        return _alternatives(annotation.__supertype__)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin is typing.Union or origin is types.UnionType:
        return [part for arg in typing.get_args(annotation) for part in _alternatives(arg)]
    if isinstance(origin, typing_extensions.TypeAliasType):
        return _alternatives(origin.__value__)
    return [annotation if origin is None else origin]


def tool_parameters(tool: Tool[Any]) -> DeclaredParameters:
    """The parameters of a PydanticAI tool, as its function declares them."""
    schema = tool.function_schema
    parameters = list(inspect.signature(tool.function).parameters.values())[1 if schema.takes_ctx else 0 :]
    of_kind: dict[Any, list[str]] = {}
    for parameter in parameters:
        of_kind.setdefault(parameter.kind, []).append(parameter.name)
    positional_only = of_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
    positional = positional_only + of_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
    rest = of_kind.get(inspect.Parameter.VAR_POSITIONAL, [None])[0]
    open_keywords = inspect.Parameter.VAR_KEYWORD in of_kind
    annotations = _annotations(tool.function)
    first = FirstParameter.of(annotations.get(parameters[0].name, Any)) if parameters else _NAMED_ONLY

    validate: Callable[..., dict[str, Any]] = schema.validator.validate_python
    bare = False
    if schema.single_arg_name is not None:
        # PydanticAI shows a model the fields of a lone model-like parameter, and so its validator has
        # to guess whether a mapping is the parameter or holds it. A call from Python says which.
        validate = _lone_model_validator(schema.single_arg_name, annotations[schema.single_arg_name])
    elif open_keywords and len(parameters) == 1 and schema.json_schema.get("properties"):
        # `Tool.from_schema`: the function takes any keywords, and the JSON schema is the signature.
        positional = list(schema.json_schema["properties"])
        first = _NAMED_ONLY
        validate = partial(_check_names, tool.name, schema.json_schema)
        bare = True
    lone, renamed = schema.single_arg_name, _renamed(parameters, annotations, schema.json_schema)
    lone_type = None if lone is None else annotations[lone]
    if renamed:  # Python code calls by the names that Python has
        validate = partial(validate, by_alias=True, by_name=True)
    return DeclaredParameters(
        tool.name,
        positional=positional,
        keyword_only=of_kind.get(inspect.Parameter.KEYWORD_ONLY, []),
        positional_only=positional_only,
        rest=rest,
        first=first,
        validate=validate,
        validator=schema.validator,
        json_schema=schema.json_schema,
        marks=Marks.of(schema.json_schema) if bare else _marks_by_name(schema.json_schema, parameters, annotations),
        vocabulary=Vocabulary(tool.name, schema.json_schema, renamed, lone, lone_type, unchecked=bare),
    )


def _renamed(
    parameters: Sequence[inspect.Parameter], annotations: Mapping[str, Any], schema: Mapping[str, Any]
) -> dict[str, str]:
    """The parameters of a function that go by another name in its schema."""
    properties, found = schema.get("properties", {}), {}
    for parameter in parameters:
        metadata = getattr(annotations.get(parameter.name), "__metadata__", ())
        infos = [each for each in (*metadata, parameter.default) if isinstance(each, FieldInfo)]
        names = [alias for info in infos for alias in aliases(info) if alias in properties]
        if names and names[0] != parameter.name:
            found[parameter.name] = names[0]
    return found


def _marks_by_name(
    schema: dict[str, Any], parameters: Sequence[inspect.Parameter], annotations: Mapping[str, Any]
) -> Marks | None:
    """Return the marks of a function's schema, by the names that arguments and their fields have in Python."""
    if Marks.of(schema) is None:
        return None
    hints: dict[str, Any] = {}
    for parameter in parameters:
        hint = annotations.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint = types.GenericAlias(list, (hint,))
        if parameter.kind is not parameter.VAR_KEYWORD:
            hints[parameter.name] = Annotated[hint, parameter.default] if _is_field(parameter.default) else hint
    shape: Any = typing_extensions.TypedDict("_Arguments", hints)  # type: ignore[misc]
    made = TypeAdapter(shape).json_schema(by_alias=False)
    definitions = {**schema.get("$defs", {}), **made.get("$defs", {})}
    return Marks({**made, "additionalProperties": schema.get("additionalProperties"), "$defs": definitions})


def _is_field(value: object) -> bool:
    return isinstance(value, FieldInfo)


def model_parameters(entry: str, input_type: Any) -> DeclaredParameters:
    """The fields of a worker's `input_type` as its parameters."""
    return _model_parameters(entry, input_type)


@lru_cache(maxsize=1024)
def _model_parameters(entry: str, input_type: Any) -> DeclaredParameters:
    open_keywords, dataclass = False, None
    if isinstance(input_type, type) and issubclass(input_type, BaseModel) and not issubclass(input_type, RootModel):
        annotations = {name: field.annotation for name, field in input_type.model_fields.items()}
        names = {
            alias: name
            for name, field in input_type.model_fields.items()
            for alias in (name, *aliases(field, roots=True))
        }
        open_keywords = input_type.model_config.get("extra") == "allow"
        as_arguments: Callable[[Any], dict[str, Any]] = _model_as_arguments
    elif isinstance(input_type, type) and dataclasses.is_dataclass(input_type):
        annotations = dict(typing.get_type_hints(input_type, include_extras=True))
        annotations = {field.name: annotations[field.name] for field in dataclasses.fields(input_type) if field.init}
        as_arguments = partial(_attributes, tuple(annotations))
        names = {name: name for name in annotations}
        dataclass = input_type
    else:
        raise ArgumentError(
            f"{entry}: input_type must be a pydantic model or a dataclass, whose fields are the parameters; "
            f"got {input_type!r}."
        )
    # pydantic ignores unknown fields by default. An argument that nobody takes is an error, as in Python.
    known = BeforeValidator(partial(_check_fields, names, open_keywords))
    shape: Any = Annotated[input_type, AfterValidator(as_arguments), known]
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)
    json_schema = TypeAdapter(input_type).json_schema()
    if not open_keywords:
        json_schema["additionalProperties"] = False
    first = FirstParameter.of(next(iter(annotations.values()))) if annotations else _NAMED_ONLY
    first = dataclasses.replace(first, fields_of=dataclass, field_names=tuple(annotations))
    properties = json_schema.get("properties", {})
    renamed = {name: alias for alias, name in names.items() if alias != name and alias in properties}
    return DeclaredParameters(
        entry,
        positional=tuple(annotations),
        first=first,
        validate=partial(adapter.validate_python, by_alias=True, by_name=True),
        validator=adapter.validator,
        json_schema=json_schema,
        # Arguments have the names of fields, whatever a model that calls is told.
        marks=Marks.of(json_schema) and Marks.of(TypeAdapter(input_type).json_schema(by_alias=False)),
        vocabulary=Vocabulary(entry, json_schema, renamed),
    )


def schema_parameters(entry: str, schema: dict[str, Any]) -> DeclaredParameters:
    """The properties of a JSON Schema as parameters."""
    closed = {"additionalProperties": False, **schema}
    marks = Marks.of(closed)
    validate = schema_validator(closed, marks)

    def check(values: dict[str, Any]) -> dict[str, Any]:
        if problem := validate(values):
            raise PydanticCustomError("argument", "{problem}", {"problem": problem})
        return values

    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(Annotated[dict[str, Any], AfterValidator(check)])
    return DeclaredParameters(
        entry,
        positional=tuple(schema.get("properties", ())),
        first=_NAMED_ONLY,
        validate=adapter.validate_python,
        validator=adapter.validator,
        json_schema=closed,
        marks=marks,
    )


def _check_fields(names: dict[str, str], open_keywords: bool, value: Any) -> Any:
    """Complain about a field that nobody knows, or that is given twice, by its name and by an alias."""
    if not isinstance(value, Mapping):
        return value
    given: set[str] = set()
    for key in value:
        name = names.get(key)
        if name is None and not open_keywords:
            detail = {"name": repr(key), "hint": did_you_mean(str(key), names)}
            raise PydanticCustomError("argument", "unknown argument {name}.{hint}", detail)
        if name in given:
            raise PydanticCustomError("argument", "two values for argument {name}.", {"name": repr(name)})
        if name is not None:
            given.add(name)
    return value


def _as_arguments(model: BaseModel) -> dict[str, Any]:
    """Return the fields and the extra values of a model as keywords. Raise an `ArgumentError` if two have one name."""
    fields = fields_of(model)
    assert fields is not None
    if (name := fields.ambiguous) is not None:
        raise ArgumentError(
            f"{name!r} is a field of {type(model).__name__} and an extra value as well: leave out the extra one."
        )
    return {**fields.declared, **fields.extra}


def _model_as_arguments(model: BaseModel) -> dict[str, Any]:
    """Do the same while pydantic validates."""
    try:
        return _as_arguments(model)
    except ArgumentError as exc:
        raise PydanticCustomError("argument", "{problem}", {"problem": str(exc)}) from None


def _attributes(names: tuple[str, ...], value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _lone_model_validator(name: str, annotation: Any) -> Callable[..., dict[str, Any]]:
    """Validates the arguments of a function whose one parameter is a model, a dataclass or a TypedDict."""
    shape: Any = typing_extensions.TypedDict("_Arguments", {name: annotation})  # type: ignore[misc]
    forbid_others: Any = with_config(ConfigDict(extra="forbid"))
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(forbid_others(shape))
    return adapter.validate_python


def _check_names(entry: str, schema: dict[str, Any], values: dict[str, Any], **_: bool) -> dict[str, Any]:
    """Check names only: a tool made from a bare JSON schema does no validation of its own."""
    properties = schema["properties"]
    for name in schema.get("required", ()):
        if name not in values:
            raise ArgumentError(f"{entry}(): missing argument {name!r}")
    if schema.get("additionalProperties", True) is False:
        for name in values:
            if name not in properties:
                raise ArgumentError(f"{entry}(): unknown argument {name!r}.{did_you_mean(name, properties)}")
    return dict(values)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    target = function.func if isinstance(function, partial) else function
    if not inspect.isroutine(target):
        target = type(target).__call__
    return typing.get_type_hints(target, include_extras=True)


def prompt_of(
    arguments: Mapping[str, Any], attached: Sequence[UserContent] = (), *, declared: bool
) -> str | Sequence[UserContent] | None:
    """What a worker's model is shown of its arguments: a lone `input` as text, anything else as JSON.

    Only a worker that declares no parameters has attachments among them. A declared one names its fields as it
    likes, and files go beside them.
    """
    shown = dict(arguments)
    attachments = attached if declared else shown.pop("attachments", ())
    value = shown["input"] if set(shown) == {"input"} else (shown or None)
    text: str | None
    if isinstance(value, str | None):
        text = value
    else:
        text = json_text(with_extra_apart(value), indent=2, inf_nan_mode="constants")
    if not attachments:
        return text
    return [*([] if text is None else [text]), *attachments]
