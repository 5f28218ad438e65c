"""Read the parameters of functions, classes and JSON Schemas."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, RootModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_ai import Tool
from pydantic_core import PydanticCustomError

from ..errors import ArgumentError, did_you_mean
from ..privacy.secret_fields import SecretFields
from ..values.fields import aliases
from .parameters import DeclaredParameters, FirstParameter, as_arguments, closed_mapping
from .validation import schema_validator
from .vocabulary import Vocabulary


def tool_parameters(tool: Tool[Any]) -> DeclaredParameters:
    """Return the parameters of a PydanticAI tool, as its function declares them."""
    schema = tool.function_schema
    parameters = list(inspect.signature(tool.function).parameters.values())[1 if schema.takes_ctx else 0 :]
    of_kind: dict[Any, list[str]] = {}
    for parameter in parameters:
        of_kind.setdefault(parameter.kind, []).append(parameter.name)
    positional_only = of_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
    positional = positional_only + of_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
    rest = of_kind.get(inspect.Parameter.VAR_POSITIONAL, [None])[0]
    annotations = _annotations(tool.function)
    first = _first_parameter(parameters, annotations)

    validate: Callable[..., dict[str, Any]] = schema.validator.validate_python
    bare = False
    lone = schema.single_arg_name
    if lone is not None:
        # PydanticAI shows a model the fields of a lone model-like parameter, and so its validator has
        # to guess whether a mapping is the parameter or holds it. A call from Python is explicit.
        validate = closed_mapping({lone: annotations[lone]}).validate_python
    elif inspect.Parameter.VAR_KEYWORD in of_kind and len(parameters) == 1 and schema.json_schema.get("properties"):
        # `Tool.from_schema`: the function takes any keywords, and the JSON schema is the signature.
        positional = list(schema.json_schema["properties"])
        first = _first_property(schema.json_schema)
        validate = partial(_check_names, tool.name, schema.json_schema)
        bare = True
    lone_type = None if lone is None else annotations[lone]
    renamed = _renamed(parameters, annotations, schema.json_schema)
    if renamed:  # Python code calls by the names that Python has
        validate = partial(_refuse_twice, tool.name, renamed, partial(validate, by_alias=True, by_name=True))
    return DeclaredParameters(
        entry=tool.name,
        positional=positional,
        keyword_only=of_kind.get(inspect.Parameter.KEYWORD_ONLY, []),
        positional_only=positional_only,
        rest=rest,
        first=first,
        validate=validate,
        validator=schema.validator,
        json_schema=schema.json_schema,
        secret_fields=SecretFields.of(schema.json_schema)
        if bare
        else _secret_fields_by_name(schema.json_schema, parameters, annotations),
        vocabulary=Vocabulary(tool.name, schema.json_schema, renamed, lone, lone_type, unchecked=bare),
    )


def _first_parameter(parameters: Sequence[inspect.Parameter], annotations: Mapping[str, Any]) -> FirstParameter:
    """Read the first parameter of a function. A keyword-only one takes no lone mapping as its value."""
    first = parameters[0] if parameters else None
    if first is None or first.kind is first.VAR_KEYWORD:
        return FirstParameter()
    parameter = FirstParameter.of(annotations.get(first.name, inspect.Parameter.empty), first.name)
    return FirstParameter(value_of=parameter.value_of) if first.kind is first.KEYWORD_ONLY else parameter


def _first_property(schema: Mapping[str, Any]) -> FirstParameter:
    """Read the first property of a JSON Schema. A lone mapping is always the arguments."""
    name, part = next(iter(schema.get("properties", {}).items()), (None, None))
    takes_object = isinstance(part, dict) and part.get("type", "object") == "object"
    return FirstParameter(value_of=name if takes_object else None)


def _renamed(
    parameters: Sequence[inspect.Parameter], annotations: Mapping[str, Any], schema: Mapping[str, Any]
) -> dict[str, str]:
    """Return the parameters of a function that have another name in its schema."""
    properties, renamed = schema.get("properties", {}), {}
    for parameter in parameters:
        metadata = getattr(annotations.get(parameter.name), "__metadata__", ())
        infos = [each for each in (*metadata, parameter.default) if isinstance(each, FieldInfo)]
        names = [alias for info in infos for alias in aliases(info) if alias in properties]
        if names and names[0] != parameter.name:
            renamed[parameter.name] = names[0]
    return renamed


def _refuse_twice(
    entry: str, renamed: Mapping[str, str], validate: Callable[..., dict[str, Any]], values: dict[str, Any], **_: bool
) -> dict[str, Any]:
    """Validate arguments, and refuse one that has a value by its name and by its alias. pydantic would drop one."""
    for name, alias in renamed.items():
        # Two parameters may have each other's names.
        is_apart = alias not in renamed and name not in renamed.values()
        if is_apart and name in values and alias in values:
            raise ArgumentError(f"{entry}() got two values for argument {name!r}, which is {alias!r} in its schema.")
    return validate(values)


def _secret_fields_by_name(
    schema: dict[str, Any], parameters: Sequence[inspect.Parameter], annotations: Mapping[str, Any]
) -> SecretFields | None:
    """Return the secret fields of a function's schema, by the names that arguments and their fields have in Python."""
    if SecretFields.of(schema) is None:
        return None
    hints: dict[str, Any] = {}
    for parameter in parameters:
        hint = annotations.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint = types.GenericAlias(list, (hint,))
        if parameter.kind is not parameter.VAR_KEYWORD:
            is_field = isinstance(parameter.default, FieldInfo)
            hints[parameter.name] = Annotated[hint, parameter.default] if is_field else hint
    by_name = closed_mapping(hints).json_schema(by_alias=False)
    definitions = {**schema.get("$defs", {}), **by_name.get("$defs", {})}
    return SecretFields({**by_name, "additionalProperties": schema.get("additionalProperties"), "$defs": definitions})


def model_parameters(entry: str, input_type: Any) -> DeclaredParameters:
    """Return the fields of a worker's `input_type` as its parameters."""
    return _model_parameters(entry, input_type)


@lru_cache(maxsize=1024)
def _model_parameters(entry: str, input_type: Any) -> DeclaredParameters:
    open_keywords = False
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
    else:
        raise ArgumentError(
            f"{entry}: input_type must be a pydantic model or a dataclass, whose fields are the parameters; "
            f"got {input_type!r}."
        )
    # pydantic ignores unknown fields by default. An unknown argument is an error, as in Python.
    check_names = BeforeValidator(partial(_check_fields, names, open_keywords))
    shape: Any = Annotated[input_type, AfterValidator(as_arguments), check_names]
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)
    json_schema = TypeAdapter(input_type).json_schema()
    if not open_keywords:
        json_schema["additionalProperties"] = False
    name, annotation = next(iter(annotations.items()), (None, None))
    first = FirstParameter() if name is None else FirstParameter.of(annotation, name)
    first = dataclasses.replace(first, fields_of=input_type, field_names=tuple(annotations))
    properties = json_schema.get("properties", {})
    renamed = {name: alias for alias, name in names.items() if alias != name and alias in properties}
    return DeclaredParameters(
        entry=entry,
        positional=list(annotations),
        first=first,
        validate=partial(adapter.validate_python, by_alias=True, by_name=True),
        validator=adapter.validator,
        json_schema=json_schema,
        # Arguments have the names of fields, not of the schema that a model sees.
        secret_fields=SecretFields.of(json_schema)
        and SecretFields.of(TypeAdapter(input_type).json_schema(by_alias=False)),
        vocabulary=Vocabulary(entry, json_schema, renamed),
    )


def schema_parameters(entry: str, schema: dict[str, Any]) -> DeclaredParameters:
    """Return the properties of a JSON Schema as parameters."""
    closed = {"additionalProperties": False, **schema}
    secret_fields = SecretFields.of(closed)
    validate = schema_validator(closed, secret_fields)

    def check(values: dict[str, Any]) -> dict[str, Any]:
        if problem := validate(values):
            raise PydanticCustomError("argument", "{problem}", {"problem": problem})
        return values

    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(Annotated[dict[str, Any], AfterValidator(check)])
    return DeclaredParameters(
        entry=entry,
        positional=list(schema.get("properties", ())),
        first=_first_property(schema),
        validate=adapter.validate_python,
        validator=adapter.validator,
        json_schema=closed,
        secret_fields=secret_fields,
        vocabulary=Vocabulary(entry, closed),
    )


def _check_fields(names: dict[str, str], open_keywords: bool, value: Any) -> Any:
    """Refuse an unknown field, and one that has two values, by its name and by an alias."""
    if not isinstance(value, Mapping):
        return value
    fields: set[str] = set()
    for key in value:
        name = names.get(key)
        if name is None and not open_keywords:
            detail = {"name": repr(key), "hint": did_you_mean(str(key), names)}
            raise PydanticCustomError("argument", "unknown argument {name}.{hint}", detail)
        if name in fields:
            raise PydanticCustomError("argument", "two values for argument {name}.", {"name": repr(name)})
        if name is not None:
            fields.add(name)
    return value


def _model_as_arguments(model: BaseModel) -> dict[str, Any]:
    try:
        return as_arguments(model)
    except ArgumentError as exc:
        raise PydanticCustomError("argument", "{problem}", {"problem": str(exc)}) from None


def _attributes(names: tuple[str, ...], value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _check_names(entry: str, schema: dict[str, Any], values: dict[str, Any], **_: bool) -> dict[str, Any]:
    """Check names only: a tool from a bare JSON Schema does no validation of its own."""
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
