"""Walking JSON Schemas: what references lead to, and what unions come down to."""

from typing import Any

import pytest

from llm_do.policy.rules import shape_of
from llm_do.privacy.secret_fields import SecretFields
from llm_do.values.json_schema import leaves, resolve

ROOT: dict[str, Any] = {
    "$id": "https://example.com/tool.json",
    "properties": {"a/b": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "c~d": {"type": "null"}},
    "$defs": {"A b": {"type": "number"}, "Named": {"$anchor": "named", "type": "boolean"}},
}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", ROOT),
        ("#/$defs/A%20b", {"type": "number"}),
        ("#/properties/a~1b/anyOf/1", {"type": "integer"}),
        ("#/properties/c~0d", {"type": "null"}),
        ("#named", {"$anchor": "named", "type": "boolean"}),
        ("https://example.com/tool.json#/$defs/A b", {"type": "number"}),
        *((nothing, None) for nothing in ("#/$defs/B", "#/properties/a~1b/anyOf/2", "#other", "other.json#/$defs/A b")),
        *((nothing, None) for nothing in ("#/properties/a~1b/anyOf/-1", "#/$defs/A b/type/x", "other.json")),
    ],
)
def test_a_reference_leads_to_a_part_of_its_own_schema(reference: str, target: Any) -> None:
    assert resolve(ROOT, reference) == target


def test_a_union_comes_down_to_its_choices_also_behind_a_cycle_of_references() -> None:
    root = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"oneOf": [{"type": "string"}, True]}]}}}
    assert list(leaves(root, {"$ref": "#/$defs/A"})) == [{"type": "string"}, {}]


def test_a_mark_is_found_behind_a_reference_into_a_list() -> None:
    schema = {"properties": {"a": {"anyOf": [{"format": "password"}]}, "b": {"$ref": "#/properties/a/anyOf/0"}}}
    secret_fields = SecretFields(schema)
    assert [secret_fields.has_secret_in(name) for name in "abc"] == [True, True, False]


def test_an_argument_behind_a_reference_to_nothing_can_be_anything() -> None:
    (kind,) = shape_of({"properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/None"}]}}}).values()
    assert kind.types is None and kind.values is None


def test_the_same_large_union_behind_many_arguments_is_looked_at_within_bounds() -> None:
    union = {"anyOf": [{"type": "string", "title": str(number)} for number in range(4_000)]}
    schema = {"properties": {f"a{number}": {"$ref": "#/$defs/U"} for number in range(4_000)}, "$defs": {"U": union}}
    kinds = list(shape_of(schema).values())
    assert kinds[0].types == {"string"}
    assert kinds[-1].types is None
