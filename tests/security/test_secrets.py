"""Attacks on secrets: a configured value reaches no model and no record, however a tool hands it out."""

import json
import logging
from typing import Any

import pytest

from llm_do import ApprovalDecision, Event, Runtime, WorkerRegistry

from .world import Attack, Person, World, call, everything

KEY = 'sk-"very"\\secret/ü-9f2c'
PLAIN = "sk-plain-secret-77aa"

TOOLS = """
import json, logging, os
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote
from pydantic import AfterValidator, BaseModel, SecretStr
from pydantic_ai import BinaryContent, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from llm_do import Context, Secret, ToolEntry, entry

def key():
    return os.environ["MY_KEY"]

@dataclass
class Held:
    value: Any

class Model(BaseModel):
    value: str
    inner: dict[str, Any] = {}

class Loud:
    def __repr__(self):
        return f"<Loud {key()}>"

WAYS = {
    "text": lambda: key(),
    "in_a_sentence": lambda: f"the key is {key()}, keep it",
    "twice": lambda: key() + key(),
    "list": lambda: ["a", [key()]],
    "tuple": lambda: ("a", (key(),)),
    "set": lambda: {key()},
    "dict_value": lambda: {"a": {"b": key()}},
    "dict_key": lambda: {key(): 1},
    "json": lambda: json.dumps({"k": key()}),
    "json_in_json": lambda: json.dumps({"k": json.dumps({"k": key()})}),
    "json_with_unicode": lambda: json.dumps({"k": key()}, ensure_ascii=False),
    "python_literal": lambda: repr({"k": key()}),
    "url": lambda: "https://x/?k=" + quote(key(), safe=""),
    "bytes": lambda: key().encode(),
    "file": lambda: BinaryContent(key().encode(), media_type="text/plain"),
    "name_of_a_file": lambda: BinaryContent(b"x", media_type="text/plain", identifier=key()),
    "model": lambda: Model(value=key(), inner={"x": [key()]}),
    "dataclass": lambda: Held(Held([key()])),
    "object": lambda: Loud(),
    "secret_str": lambda: SecretStr(key()),
    "tool_return": lambda: ToolReturn(return_value=key(), content=key(), metadata={"k": key()}),
    "tool_return_content": lambda: ToolReturn(return_value="x", content=["a", key()]),
    "deep": lambda: deep(),
    "wide": lambda: [key()] * 500,
}

def deep():
    value = key()
    for _ in range(60):
        value = [value]
    return value

@entry
def hand_out(way: str) -> Any:
    return WAYS[way]()

@entry
def retry() -> str:
    raise ModelRetry(f"try with {key()}")

@entry
def fail() -> str:
    raise ToolFailed(f"no luck with {key()}")

@entry
def crash() -> str:
    raise RuntimeError(f"cannot use {key()}")

@entry
def log() -> str:
    return "x"

@entry(requires_approval=True)
def send(what: str, token: Annotated[str, Secret] = "") -> str:
    return what

def _no(value):
    raise ValueError(f"not {key()}")

@entry
def picky(x: Annotated[str, AfterValidator(_no)]) -> str:
    return x

def _check(ctx, x: str) -> None:
    raise ModelRetry(f"not {key()}")

def checked(x: str) -> str:
    return x

checked = ToolEntry(Tool(checked, name="checked", args_validator=_check))
"""
WAYS = [line.split('"')[1] for line in TOOLS.partition("WAYS = {")[2].partition("\n}")[0].splitlines() if '"' in line]


@pytest.fixture(params=[PLAIN, KEY], ids=["plain", "with_quotes"])
def key(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MY_KEY", request.param)
    return str(request.param)


@pytest.fixture
def keeper(world: World) -> World:
    world.write("llm-do.toml", 'secrets = ["MY_KEY"]\n')
    world.write("tools.py", TOOLS)
    world.worker("a", "tools: [hand_out, retry, fail, crash, log, send, picky, checked, b]")
    world.worker("b", "tools: [hand_out, send]")
    return world


def spoken(key: str) -> list[str]:
    """A secret in all ways in which it may be written."""
    once = json.dumps(key)[1:-1]
    return [key, once, json.dumps(key, ensure_ascii=False)[1:-1], json.dumps(once)[1:-1], repr(key)[1:-1]]


def written_down(attack: Attack) -> str:
    """All records of a run that was not ended by an exception."""
    assert attack.result is not None, attack.error
    result = attack.result
    return everything(result.messages) + everything(list(result.trace)) + str(result.trace) + repr(result.trace)


def none_of(key: str, text: str) -> bool:
    return not any(form in text for form in spoken(key))


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_hand_out_a_key_reaches_a_model_or_a_record(keeper: World, key: str, way: str) -> None:
    events: list[Event] = []
    outcome = keeper.attack(call("hand_out", way=way), message_callback=events.append)
    if way == "json_in_json" and key == KEY:
        pytest.skip("encoded twice, which is said not to be found")
    assert none_of(key, " ".join(outcome.sent))
    assert none_of(key, everything(events))
    if outcome.result is not None:
        assert none_of(key, written_down(outcome))


@pytest.mark.parametrize("tool", ["retry", "fail"])
def test_no_word_of_a_tool_to_its_model_has_a_key(keeper: World, key: str, tool: str) -> None:
    events: list[Event] = []
    outcome = keeper.attack(call(tool), message_callback=events.append)
    assert none_of(key, " ".join(outcome.sent))
    assert none_of(key, everything(events))
    assert none_of(key, written_down(outcome))


def test_an_exception_writes_no_key_down(keeper: World, key: str, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []

    def broken(event: Event) -> None:
        events.append(event)
        raise RuntimeError(f"{key} in a sink")

    with caplog.at_level(logging.DEBUG, "llm_do"):
        outcome = keeper.attack(call("crash"), message_callback=broken)
    assert outcome.error is not None
    assert none_of(key, everything(events))
    assert none_of(key, caplog.text)


def test_a_worker_below_hands_no_key_up(keeper: World, key: str) -> None:
    outcome = keeper.attack(call("b", input="go"), b=[call("hand_out", way="in_a_sentence")])
    assert none_of(key, " ".join(outcome.sent))
    assert none_of(key, written_down(outcome))


def test_who_is_asked_sees_no_key_and_no_marked_argument(keeper: World, key: str) -> None:
    person = Person()
    events: list[Event] = []
    outcome = keeper.attack(
        call("send", what=f"<{key}>", token="hunter22-xyz"), callback=person, message_callback=events.append
    )
    assert len(person.asked) == 1
    for text in (everything(person.asked), everything(events), written_down(outcome)):
        assert none_of(key, text)
        assert "hunter22-xyz" not in text


def test_a_note_with_a_key_reaches_no_model_or_record(keeper: World, key: str) -> None:
    events: list[Event] = []
    decision = ApprovalDecision(approved=False, note=f"use {key} next time")
    outcome = keeper.attack(call("send", what="x"), callback=lambda *_: decision, message_callback=events.append)
    for text in (" ".join(outcome.sent), everything(events), written_down(outcome)):
        assert none_of(key, text)


def test_a_file_with_a_key_is_read_without_it(keeper: World, key: str) -> None:
    keeper.write("in/config.json", json.dumps({"k": key}))
    keeper.write("in/config.bin", key)
    keeper.write("in/config.pdf", key)
    keeper.worker("a", "sandbox: {paths: {in: {root: in}}}")
    outcome = keeper.attack(
        call("read_file", path="in/config.json"),
        call("read_file", path="in/config.bin"),
        call("read_file", path="in/config.pdf"),
        call("search_files", text="sk-", pattern="in/**"),
    )
    assert none_of(key, " ".join(outcome.sent))
    assert none_of(key, written_down(outcome))


def test_a_command_that_prints_a_key_prints_none(keeper: World, key: str) -> None:
    keeper.write("in/config.txt", key)
    keeper.worker("a", "toolsets: [shell]\nsandbox: {paths: {in: {root: in}}}")
    steps = [call("shell", command="cat in/config.txt"), call("shell", command="env")]
    outcome = keeper.attack(*steps, callback=Person())
    assert none_of(key, " ".join(outcome.sent))


def test_a_key_in_a_name_is_not_told(keeper: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", PLAIN)
    keeper.write(f"in/{PLAIN}.txt", "x")
    keeper.worker("a", "sandbox: {paths: {in: {root: in}}}")
    outcome = keeper.attack(
        call("list_files", path="in"),
        call("find_files", pattern="in/**"),
        call("search_files", text="x", pattern="in/**"),
        call("read_file", path="in/sk-plain-secret.txt"),
    )
    assert none_of(PLAIN, " ".join(outcome.sent))


def test_a_journal_gets_no_key_and_no_marked_argument(keeper: World, key: str) -> None:
    class Journal:
        def __init__(self) -> None:
            self.events: list[Any] = []

        def on_event(self, event: Event) -> None:
            self.events.append(event)

    journal = Journal()
    registry = WorkerRegistry(keeper.project)
    steps = [call("hand_out", way="in_a_sentence"), call("send", what="x", token="hunter22-xyz")]
    model = keeper.model({"a": steps})
    runtime = Runtime(registry, model=model, approval_callback=Person(), secrets=["MY_KEY"], journal=journal)
    runtime.call_sync("a", "go")
    for text in (everything(journal.events), everything(list(runtime.trace)), everything(runtime.messages)):
        assert none_of(key, text)
        assert "hunter22-xyz" not in text


def test_a_marked_argument_that_is_wrong_is_not_written_down(keeper: World) -> None:
    keeper.write("llm-do.toml", "")
    keeper.write(
        "tools.py",
        "from pydantic import SecretStr\nfrom llm_do import entry\n@entry\n"
        "def login(user: int, token: SecretStr) -> str:\n"
        "    return token.get_secret_value()\n",
    )
    keeper.worker("a", "tools: [login]")
    events: list[Event] = []
    outcome = keeper.attack(
        call("login", user="x", token="hunter22-xyz"),
        call("login", user=1, token="hunter22-xyz"),
        message_callback=events.append,
    )
    assert "hunter22-xyz" not in everything(events)
    assert "hunter22-xyz" not in everything(list(outcome.result.trace) if outcome.result else [])


def test_the_environment_of_the_host_is_not_part_of_any_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNRELATED_TOKEN", PLAIN)
    world.worker("a", "toolsets: [shell]\nsandbox: {paths: {in: {root: in}}}")
    commands = [
        "env",
        "cat /proc/self/environ",
        "printenv UNRELATED_TOKEN",
        "python3 -c 'import os; print(os.environ)'",
    ]
    outcome = world.attack(*(call("shell", command=command) for command in commands), callback=Person())
    assert not outcome.told(PLAIN)


# -- holes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["picky", "checked"])
def test_no_word_of_a_validator_to_a_model_has_a_key(keeper: World, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setenv("MY_KEY", PLAIN)
    outcome = keeper.attack(call(tool, x="y"))
    assert none_of(PLAIN, " ".join(outcome.sent))
