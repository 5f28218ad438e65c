"""Values that must not be written down are written down nowhere."""

import html
import json
import logging
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, Json, SecretBytes, SecretStr, computed_field, model_validator
from pydantic_ai import ModelRetry, RunContext, Tool, ToolFailed, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from llm_do import (
    FILE_TOOLS,
    ApprovalDecision,
    ApprovalDenied,
    ArgumentError,
    CallClosed,
    Context,
    Event,
    RootConfig,
    Runtime,
    SandboxConfig,
    Secret,
    ToolEntry,
    WorkerEntry,
    WorkerRegistry,
    entry,
    run_worker_async,
)
from llm_do.arguments.signatures import model_parameters
from llm_do.arguments.validation import schema_validator
from llm_do.privacy.histories import SentHistory
from llm_do.privacy.secret_fields import HIDDEN, SecretFields
from llm_do.privacy.secrets import MOST_VALUES, UNREADABLE, Secrets, StreamedText, Values

from ..scripted import calls, says, scripted, tool_results

VALUE = 'pa"ss\nwörd-4711'


class Witness:
    """Everything that anybody gets to see of a session."""

    def __init__(self, *entries: Any, caplog: pytest.LogCaptureFixture, **options: Any) -> None:
        self.events: list[Event] = []
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self._caplog = caplog
        options = {"approval_callback": self._ask, "journal": self, "sinks": [self, _Broken()], **options}
        self.runtime = Runtime(entries, message_callback=self.on_event, **options)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def _ask(self, name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        self.asked.append((name, payload, reason))
        return ApprovalDecision(approved=True, note=f"fine: {payload}")

    def seen(self) -> str:
        runtime = self.runtime
        messages = ModelMessagesTypeAdapter.dump_json(runtime.messages).decode()
        records = [(record.input_data, record.output_data, record.error, record.approval) for record in runtime.trace]
        pickled = pickle.dumps((records, runtime.messages, self.events, self.asked)).decode("utf-8", "replace")
        everything = [str(runtime.trace), records, runtime.messages, messages, self.events, self.asked, pickled]
        return "\n".join([*map(str, everything), *(repr(event) for event in self.events), self._caplog.text])

    def check(self, *values: str) -> str:
        seen = self.seen()
        for value in values or (VALUE,):
            for form in (
                value,
                json.dumps(value)[1:-1],
                json.dumps(value, ensure_ascii=False)[1:-1],
                repr(value)[1:-1],
            ):
                assert form not in seen
        return seen


class _Broken:
    def on_event(self, event: Event) -> None:
        if event.type == "call_closed":
            raise RuntimeError(f"cannot take {event}, or {VALUE}")


@entry
def login(user: str, token: Annotated[str, Secret], pin: Annotated[int, Secret()] = 0) -> str:
    """Log in."""
    return f"{user} is in with {token}{pin or ''}"


async def test_a_marked_argument_is_written_down_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    witness = Witness(login, caplog=caplog)
    output = await witness.runtime.call("login", "ann", VALUE, 987654)
    assert output == f"ann is in with {VALUE}987654"  # what really happens is unchanged
    record = witness.runtime.trace[0]
    assert record.input_data == {"user": "ann", "token": HIDDEN, "pin": HIDDEN}
    assert record.output_data == "ann is in with [secret][secret]"
    assert "The sink" in witness.check(VALUE, "987654")


async def test_pydantics_own_secrets_reach_the_function_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []

    @entry
    def use(key: SecretStr, raw: SecretBytes | None = None, keys: list[SecretStr] | None = None) -> SecretStr:
        got.extend([key, raw, keys])
        return key

    witness = Witness(use, caplog=caplog)
    given = SecretStr(VALUE)
    assert await witness.runtime.call(use, key=given, raw=b"bytes-4711", keys=["other-4711"]) is given
    assert got == [given, SecretBytes(b"bytes-4711"), [SecretStr("other-4711")]]
    assert witness.runtime.trace[0].input_data == {"key": HIDDEN, "raw": HIDDEN, "keys": [HIDDEN]}
    witness.check(VALUE, "bytes-4711", "other-4711")


async def test_errors_that_tell_it_are_recorded_without_it(caplog: pytest.LogCaptureFixture) -> None:
    @entry
    async def fail(token: SecretStr) -> None:
        raise ValueError(f"bad token {token.get_secret_value()}, {[token.get_secret_value()]}")

    witness = Witness(fail, caplog=caplog)
    with pytest.raises(ValueError, match="4711"):  # the error itself is the function's own
        await witness.runtime.call(fail, VALUE)
    assert witness.runtime.trace[0].error == "ValueError: bad token [secret], ['[secret]']"
    witness.check()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_models_call_is_logged_without_it(
    caplog: pytest.LogCaptureFixture, as_json: bool, streamed: bool
) -> None:
    arguments = {"user": "ann", "token": VALUE, "pin": 7}
    call = ToolCallPart("login", json.dumps(arguments) if as_json else arguments)
    wrong = ToolCallPart("login", {**arguments, "user": 5})
    answer = f"It is {json.dumps(VALUE)}."
    model = scripted(ModelResponse(parts=[wrong]), ModelResponse(parts=[call]), says(answer))
    witness = Witness(WorkerEntry(name="boss", tools=[login]), caplog=caplog, model=model, text_deltas=streamed)
    output = await witness.runtime.call("boss", "go")
    assert output.strip() == answer
    seen = witness.check()
    assert seen.count("is in with") > 1
    part = witness.runtime.messages[3].parts[0]
    assert isinstance(part, ToolCallPart)
    assert part.args_as_dict() == {"user": "ann", "token": HIDDEN, "pin": HIDDEN}
    assert isinstance(part.args, str) is (as_json or streamed)


async def test_arguments_that_are_not_json_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    broken = ToolCallPart("login", '{"token": "cut-off-4711')
    model = scripted(ModelResponse(parts=[broken]), says("well"))
    witness = Witness(WorkerEntry(name="boss", tools=[login]), caplog=caplog, model=model)
    await witness.runtime.call("boss", "go")
    assert witness.runtime.messages[1].parts[0].args == HIDDEN  # type: ignore[union-attr]


async def test_tools_of_toolsets_and_of_bare_schemas_are_read_in_the_same_way(caplog: pytest.LogCaptureFixture) -> None:
    def vault(ctx: Context) -> FunctionToolset:
        toolset = FunctionToolset()

        @toolset.tool_plain
        def unlock(code: SecretStr) -> str:
            return f"unlocked with {code.get_secret_value()}"

        return toolset

    async def bare(**arguments: Any) -> str:
        return f"{arguments}"

    properties = {"word": {"type": "string", "format": "password"}, "n": {"type": "integer", "writeOnly": True}}
    tool = Tool.from_schema(bare, "bare", "", {"type": "object", "properties": properties})
    model = scripted(calls(("unlock", {"code": VALUE}), ("bare", {"word": "bare-4711", "n": 5})), says("ok"))
    worker = WorkerEntry(name="boss", tools=[ToolEntry(tool)], toolsets=[vault])
    witness = Witness(worker, caplog=caplog, model=model)
    await witness.runtime.call("boss", "go")
    assert [record.input_data for record in witness.runtime.trace[1:]] == [
        {"code": HIDDEN},
        {"word": HIDDEN, "n": HIDDEN},
    ]
    witness.check(VALUE, "bare-4711")


class Login(BaseModel):
    user: str
    token: Annotated[str, Secret] = Field(alias="apiKey")


class Answer(BaseModel):
    text: str
    raw: bytes


class Job(BaseModel):
    account: Login
    spare: dict[str, SecretStr] = {}
    note: str = ""


@dataclass
class Plain:
    note: str
    key: Annotated[str, Secret]


async def test_fields_of_models_are_found_at_any_depth(caplog: pytest.LogCaptureFixture) -> None:
    @entry
    def run(job: Job, others: list[Login]) -> str:
        return f"{job!r} {others!r} {job.spare['a'].get_secret_value()}"

    @entry
    def lone(login: Login) -> str:
        return login.token

    worker = WorkerEntry(name="worker", input_type=Login, instructions="x")
    plain = WorkerEntry(name="plain", input_type=Plain)
    model = scripted(calls(("lone", {"user": "eve", "apiKey": "lone-4711"})), says("done"))
    witness = Witness(run, lone, worker, plain, WorkerEntry(name="boss", tools=[lone]), caplog=caplog, model=model)
    account = Login(user="ann", apiKey=VALUE)
    job = Job(account=account, spare={"a": SecretStr("spare-4711")})
    await witness.runtime.call(run, job=job, others=[Login(user="bob", apiKey="bobs-4711")])
    await witness.runtime.call("boss", "go")
    await witness.runtime.call(lone, Login(user="eve", apiKey="second-4711"))
    await witness.runtime.call(worker, user="ann", apiKey="alias-4711")
    await witness.runtime.call(plain, note="n", key="plain-4711")
    assert account.token == VALUE
    assert witness.runtime.trace[-2].input_data == {"user": "ann", "token": HIDDEN}
    secret_fields = worker.parameters.secret_fields
    assert secret_fields is not None
    assert [secret_fields.has_secret_in(name) for name in ("user", "token")] == [False, True]
    witness.check(VALUE, "spare-4711", "bobs-4711", "lone-4711", "second-4711", "alias-4711", "plain-4711")


class Query(BaseModel):
    query: str
    pin: Annotated[int, Secret]


def lone_model(login: Login, /) -> str:
    return login.token


def field_of_the_same_name(query: Query) -> str:
    return str(query.pin)


class Refused(Login):
    @model_validator(mode="after")
    def check(self) -> "Refused":
        raise ValueError(f"bad {self.token}")


def refused_model(data: Refused) -> str:
    return data.token


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("is_wrapped", [True, False])
async def test_a_lone_model_is_searched_under_the_name_of_its_parameter(
    caplog: pytest.LogCaptureFixture, is_own: bool, is_wrapped: bool
) -> None:
    digests = []
    for token, pin in (("first-4711", 471147), ("second-4711", 815815)):
        asked: list[tuple[str, dict[str, Any]]] = [
            ("lone_model", {"user": "ann", "apiKey": token}),
            ("field_of_the_same_name", {"query": "all", "pin": pin}),
            ("refused_model", {"user": "ann", "apiKey": f"refused-{token}"}),
        ]
        names = {"lone_model": "login", "field_of_the_same_name": "query", "refused_model": "data"}
        if is_wrapped:
            asked = [(name, {names[name]: arguments}) for name, arguments in asked]
        tools = [Tool(each, requires_approval=True) for each in (lone_model, field_of_the_same_name, refused_model)]
        own = [ToolEntry(each) for each in tools] if is_own else []
        boss = WorkerEntry(name="boss", tools=own, toolsets=[] if is_own else [lambda _, t=tools: FunctionToolset(t)])
        witness = Witness(boss, caplog=caplog, model=scripted(*(calls(each) for each in asked), says("ok")))
        await witness.runtime.call("boss", "go")
        witness.check(token, str(pin))
        assert len(witness.asked) == 2
        assert "bad [secret]" in witness.seen()
        digests.append([event.key for event in witness.events if event.type == "call_opened"])
    assert digests[0] == digests[1]


async def test_an_entry_of_your_own_is_read_too(caplog: pytest.LogCaptureFixture) -> None:
    class Own:
        name = "own"
        kind = "tool"
        requires_approval = True
        model = None
        input_type = Login

        async def call(self, input_data: Any, ctx: Context, run_ctx: RunContext[Context]) -> str:
            return str(input_data["token"])

    witness = Witness(Own(), caplog=caplog)
    assert await witness.runtime.call("own", user="ann", apiKey=VALUE) == VALUE
    assert witness.asked[0][1] == {"user": "ann", "token": HIDDEN}
    witness.check()


async def test_whoever_is_asked_does_not_see_it(caplog: pytest.LogCaptureFixture) -> None:
    @entry(requires_approval=True)
    async def send(to: str, token: SecretStr) -> str:
        return f"sent {token.get_secret_value()}"

    @entry
    async def asks(ctx: RunContext[Context], token: Annotated[str, Secret]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return token

    witness = Witness(send, asks, caplog=caplog)
    assert await witness.runtime.call(send, f"me, not {VALUE}", VALUE) == f"sent {VALUE}"
    assert await witness.runtime.call(asks, "asked-4711") == "asked-4711"
    assert [payload for _, payload, _ in witness.asked] == [
        {"to": "me, not [secret]", "token": HIDDEN},
        {"token": HIDDEN},
    ]
    witness.check(VALUE, "asked-4711")


async def test_whoever_edits_the_arguments_leaves_it_alone_or_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    got: list[dict[str, Any]] = []
    edits: list[dict[str, Any]] = []

    @entry(requires_approval=True)
    async def send(to: str, token: Annotated[str, Secret]) -> str:
        got.append({"to": to, "token": token})
        return "sent"

    def edit(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={**payload, **edits.pop(0)})

    runtime = Runtime([send], approval_callback=edit, secrets=["MY_TOKEN"])
    edits += [{"to": "you"}, {"token": "other-4711"}, {"to": "you and [secret MY_TOKEN]"}]
    await runtime.call(send, f"me {VALUE}", "token-4711")
    await runtime.call(send, f"me {VALUE}", "token-4711")
    with pytest.raises(ApprovalDenied, match="'to' has a secret that is not shown"):
        await runtime.call(send, f"me {VALUE}", "token-4711")
    assert got == [{"to": "you", "token": "token-4711"}, {"to": f"me {VALUE}", "token": "other-4711"}]
    assert runtime.trace[0].input_data == {"to": "you", "token": HIDDEN}
    assert "4711" not in str(runtime.trace)


async def test_what_was_written_before_it_was_known_is_gone_over(caplog: pytest.LogCaptureFixture) -> None:
    @entry
    async def outer(ctx: RunContext[Context], text: str) -> str:
        await ctx.deps.call(login, "ann", text)
        return "ok"

    runtime = Runtime(
        [outer, WorkerEntry(name="boss", tools=[login])],
        model=scripted(calls(("login", {"user": "a", "token": VALUE})), says("ok")),
    )
    await runtime.call("outer", VALUE)
    await runtime.call("boss", f"The token is {VALUE}.")
    assert VALUE not in str(runtime.messages)
    assert repr(VALUE)[1:-1] not in str(runtime.trace)
    assert runtime.trace[0].input_data == {"text": HIDDEN}


async def test_the_environment(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("SHORT", "abc")
    sent: list[str] = []

    def outputs() -> list[Callable[[], Any]]:
        def refuse() -> Any:
            raise ToolFailed(f"no: {VALUE}")

        def again() -> Any:
            raise ModelRetry(f"again: {VALUE}")

        return [
            lambda: f"env: {VALUE}",
            lambda: ToolReturn(return_value=[VALUE], content=f"see {VALUE}", metadata={"m": VALUE}),
            lambda: Answer(text=VALUE, raw=VALUE.encode()),
            lambda: {VALUE: (VALUE, {"deep": json.dumps({"x": VALUE})})},
            refuse,
            again,
            lambda: "abc",
            lambda: "abcdef",
        ]

    todo = outputs()

    @entry
    async def env() -> Any:
        return todo.pop(0)()

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(str(messages))
        return calls(("env", {})) if todo else says(f"{tool_results(messages)}")

    worker = WorkerEntry(name="boss", tools=[env], retries=3)
    options = {"secrets": ["MY_TOKEN", "EMPTY", "UNSET", "SHORT"], "model": scripted(step)}
    witness = Witness(worker, caplog=caplog, **options)
    output = await witness.runtime.call("boss", "go")
    assert not todo
    for form in (VALUE, json.dumps(VALUE)[1:-1], repr(VALUE)[1:-1]):
        assert form not in sent[-1]
    assert "[secret MY_TOKEN]" in sent[-1]
    assert "'abcdef'" in output
    assert "'[secret SHORT]'" in output
    witness.check()


async def test_python_gets_what_a_function_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)

    @entry
    def env() -> str:
        return VALUE

    runtime = Runtime([env], secrets=["MY_TOKEN"])
    assert await runtime.call(env) == VALUE
    assert str(runtime.trace[0].output_data) == "[secret MY_TOKEN]"
    with pytest.raises(TypeError, match="list of names"):
        Runtime(secrets="MY_TOKEN")


async def test_a_project_names_them_in_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    (tmp_path / "workers").mkdir()
    (tmp_path / "llm-do.toml").write_text('secrets = ["MY_TOKEN"]\n')
    (tmp_path / "tools.py").write_text("import os\n\ndef env() -> str:\n    return os.environ['MY_TOKEN']\n")
    (tmp_path / "workers/boss.yaml").write_text("name: boss\ninstructions: Go.\n")
    events: list[Event] = []
    result = await run_worker_async(
        registry=WorkerRegistry(tmp_path),
        worker="boss",
        input_data=f"Use {VALUE}.",
        cli_model=scripted(lambda messages, info: says("said")),
        message_callback=events.append,
    )
    for seen in (str(result.messages), str(events), str(result.trace)):
        assert repr(VALUE)[1:-1] not in seen
        assert VALUE not in seen
    assert "[secret MY_TOKEN]" in str(result.messages)


SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string", "format": "password", "maxLength": 5}, "n": {"type": "integer"}},
    "required": ["token"],
}


def test_errors_about_arguments_do_not_quote_them(caplog: pytest.LogCaptureFixture) -> None:
    @entry
    def strict(token: Annotated[int, Secret], n: int = 0) -> None: ...

    worker = WorkerEntry(name="worker", input_type=Login)
    inline = WorkerEntry(name="inline", input_type=SCHEMA)
    assert inline.parameters.secret_fields is not None
    assert [inline.parameters.secret_fields.has_secret_in(name) for name in ("token", "n")] == [True, False]
    runtime = Runtime([strict, worker, inline])
    cases: list[tuple[Any, dict[str, Any]]] = [
        (strict, {"token": VALUE, "n": VALUE}),
        (worker, {"user": "a", "token": ["list-4711"]}),
        (worker, {"user": "a", "apiKey": {"list-4711": "list-4711"}}),
        (inline, {"token": "list-4711", "n": 1}),
    ]
    for target, arguments in cases:
        with pytest.raises(ArgumentError) as caught:
            runtime.call_sync(target, **arguments)
        assert "4711" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    with pytest.raises(ArgumentError, match="'n': Input should be a valid integer.*got 'x'"):
        runtime.call_sync(strict, 5, "x")


def test_without_secrets_nothing_is_looked_for() -> None:
    @entry
    def plain(text: str, data: dict[str, Any] | None = None) -> str:
        return text

    assert plain.secret_fields is None
    assert plain.parameters.secret_fields is None
    secrets = Secrets(["UNSET"], {})
    assert not secrets.active
    value = {"a": [object()]}
    assert secrets.redact(value) is value
    runtime = Runtime([plain])
    runtime.call_sync(plain, "x")
    assert not runtime.recorder.secrets.active


def test_what_has_no_secret_stays_the_same_object() -> None:
    values = Values()
    values.add("hunter22")
    clean = [{"a": (1, None)}, Login(user="a", apiKey="b"), Plain("a", "b"), b"x", {1, 2}, object(), VALUE]
    assert values.redact(clean) is clean
    frozen = Plain("hunter22", "x")
    assert values.redact([frozen]) == [Plain(HIDDEN, "x")]
    assert frozen.note == "hunter22"


def test_what_holds_a_text_in_another_form_is_searched() -> None:
    class Level(Enum):
        LOW = "low"
        KEY = "the key is hunter22"
        KEYS = ("hunter22",)

    values = Values()
    values.add("hunter22")
    released = memoryview(b"hunter22")
    released.release()
    held = [Level.LOW, Level.KEY, Level.KEYS, memoryview(b"x hunter22"), released]
    assert values.redact(held) == [Level.LOW, "the key is [secret]", (HIDDEN,), b"x [secret]", UNREADABLE]
    clean = [Level.LOW, memoryview(b"low")]
    assert values.redact(clean) is clean


def test_what_cannot_be_searched_is_not_written_down() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    values = Values()
    values.add("hunter22")
    assert "not shown" in values.redact(Hostile())
    cyclic: list[Any] = ["hunter22"]
    cyclic.append(cyclic)
    assert values.redact(cyclic) == [HIDDEN, "[the same again]"]
    deep: Any = "hunter22"
    for _ in range(100_000):
        deep = [deep]
    assert "not shown" in str(values.redact(deep))
    assert values.redact(10**5000) == 10**5000


@given(st.text(min_size=4).filter(str.strip), st.text(), st.text())
def test_a_value_is_found_in_any_text(value: str, before: str, after: str) -> None:
    values = Values()
    values.add(value, "█")
    for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]):
        shown = values.text(before + form + after)
        assert form not in shown.replace("█", "\n█\n") or form in before + "\n" + after or "█" in form


JSON = st.recursive(
    st.none() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner)
)


@given(JSON)
def test_any_schema_can_be_read(schema: Any) -> None:
    for key in ("properties", "anyOf", "items", "$ref", "additionalProperties", "format"):
        SecretFields.of({key: schema, "type": "object"})


def test_a_schema_that_refers_to_itself_ends() -> None:
    class Node(BaseModel):
        key: SecretStr
        next: "Node | None" = None

    secret_fields = model_parameters("node", Node).secret_fields
    assert secret_fields is not None
    shown, found = secret_fields.split({"key": "a", "next": {"key": "b", "next": None}})
    assert shown == {"key": HIDDEN, "next": {"key": HIDDEN, "next": None}}
    assert found == ["a", "b"]


def test_it_is_bounded_and_takes_linear_time() -> None:
    secrets = Secrets(["KEEP"], {"KEEP": "keep-4711"})
    secrets.learn(f"value-{number:06}" for number in range(MOST_VALUES + 50))
    assert secrets.redact(f"keep-4711 value-{MOST_VALUES:06}") == "[secret KEEP] [secret]"
    assert secrets.redact("value-000000") == "value-000000"
    few = Secrets(["A"], {"A": "hunter22hunter22"})
    few.learn(f"{number:032x}" for number in range(20))
    # Work that grew with the square of these would not end before the test is ended.
    assert few.redact("some text and hunter22hunter22 " * 40_000) == "some text and [secret A] " * 40_000


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    runtime = Runtime([login], sinks=[_Broken()])
    runtime.call_sync("login", "ann", VALUE)
    assert "The sink" in caplog.text
    assert VALUE not in caplog.text


# -- prompts, and workers that are called with other workers' words ------------------------------------


class Account(BaseModel):
    user: str
    password: Annotated[str, Secret]


async def test_the_prompt_of_a_worker_has_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is not told what is marked. The worker's tools find it where it always was."""
    seen: list[str] = []
    got: list[str] = []
    monkeypatch.setenv("SOME_TOKEN", "tok-123456")

    @entry
    async def log_in(ctx: RunContext[Context]) -> str:
        worker = ctx.deps.frame.worker
        assert worker is not None
        got.append(worker.arguments["password"])
        return "in"

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(str(messages))
        return calls(("log_in", {})) if len(seen) == 1 else says("done")

    worker = WorkerEntry(name="w", input_type=Account, tools=[log_in], model=scripted(look))
    witness = Witness(worker, caplog=caplog, secrets=["SOME_TOKEN"])
    await witness.runtime.call("w", {"user": "me with tok-123456", "password": VALUE})
    assert got == [VALUE]
    assert "pa" not in seen[0].replace("password", "").replace("part", "").replace("timestamp", "")
    assert "tok-123456" not in seen[0]


async def test_a_delegation_hides_what_the_other_worker_marks(caplog: pytest.LogCaptureFixture) -> None:
    from llm_do.toolsets.delegation import worker_call

    target = WorkerEntry(name="target", input_type=Account, model=scripted(says("in")))
    given = {"worker": "target", "input_data": {"user": "me", "password": VALUE}}
    boss = WorkerEntry(
        name="boss",
        tools=[worker_call],
        allow_workers=["target"],
        tool_rules={"worker.call": "ask"},
        model=scripted(calls(("worker_call", given)), says("done")),
    )
    witness = Witness(boss, target, caplog=caplog)
    assert await witness.runtime.call("boss", "go") == "done"
    assert len(witness.asked) == 1
    for event in witness.events:
        payload = replace(event, at=0, **({"duration": 0, "waited": 0} if isinstance(event, CallClosed) else {}))
        assert VALUE not in repr(payload) and "4711" not in repr(payload)
    assert "4711" not in repr(witness.asked)


# -- behind escapes ----------------------------------------------------------------------------------------------

HARD = "ab+c/d=e?f&g h%é\"'\\<z😀"
"""A key with every character that some language escapes."""


def _written(key: str) -> list[str]:
    """A key as URLs, JSON, Python and HTML have it."""
    forms = [
        quote(key),
        quote(key, safe=""),
        quote_plus(key),
        quote_plus(key, safe="/"),
        "".join(f"%{byte:02X}" for byte in key.encode()),
        quote(quote(key)),
        quote(quote_plus(key)),
        json.dumps(key)[1:-1],
        json.dumps(key).replace("/", "\\/")[1:-1],
        json.dumps(key, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(key))[3:-3],
        "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in key),
        repr(key)[1:-1],
        html.escape(key),
        "".join(f"&#{ord(char)};" for char in key),
        "".join(f"&#x{ord(char):x};" for char in key),
        quote(json.dumps(key)[1:-1], safe=""),
    ]
    return [*forms, *(re.sub("%..", lambda found: found[0].lower(), form) for form in forms)]


@pytest.mark.parametrize("key", ["sk+abc/def==", HARD, "four plain words here"])
def test_a_secret_is_found_in_every_way_to_write_it(key: str) -> None:
    """With upper and lower case, all or some characters escaped, and once or twice; what stands around it stays."""
    secrets = Secrets()
    secrets.learn([key])
    for written in _written(key):
        for before, after in [("", ""), ("https://x/?k=", "&b=1"), ("x%20y ", "%20z\\n"), ("a=1% ", " 100%")]:
            assert secrets.redact(f"{before}{written}{after}") == f"{before}[secret]{after}"
        assert secrets.redact(f"k={written};".encode()) == b"k=[secret];"


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_secret_behind_escapes_is_found_in_a_stream(size: int) -> None:
    """No piece of it is told before it is known that it is not a secret."""
    secrets = Secrets()
    secrets.learn([HARD])
    for written in _written(HARD):
        stream, text = StreamedText(secrets), f"It is {written} and 100% sure."
        told = [stream.add(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join([*told, stream.rest()]) == "It is [secret] and 100% sure."


@given(st.text(alphabet="ab+ /%25u0\\&;#x", min_size=4, max_size=12), st.text(alphabet="ab+%25\\u&;#", max_size=8))
def test_texts_with_escapes_lose_nothing_but_the_secret(key: str, around: str) -> None:
    """Whatever a secret is made of, it is found as it is, and nothing is left of it."""
    secrets = Secrets()
    secrets.learn([key])
    assume(len(key.strip()) >= 4)
    assert key not in secrets.redact(f"{around}{key}{around}")
    assert secrets.redact("nothing of it: 100% \\n &amp;") == "nothing of it: 100% \\n &amp;"


async def test_every_session_of_a_project_keeps_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Runtime(registry)` takes `secrets` from `llm-do.toml`, and those of the program are added."""
    monkeypatch.setenv("MY_TOKEN", VALUE)
    monkeypatch.setenv("OTHER_TOKEN", "other-4711")
    (tmp_path / "llm-do.toml").write_text('secrets = ["MY_TOKEN"]\n')
    for options in ({}, {"secrets": ["OTHER_TOKEN"]}):
        runtime = Runtime(WorkerRegistry(tmp_path), **options)
        await runtime.call(WorkerEntry(name="w", model=scripted(says(f"{VALUE} other-4711"))), VALUE)
        record = runtime.trace[0]
        assert record.input_data == {"input": "[secret MY_TOKEN]"}
        assert record.output_data == f"[secret MY_TOKEN] {'[secret OTHER_TOKEN]' if options else 'other-4711'}"


def test_a_text_that_repeats_an_escaped_secret_is_searched_once() -> None:
    """A server that knows a value can send it any number of times: each time costs the same."""
    hidden = Secrets(["KEY"], {"KEY": "sk+Ab/9%zQ"})
    assert hidden.redact("sk%2BAb%2F9%25zQ " * 40_000) == "[secret KEY] " * 40_000


def test_marks_are_found_in_a_schema_that_refers_to_itself_many_times() -> None:
    """A server that writes such a schema would stop everything else."""
    again = {"$ref": "#/$defs/a"}
    part = {"anyOf": [again] * 300, "patternProperties": {f"p{n}": dict(again) for n in range(40_000)}}
    schema = {"$defs": {"a": part}, "properties": {"x": again, "key": {"writeOnly": True}}}
    secret_fields = SecretFields(schema)
    assert [secret_fields.has_secret_in(name) for name in ("x", "key")] == [False, True]


@pytest.mark.parametrize("size", [1, 5, 50])
@pytest.mark.parametrize(
    "escape",
    [
        lambda key: "".join(f"\\u{ord(char):04x}" for each in key for char in f"&#{ord(each)};"),
        lambda key: "".join(f"%{ord(char):02X}" for each in key for char in f"&#{ord(each)};"),
        lambda key: json.dumps("".join(f"\\U{ord(char):08x}" for char in key)),
    ],
    ids=["html in json", "html in a url", "python in json"],
)
def test_a_streamed_text_hides_what_is_behind_two_escapes(escape: Callable[[str], str], size: int) -> None:
    """Each character may take more than thirty of the text, and comes in pieces."""
    secrets = Secrets(["KEY"], {"KEY": "sk+Ab/9zQ=x7"})
    text = f"start {escape('sk+Ab/9zQ=x7')} tail {'y' * 300}"
    stream = StreamedText(secrets)
    told = "".join(stream.add(text[at : at + size]) for at in range(0, len(text), size)) + stream.rest()
    assert told.startswith("start ") and told.endswith("y")
    assert "[secret KEY]" in told


async def test_a_turn_searches_what_is_new_in_it_and_not_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is searched for turn 20 is as much as for turn 5. A secret of an early turn stays hidden in a late one."""
    monkeypatch.setenv("MY_TOKEN", VALUE)

    @entry
    async def fetch() -> str:
        return f"page {VALUE}"

    sent: list[str] = []

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent[:] = map(str, messages)
        return says("ok") if isinstance(messages[-1].parts[0], ToolReturnPart) else calls(("fetch", {}))

    runtime = Runtime(model=FunctionModel(step), secrets=["MY_TOKEN"])
    configured = runtime.recorder.secrets.configured
    assert configured is not None
    searched, search = list[int](), configured.text
    monkeypatch.setattr(configured, "text", lambda text: searched.append(len(text)) or search(text))
    counts = []
    async with WorkerEntry(name="w", tools=[fetch]).start(runtime) as scope:
        for _ in range(20):
            searched.clear()
            await scope.run_turn("more")
            counts.append(len(searched))
    assert counts[4] == counts[19]
    assert VALUE not in "".join(sent)
    assert "".join(sent).count("[secret MY_TOKEN]") == 20


async def test_a_secret_that_comes_into_a_result_later_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool may return a list that it goes on writing to. What was searched is sent as it was then."""
    monkeypatch.setenv("MY_TOKEN", VALUE)
    log: list[str] = []

    @entry
    async def read_log() -> list[str]:
        log.append(VALUE if len(log) == 2 else f"line {len(log)}")
        return log

    sent: list[str] = []

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(str(messages))
        return says("ok") if len(log) == 3 else calls(("read_log", {}))

    runtime = Runtime(model=FunctionModel(step), secrets=["MY_TOKEN"])
    await runtime.call(WorkerEntry(name="w", tools=[read_log]), "go")
    assert VALUE not in "".join(sent)
    assert "content=['line 0']" in sent[-1] and "content=['line 0', 'line 1', '[secret MY_TOKEN]']" in sent[-1]


async def test_a_secret_that_comes_into_what_a_tool_tells_as_a_prompt_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", VALUE)
    notes, sent = ["fine"], list[str]()

    @entry
    async def look() -> ToolReturn:
        notes.extend([VALUE] * len(sent[1:]))
        return ToolReturn("ok", content=notes)

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(str(messages))
        return says("ok") if len(sent) == 3 else calls(("look", {}))

    runtime = Runtime(model=FunctionModel(step), secrets=["MY_TOKEN"])
    await runtime.call(WorkerEntry(name="w", tools=[look]), "go")
    assert repr(VALUE)[1:-1] not in "".join(sent)
    assert "content=['fine', '[secret MY_TOKEN]']" in sent[-1]


@pytest.mark.parametrize("is_told", ["before", "after"])
async def test_a_secret_that_an_object_makes_of_itself_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, is_told: str
) -> None:
    """A field that is computed is no field that could be searched, and may be another one with the next request."""
    monkeypatch.setenv("MY_TOKEN", VALUE)
    address = [f"db:{VALUE}@host" if is_told == "before" else "db:none@host"]

    class Database(BaseModel):
        @computed_field  # type: ignore[prop-decorator]
        @property
        def address(self) -> str:
            return address[0]

    @entry
    async def find() -> list[Database]:
        return [Database()]

    sent: list[str] = []

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        sent.append("".join(part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)))
        if len(messages) == 5:
            return says("ok")
        address[0] = address[0] if len(messages) == 1 else f"db:{VALUE}@host"
        return calls(("find", {}))

    runtime = Runtime(model=FunctionModel(step), secrets=["MY_TOKEN"])
    await runtime.call(WorkerEntry(name="w", tools=[find]), "go")
    assert VALUE not in "".join(sent)
    assert '[{"address":"db:[secret MY_TOKEN]@host"}]' in sent[-1]


def test_a_part_without_content_and_one_that_is_no_data_are_sent() -> None:
    """Each is searched with every request."""

    class Stubborn:
        def __init__(self, lines: list[str]) -> None:
            self.lines = lines

        def __repr__(self) -> str:
            return str(self.lines)

    secrets, history = Values(), SentHistory()
    secrets.add(VALUE)
    stubborn = Stubborn(["a"])
    result = ToolReturnPart(tool_name="f", content=stubborn, tool_call_id="1")
    delta = ToolAvailabilityDeltaPart(tools_added=[])
    request = ModelRequest(parts=[result, delta])
    assert history.without_secrets([request], secrets) == [request]
    stubborn.lines.append(VALUE)
    assert VALUE not in str(history.without_secrets([request], secrets))


async def test_a_message_that_is_changed_in_place_is_searched_again() -> None:
    """A hook may write into what was sent before: another content, another part, other instructions."""
    secrets, history = Values(), SentHistory()
    secrets.add(VALUE)
    result = ToolReturnPart(tool_name="f", content="a", tool_call_id="1")
    request = ModelRequest(parts=[result])
    assert history.without_secrets([request], secrets) == [request]
    result.content = f"b {VALUE}"
    assert "content='b [secret]'" in str(history.without_secrets([request], secrets))
    request.parts = [*request.parts, ToolReturnPart(tool_name="f", content=VALUE, tool_call_id="2")]
    assert "content='[secret]'" in str(history.without_secrets([request], secrets))
    request.instructions = "Be short."
    (sent,) = history.without_secrets([request], secrets)
    assert isinstance(sent, ModelRequest) and sent.instructions == "Be short."
    assert VALUE not in str(sent)


LONG_KEY = "Zq8Rk2Vn7Wm4Xt1Yb6Uc3Jd9"


class Sized(BaseModel):
    size: int


@entry
def parse(text: str) -> str:
    return str(Sized.model_validate({"size": text}).size)


@entry
async def count(ctx: RunContext[Context], text: str) -> Any:
    return await ctx.deps.call(add, text)


@entry
def add(size: int) -> int:
    return size


@entry
def choose(text: str) -> None:
    raise ValueError(schema_validator({"properties": {"size": {"type": "integer"}}})({"size": text}))


_QUOTING: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "a text to replace": lambda text: ("edit_file", {"path": "d/a.txt", "old": text, "new": "y"}),
    "a path": lambda text: ("read_file", {"path": f"d/{text}"}),
    "a root": lambda text: ("read_file", {"path": text}),
    "a pattern": lambda text: ("list_files", {"path": "d", "pattern": f"../{text}"}),
    "an argument": lambda text: ("count", {"text": text}),
    "an argument with a JSON Schema": lambda text: ("choose", {"text": text}),
    "a value that pydantic refuses": lambda text: ("parse", {"text": text}),
}


@pytest.mark.parametrize("quoting", _QUOTING.values(), ids=_QUOTING)
async def test_an_error_quotes_a_text_whole_or_not_at_all(
    quoting: Callable[[str], tuple[str, dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Half of a secret would not be found any more, wherever in a long text it stands."""
    monkeypatch.setenv("LONG_KEY", LONG_KEY)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("x")
    sandbox = SandboxConfig(paths={"d": RootConfig(root="d", mode="rw")})
    texts = ["-" * before + LONG_KEY + "-" * after for before in (15, 30, 45, 80, 190, 485) for after in (15, 150)]
    turns = [quoting(text) for text in texts]
    worker = WorkerEntry(name="w", sandbox=sandbox, base=tmp_path, tools=[*FILE_TOOLS, parse, count, choose])
    witness = Witness(worker, caplog=caplog, model=scripted(*map(calls, turns), says("done")), secrets=["LONG_KEY"])
    for _ in turns:
        with suppress(Exception):
            await witness.runtime.call("w", "go")
    seen = witness.seen()
    failed = [record for record in witness.runtime.trace if record.name == turns[0][0] and record.error]
    assert len(failed) == len(turns)
    assert [at for at in range(len(LONG_KEY) - 4) if LONG_KEY[at : at + 5] in seen] == []


# -- calls that do not fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("arguments", [{"user": "ann", "tokn": VALUE}, {"login": {"user": "ann", "token": VALUE}}])
async def test_a_secret_under_a_wrong_name_is_not_logged(
    arguments: dict[str, Any], is_own: bool, as_json: bool
) -> None:
    tool, events = Tool(login.tool.function), list[Event]()
    own = [ToolEntry(tool)] if is_own else []
    boss = WorkerEntry(name="boss", tools=own, toolsets=[] if is_own else [lambda _: FunctionToolset([tool])])
    call = ToolCallPart("login", json.dumps(arguments) if as_json else arguments)
    model = scripted(ModelResponse(parts=[call]), says("ok"))
    runtime = Runtime([boss], model=model, message_callback=events.append)
    await runtime.call("boss", "go")
    assert "4711" not in repr(events) and "4711" not in repr(runtime.messages) and "4711" not in repr(runtime.trace)
    assert "call_rejected" in [event.type for event in events]


async def test_a_value_under_a_wrong_name_is_no_secret_of_the_session() -> None:
    """Else a model could hide a value from the person who is asked about it next."""
    asked: list[dict[str, Any]] = []

    def person(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(payload)
        return ApprovalDecision(approved=True)

    boss = WorkerEntry(name="boss", tools=[ToolEntry(Tool(login.tool.function, requires_approval=True))])
    tried = calls(("login", {"usr": "the administrator", "token": VALUE}))
    mended = calls(("login", {"user": "the administrator", "token": VALUE}))
    runtime = Runtime([boss], model=scripted(tried, mended, says("ok")), approval_callback=person)
    await runtime.call("boss", "go")
    assert [(each["user"], each["token"]) for each in asked] == [("the administrator", HIDDEN)]


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"meta": {"type": ["object", "null"]}}}, {"meta": {"token": "page-2"}}),
        ({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}, {"x-page": "page-2"}),
    ],
)
def test_what_a_schema_allows_is_not_hidden(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    secret = {"token": {"type": "string", "format": "password"}}
    fields = SecretFields.of({**schema, "type": "object", "properties": {**schema.get("properties", {}), **secret}})
    assert fields is not None
    visible, values = fields.split({"token": VALUE, **arguments})
    assert (fields.hide_forbidden(visible), values) == ({"token": HIDDEN, **arguments}, [VALUE])


async def test_secrets_are_found_in_json_and_in_tuples_of_older_schemas() -> None:
    def parse_login(creds: Json[Login]) -> str:
        return creds.user

    text = json.dumps({"user": "ann", "apiKey": VALUE})
    runtime = Runtime([ToolEntry(Tool(parse_login))])
    assert await runtime.call("parse_login", text) == "ann"
    assert VALUE not in repr(runtime.trace[0].input_data)
    unlocking = {"type": "string", "contentSchema": {"type": "array", "items": {"format": "password"}}}
    fields = SecretFields.of({"type": "object", "properties": {"pins": unlocking}})
    assert fields is not None and fields.split({"pins": f'["{VALUE}"]'})[0] == {"pins": HIDDEN}
    pair = {"type": "array", "items": [{"type": "string"}, {"type": "string", "format": "password"}]}
    fields = SecretFields.of({"type": "object", "properties": {"pair": pair}})
    assert fields is not None and fields.split({"pair": ["ann", VALUE]}) == ({"pair": ["ann", HIDDEN]}, [VALUE])
