"""A worker's input and output: a JSON Schema, or a reference to a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, model_validator

from ..errors import did_you_mean
from ..values.json_schema import check_bounds, subschemas
from ..values.texts import quote_json
from .fields import Reference, check_reference


def _check_schema(value: Any) -> Any:
    if not isinstance(value, bool):
        _JsonSchema.model_validate(value)
    return value


def wrap_text(value: Any) -> Any:
    """Return a text as a list with one item, and other values as they are."""
    return [value] if isinstance(value, str) else value


_Schema = Annotated[Any, AfterValidator(_check_schema)]
_SchemaType = Literal["object", "array", "string", "number", "integer", "boolean", "null"]


class _JsonSchema(BaseModel):
    """Keywords of a JSON Schema whose errors are reported with their line."""

    type: Annotated[list[_SchemaType], BeforeValidator(wrap_text)] = []
    properties: dict[str, _Schema] = {}
    required: list[str] = []
    items: _Schema = {}
    enum: list[Any] = []
    defs: dict[str, _Schema] = Field(default={}, alias="$defs")
    ref: str = Field(default="#", alias="$ref", pattern="^#")

    @model_validator(mode="after")
    def _required_is_there(self) -> _JsonSchema:
        for name in self.required if self.properties else ():
            if name not in self.properties:
                raise ValueError(f"{name!r} is required, but not a property.{did_you_mean(name, self.properties)}")
        return self


def _check_shape(value: Any) -> Any:
    if isinstance(value, str):
        return check_reference(value)
    _JsonSchema.model_validate(value)
    _check_references(value)
    check_bounds(value)
    return value


def _check_references(schema: Any) -> None:
    """Refuse references to other files, which would have to be fetched."""
    for part in subschemas(schema, with_values=True):
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := part.get(key), str) and not reference.startswith("#"):
                raise ValueError(
                    f"{key}: {quote_json(reference)} is outside of the schema. Start the reference with '#'."
                )


def _check_input_shape(value: Any) -> Any:
    if isinstance(value, str) and value.casefold() == "none":
        if value != "none":
            raise ValueError(f"{value!r} is not in lower case: write `none` for a worker that takes no input.")
        return value
    _check_shape(value)
    if isinstance(value, Mapping) and value.get("type") != "object":
        raise ValueError("an inline input needs `type: object`: its properties are the parameters.")
    return value


Shape = Annotated[str | dict[str, Any], PlainValidator(_check_shape, json_schema_input_type=Reference | dict[str, Any])]
InputShape = Annotated[
    str | dict[str, Any],
    PlainValidator(_check_input_shape, json_schema_input_type=Literal["none"] | Reference | dict[str, Any]),
]
