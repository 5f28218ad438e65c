"""What is shown to a person who decides says what is there."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from llm_do.privacy.display import abridge, format_arguments, visible

ANY_TEXT = st.text(st.characters(), max_size=60) | st.text(
    '\\xuU0e2\x1b\u202e\u200b\n\t" ab:│┆é\ufe0f\U000e0041', max_size=30
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)
LIES = (
    "\x00\x07\x1b\x7f\x9b\xad\u061c\u200b\u200d\u200e\u202e\u2028\u2029\u2060\u2066\ufe0f\ufeff\ue000\ud800\U000e0041"
)


def read(shown: str) -> str:
    """What `visible` made, read back."""
    found = re.compile(r"\\(?:(\\)|x(..)|u(.{4})|U(.{8}))", re.DOTALL)
    return found.sub(lambda m: m[1] or chr(int(m[2] or m[3] or m[4], 16)), shown)


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    return [text for item in value for text in strings(item)] if isinstance(value, list) else []


@given(ANY_TEXT)
def test_only_printable_characters_are_left_and_no_two_texts_look_the_same(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in shown)
    assert read(shown) == text


@given(ANY_TEXT)
def test_newlines_and_tabs_may_stay(text: str) -> None:
    shown = visible(text, keep="\n\t")
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert shown.count("\n") == text.count("\n")
    assert read(shown) == text


@pytest.mark.parametrize("lie", LIES)
def test_what_could_lie_is_spelled_out(lie: str) -> None:
    assert re.fullmatch(r"a\\(x..|u....|U.{8})b", visible(f"a{lie}b"))


def test_escapes_are_those_that_people_know() -> None:
    assert visible("\x1b[2J \u202e \U000e0041") == r"\x1b[2J \u202e \U000e0041"
    assert visible("naïve – 日本 ✓ C:\\new") == "naïve – 日本 ✓ C:\\new"
    assert visible("\\u202e") == r"\\u202e" != visible("\u202e")


@pytest.mark.parametrize("text", ["\x1b[31m\u202e", "\\" * 50 + "x", "\u200bа", "plain ", "\\\U000e0041"])
def test_much_hostile_text_is_shown_in_linear_time(text: str) -> None:
    """Work that grew with the square of a million characters would not end before the test is ended."""
    times = 1_000_000 // len(text)
    assert visible(text * times) == visible(text) * times


def test_the_middle_is_left_out_and_both_ends_are_kept() -> None:
    text = "first" + "x" * 41_990 + "final"
    short = abridge(text, 800)
    assert short.startswith("firstxxx")
    assert short.endswith("xxxfinal")
    assert " … [41,200 of 42,000 characters not shown] … " in short


@given(st.text(max_size=300), st.integers(-5, 200))
def test_abridging_never_makes_it_longer(text: str, limit: int) -> None:
    assert len(abridge(text, limit)) <= len(text)
    if len(text) <= limit:
        assert abridge(text, limit) == text


@given(st.dictionaries(ANY_TEXT, JSON, max_size=4), st.booleans())
def test_a_layout_never_has_what_could_lie(payload: dict[str, Any], full: bool) -> None:
    shown = format_arguments(payload, full=full, limit=40)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert not re.search("[\ufe00-\ufe0f\u3164]", shown)


@given(st.dictionaries(ANY_TEXT, JSON, max_size=4), st.integers(10, 120))
def test_in_full_everything_is_there(payload: dict[str, Any], width: int) -> None:
    shown = format_arguments(payload, full=True, width=width).replace("\n  ┆ ", "").replace("\n  │ ", "\n")
    for text in strings(payload):
        found = [visible(text), visible(text, keep="\n\t"), visible(text + '"')[:-1].replace('"', "\\x22")]
        assert any(form in shown for form in found) or read(shown).count(text)


@given(st.dictionaries(ANY_TEXT.filter(bool), ANY_TEXT, min_size=1, max_size=4))
def test_no_text_poses_as_another_argument(payload: dict[str, str]) -> None:
    lines = format_arguments(payload, full=True).split("\n")
    assert len([line for line in lines if not line.startswith(("  │ ", "  ┆ "))]) == len(payload)


class Weird:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@dataclass
class Point:
    x: int
    raw: bytes


class Person(BaseModel):
    name: str


def test_values_of_all_kinds() -> None:
    payload = {
        "path": "notes.txt",
        "content": "one\n\ttwo\x1b",
        "options": {"deep": [1, None, True, {"quote": 'a"b'}]},
        "image": b"\x89PNG....",
        "blob": b"\x00\x01",
        "number": 5,
        "text": "5",
        "empty": "",
        "fake: yes": "x",
        "weird": Weird(),
        "person": Person(name="Ann\u202e"),
        "point": Point(1, b"abc"),
        7: (1, 2),  # names are hostile as well
    }
    assert format_arguments(payload) == (  # type: ignore[arg-type]
        "path: notes.txt\n"
        "content:\n"
        "  │ one\n"
        "  │ \ttwo\\x1b\n"
        'options: {deep: [1, null, true, {quote: "a\\x22b"}]}\n'
        "image: <8 bytes, PNG image>\n"
        "blob: <2 bytes, binary>\n"
        "number: 5\n"
        'text: "5"\n'
        'empty: ""\n'
        '"fake: yes": x\n'
        "weird: <Weird that cannot be shown>\n"
        'person: Person{name: "Ann\\u202e"}\n'
        "point: Point{x: 1, raw: <3 bytes, text>}\n"
        "7: [1, 2]"
    )


def test_what_is_hidden_can_be_shown() -> None:
    payload = {"content": "a" * 3_000 + "needle" + "b" * 3_000, "items": list(range(5_000))}
    short, full = format_arguments(payload), format_arguments(payload, full=True, width=10_000)
    assert "needle" not in short
    assert "[4,006 of 6,006 characters not shown]" in short
    assert len(short) < 6_000
    assert "needle" in full
    assert "4998, 4999" in full.replace("\n  ┆ ", "")


def test_what_is_deep_huge_or_contains_itself_breaks_nothing() -> None:
    cyclic: dict[str, Any] = {"a": 1}
    cyclic["self"] = [cyclic]
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    assert format_arguments({"cyclic": cyclic}) == "cyclic: {a: 1, self: [<itself again>]}"
    assert format_arguments({"deep": deep}, full=True).count("[") == 20_001
    assert "800 of 1,000 arguments not shown" in format_arguments({f"a{n}": n for n in range(1_000)})
    assert len(format_arguments({"wide": [[list(range(300))] * 300] * 300})) < 6_000
    assert format_arguments({"number": 10**5_000}) == "number: <int that cannot be shown>"
