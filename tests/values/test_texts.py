"""Texts of any value can be written, whatever the value holds and whatever its own code does."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from llm_do import ApprovalDenied, RuleError, Runtime, ToolRule, WorkerEntry, entry
from llm_do.cli.support.reporting import event_line
from llm_do.values.texts import escape_surrogates, json_text

from ..scripted import says, scripted

HALF = "half \ud800"


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unserializable(BaseModel):
    value: int = 1

    @field_serializer("value")
    def refuse(self, value: int) -> int:
        raise RuntimeError("no JSON")


class Loop(BaseModel):
    inner: Any = None


def test_half_of_a_character_is_an_escape_in_json() -> None:
    """In values and in keys; a program that reads it gets the same text."""
    value = {HALF: [HALF, "é"], "plain": 1.5, "nan": float("nan")}
    text = json_text(value)
    assert json.loads(text.encode()) == {HALF: [HALF, "é"], "plain": 1.5, "nan": None}
    assert json_text({"é": 1}) == '{"é":1}'
    assert escape_surrogates(f"é {HALF}") == "é half \\ud800"


def test_json_of_values_whose_code_fails() -> None:
    """What cannot be serialized is its fields, and what cannot be read is its type."""
    loop = Loop()
    loop.inner = [loop]
    value = {"a": Unsayable(), "b": Unserializable(), "c": loop, "d": {1, 2}, "e": b"\xff"}
    made = json.loads(json_text(value, indent=2))
    assert made["a"] == "<Unsayable that cannot be shown>"
    assert made["b"] == {"value": 1}
    assert "Loop" in str(made["c"])
    assert made["d"] == [1, 2]


RULES: dict[str, Any] = {
    "a tool": {HALF: "allow"},
    "a word": {"pay": HALF},
    "a key": {"pay": {"rule": "deny", HALF: 1}},
    "a value": {"pay": {"rule": "deny", "when": {"to": HALF}}},
    "a list": {"pay": {"rule": "deny", "when": {"to": ["bob", HALF]}}},
    "a prefix": {"pay": {"rule": "deny", "when": {"to": {"prefix": HALF}}}},
    "an argument": {"pay": {"rule": "deny", "when": {HALF: 1}}},
    "an exception": {"pay": {"rule": "deny", "except": {"to": HALF}}},
    "a reason": {"pay": {"rule": "ask", "reason": HALF}},
    "a path": {"sandbox.write": {"rule": "deny", "when": {"path": f"./{HALF}"}}},
    "a rule made in Python": {"pay": ToolRule("deny", when={"to": HALF})},
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_half_of_a_character_in_a_rule_is_an_error_that_can_be_printed(rules: dict[str, Any]) -> None:
    """It is said like everything else that a rule cannot mean."""

    @entry
    async def pay(to: str) -> None: ...

    with pytest.raises(RuleError, match="The rules of the session") as caught:
        Runtime([pay], tool_rules=rules)
    assert str(caught.value).encode()


async def test_half_of_a_character_goes_through_a_session() -> None:
    """Arguments, the prompt of a worker, errors and events."""
    lines: list[str] = []
    runtime = Runtime(message_callback=lambda event: lines.append(event_line(event)))

    @entry
    async def echo(value: Any = None) -> Any:
        return value

    await runtime.call(echo, {HALF: HALF})
    worker = WorkerEntry(name="w", model=scripted(says("done")))
    await runtime.call(worker, task={"text": HALF})
    assert [json.loads(line.encode())["type"] for line in lines].count("call_closed") == 2
    prompt: Any = runtime.messages[0].parts[0]
    assert json.loads(prompt.content.encode()) == {"task": {"text": HALF}}


async def test_an_approver_whose_error_or_answer_has_no_text_refuses() -> None:
    """The call is refused, and nothing else breaks."""

    class TextlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail(*_: Any) -> Any:
        raise TextlessError

    @entry(requires_approval=True)
    async def pay() -> None: ...

    for callback in (fail, lambda *_: Unsayable()):
        with pytest.raises(ApprovalDenied):
            await Runtime(approval_callback=callback).call(pay)
