"""Schemas of all kinds, also those that would make llama.cpp eat all memory or drop a half."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.exceptions import UserError

from llm_do.models.local.engine import End, get_engine
from llm_do.models.local.schema import GrammarSchema, make_validator

INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


class Topic(Enum):
    BILLING = "billing"
    OTHER = "other"


class Item(BaseModel):
    name: Annotated[str, Field(pattern="x|y", max_length=10_000)] | None = None
    parts: list["Item"] = Field(max_length=1)


class Everything(BaseModel):
    """What schemas have: references, recursion, enumerations, unions, bounds, and what no grammar can hold."""

    topic: Topic
    when: Literal["now", "later"]
    count: Annotated[int, Field(ge=1, le=5)]
    extra: dict[str, int]
    tuple_: tuple[int, str]
    any_: Any
    item: Item | None


SCHEMAS: dict[str, dict[str, Any]] = {
    "what pydantic makes of classes": Everything.model_json_schema(),
    "names that are no names": {
        "$defs": {"A[int]": record(x=INTEGER), "a/b": STRING, "Ü": STRING},
        **record(a={"$ref": "#/$defs/A[int]"}, b={"$ref": "#/$defs/a~1b"}, c={"$ref": "#/$defs/%C3%9C"}),
    },
    "recursion": {"$defs": {"N": record(n={"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]})}, "$ref": "#/$defs/N"},
    "the root again": record(n={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "definitions": {"definitions": {"A": record(x=INTEGER)}, **record(a={"$ref": "#/definitions/A"})},
    "a property as a definition": record(a=INTEGER, b={"$ref": "#/properties/a"}),
    "a reference to nothing": record(a={"$ref": "#/$defs/A"}),
    "a reference to elsewhere": record(a={"$ref": "https://example.com/schema.json"}),
    "a reference to itself": {"$defs": {"A": {"$ref": "#/$defs/A"}}, **record(a={"$ref": "#/$defs/A"})},
    "allOf": record(a={"allOf": [record(x=INTEGER), record(y={"enum": ["q", "r"]})]}),
    "allOf of a reference": {"$defs": {"E": {"enum": ["a"]}}, **record(a={"allOf": [{"$ref": "#/$defs/E"}]})},
    "allOf beside properties": {"allOf": [record(x=INTEGER)], **record(z={"type": "boolean"})},
    "one of them is required": {**record(), "properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}]},
    "null or not": record(a={"anyOf": [INTEGER, {"type": "null"}]}, b={"type": ["string", "null"], "maxLength": 3}),
    "values": record(a={"enum": [1, 2.5, None, "x"]}, b={"const": {"k": [1]}}, c={"enum": []}),
    "arrays": record(a={"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}, "minItems": 1}),
    "tuples": record(a={"type": "array", "prefixItems": [INTEGER, STRING], "items": STRING, "maxItems": 4}),
    "tuples of old": record(a={"type": "array", "items": [INTEGER, STRING]}),
    "other properties": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": record(z=INTEGER)},
    "nothing": {},
    "no properties": {"type": "object", "properties": {}},
    "required but not there": {"type": "object", "properties": {"a": INTEGER}, "required": ["a", "z"]},
    "true and false": {"type": "object", "properties": {"a": True, "b": False}, "required": ["a"]},
    "pets": record(pet={"oneOf": [record(kind={"const": "cat"}), record(kind={"const": "dog"})]}),
    "names of keywords": record(properties=record(type=INTEGER), items=INTEGER, anyOf=INTEGER, string=INTEGER),
    "names of all alphabets": record(**{"größe": INTEGER, "名前": INTEGER, 'a b"c\\': INTEGER, "new\nline": INTEGER}),
    "names that look alike": record(**{"a-b": INTEGER, "a_b": STRING, "a.b": {"type": "null"}}),
    "bounds": record(
        a={"type": "integer", "minimum": 5, "exclusiveMaximum": 9}, b={"type": "integer", "minimum": 1e30}
    ),
    "shares": record(a={"type": "number", "minimum": 0, "maximum": 1}, b={"type": "number", "exclusiveMinimum": 0}),
    "bounds that cross": record(
        a={"type": "string", "minLength": 9, "maxLength": 2},
        b={"type": "integer", "minimum": 9, "maximum": 2},
        c={"type": "array", "minItems": 9, "maxItems": 2},
    ),
    "large bounds": record(a={"type": "string", "minLength": 10**9}, b={"type": "array", "maxItems": 10**9}),
    "patterns": record(
        a={"type": "string", "pattern": "^[A-Z]{3}-\\d{2}$"},
        b={"type": "string", "pattern": "(?=x)"},
        c={"type": "string", "pattern": "^("},
    ),
    "formats": record(a={"type": "string", "format": "date"}, b={"type": "string", "format": "email"}),
    "what no grammar holds": record(a={"not": {"type": "null"}}, b={"type": "array", "uniqueItems": True}),
    "wrong types": record(
        a={"type": "object", "properties": None, "required": None},
        b={"type": "array", "minItems": None, "maxItems": "3", "items": None},
        c={"type": "string", "format": ["x"], "pattern": 3},
        d={"anyOf": None, "allOf": None, "enum": None, "$ref": 3},
        e={"type": "nonsense"},
        f={"type": []},
        g={"type": "integer", "minimum": True, "maximum": "9"},
    ),
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_llama_cpp_makes_a_grammar_of_it(schema: dict[str, Any], smollm2: Path) -> None:
    (file,) = (smollm2 / "models").glob("SmolLM2*.gguf")
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": GrammarSchema(schema).schema}}
    request = {"messages": [{"role": "user", "content": "Fill it in."}], "response_format": wanted, "max_tokens": 2}
    *_, end = [piece async for piece in get_engine(file, 8192).answer(request)]
    assert isinstance(end, End) and end.output_tokens


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        (r"^[A-Z]{3}-\d{2}$", "^[A-Z]{3}-[0-9]{2}$"),
        (r"^[\w.-]+@x\.org$", r"^[A-Za-z0-9_.-]+@x\.org$"),
        ("^(yes|no)?$", "^(yes|no)?$"),
        ("yes", None),
        ("^a.c$", None),
        ('^[^"]$', None),
        (r"^\S$", None),
        ("^(?=a)a$", None),
        ("^(a$", None),
        ('^["]$', None),
    ],
)
def test_patterns_that_are_taken_as_they_are_meant(pattern: str, taken: str | None) -> None:
    (schema,) = GrammarSchema(record(a={"type": "string", "pattern": pattern})).schema["properties"].values()
    assert schema.get("pattern") == taken


@pytest.mark.parametrize("name", sorted(set(SCHEMAS) - {"recursion"}))
def test_arguments_are_always_an_object(name: str) -> None:
    assert GrammarSchema(SCHEMAS[name]).schema["type"] == "object"


def test_what_is_added_is_merged() -> None:
    assert GrammarSchema(SCHEMAS["allOf beside properties"]).schema == {
        "type": "object",
        "properties": {"z": {"type": "boolean"}, "x": {"type": "integer"}},
        "required": ["z", "x"],
        "additionalProperties": False,
    }


def test_bounds_that_cross_are_left_to_the_check_afterwards() -> None:
    assert GrammarSchema(SCHEMAS["bounds that cross"]).schema["properties"] == {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": "array", "items": {}},
    }
    assert "too short" in str(make_validator(SCHEMAS["bounds that cross"])({"a": "", "b": 9, "c": []}))


def test_what_a_grammar_holds_of_numbers() -> None:
    properties = GrammarSchema(SCHEMAS["bounds"]).schema["properties"]
    assert properties == {"a": {"type": "integer", "minimum": 5, "maximum": 8}, "b": {"type": "integer"}}
    shares = GrammarSchema(SCHEMAS["shares"]).schema["properties"]
    assert shares["b"] == {"type": "number"}
    assert len(shares["a"]["enum"]) == 101 and all(0 <= share <= 1 for share in shares["a"]["enum"])


def test_a_tool_without_parameters_gets_none() -> None:
    assert GrammarSchema(SCHEMAS["no properties"]).schema["additionalProperties"] is False


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_checking_is_no_crash(schema: dict[str, Any]) -> None:
    problem = make_validator(schema)
    assert all(isinstance(problem(value), str | None) for value in ({}, {"a": 1}, [], None, 3))


def test_what_is_nested_too_deep_is_told() -> None:
    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = record(a=schema)
    with pytest.raises(UserError, match="nested"):
        GrammarSchema(schema)
