"""Digests of values: equal for equal values, and for no others that count as told apart."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any

import pytest
from pydantic import BaseModel

from llm_do.values.canonical import NoCanonicalForm, canonical, digest


class Access(IntFlag):
    READ = 1


class Color(Enum):
    RED = 1


class Patch(BaseModel):
    name: str | None = None


@dataclass
class Bag(list[int]):
    label: str = ""


@dataclass
class Word(str):  # noqa: SLOT000 - as a user may write it
    label: str = ""


def local_model(factor: int) -> Any:
    class Arguments(BaseModel):
        value: int = 1

        def total(self) -> int:
            return self.value * factor

    return Arguments()


def bag(*items: int) -> Bag:
    made = Bag()
    made.extend(items)
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Access(8), Access(16)),
        (Color.RED, Access.READ),
        (Patch(), Patch(name=None)),
        (bag(1), bag(2)),
        (Word("a"), Word("b")),
        (local_model(2), local_model(3)),
    ],
)
def test_unequal_values_have_unequal_digests_or_are_not_told_apart(one: Any, other: Any) -> None:
    assert digest(one) != digest(other) or not digest(one)[1]
    try:
        assert canonical(one) != canonical(other)
    except NoCanonicalForm:
        assert not digest(one)[1]


def test_equal_values_have_equal_digests() -> None:
    for make in list[Callable[[], Any]]([lambda: Access(8), lambda: Patch(name="a"), lambda: {"a": [Color.RED, 1.5]}]):
        assert digest(make()) == digest(make()) and digest(make())[1]
        assert canonical(make()) == canonical(make())


def test_replaced_texts_are_no_part_of_a_digest_and_objects_stay_what_they_are() -> None:
    class Account:
        def __repr__(self) -> str:
            return "Account(hunter22)"

    def clean(value: Any) -> Any:
        return "***" if str(value) in ("hunter22", "other222") else value

    def both(value: Any) -> list[Any]:
        return [1, {"key": value, value: 2}, Patch(name=value)]

    assert digest(both("hunter22"), clean) == digest(both("other222"), clean) != digest(both("abc"), clean)
    assert digest(both("hunter22")) != digest(both("other222"))
    assert not digest(Account(), clean)[1]


@pytest.mark.parametrize("depth", [120, 100_000])
def test_deeply_nested_values_are_told_apart_or_are_not_exact(depth: int) -> None:
    def nested(leaf: str) -> Any:
        value: Any = leaf
        for _ in range(depth):
            value = [value]
        return value

    one, other = digest(nested("left"), lambda value: value), digest(nested("right"), lambda value: value)
    assert one != other or not one[1]
