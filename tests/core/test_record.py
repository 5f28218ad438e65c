"""The record holds when a secret looks like a part of it, and when a journal fails."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from pydantic_ai import FunctionToolset, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import AbstractToolset

from llm_do import (
    ApprovalDecided,
    ApprovalDecision,
    ArgumentError,
    CallOpened,
    CallRejected,
    CallTimeout,
    Context,
    Event,
    Executor,
    Limits,
    ModelBehaviorError,
    PathMissing,
    RequestEnded,
    RequestStarted,
    RootConfig,
    Runtime,
    SandboxConfig,
    ScopeOpened,
    Secret,
    ToolEntry,
    WorkerEntry,
    entry,
)
from llm_do.core.request_record import settings_sent
from llm_do.toolsets.delegation import worker_call

from ..scripted import calls, says, scripted
from .fold import fold
from .test_events import fields, of


@entry
def login(token: Annotated[str, Secret]) -> str:
    return "welcome"


@entry
def look(n: int) -> int:
    return n


# -- secrets that look like a part of the record -----------------------------------------------------


@pytest.mark.parametrize("secret", ["1795", "1234", "call", "worker", "tool", "text", "rule", "response", "python"])
async def test_a_secret_that_looks_like_a_part_of_the_record_leaves_it_whole(secret: str) -> None:
    events: list[Event] = []
    asks = calls(("look", {"n": 1}))
    worker = WorkerEntry(name="helper", tools=[look], model=scripted(asks, says("done", input_tokens=91234)))
    runtime = Runtime([login, look, worker], tool_rules={"look": "allow"}, message_callback=events.append)
    await runtime.call("login", secret)
    await runtime.call("helper", "go")
    folded = fold(events)
    assert [fields(record) for record in folded.trace] == [fields(record) for record in runtime.trace]
    assert folded.meter.by_model == runtime.usage
    assert [record.approval.by for record in runtime.trace if record.approval is not None] == ["rule"]
    messages = [message for event in of(RequestStarted, events) for message in event.messages]
    assert ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages)) == messages


async def test_the_key_in_an_event_is_the_one_that_an_executor_gets() -> None:
    events: list[Event] = []
    seen: list[str | None] = []

    class Sees(Executor):
        async def recall(self, call: Any) -> None:
            seen.append(call.key)

    runtime = Runtime([login, look], executor=Sees(), message_callback=events.append)
    await runtime.call("look", 1)
    digest = str(seen[0]).partition(":")[2]
    await runtime.call("login", digest[2:6])
    await runtime.call("look", 1)
    assert [event.key for event in of(CallOpened, events)] == seen


# -- a journal that fails ------------------------------------------------------------------------------


class FailsOnce:
    """A journal that does not take the first event of a type."""

    def __init__(self, kind: str) -> None:
        self._kind: str | None = kind

    def on_event(self, event: Event) -> None:
        if event.type == self._kind:
            self._kind = None
            raise OSError("disk full")


KINDS = ["call_opened", "call_started", "message", "request_started", "request_ended", "call_closed"]


@pytest.mark.parametrize("kind", KINDS)
async def test_sinks_get_each_event_that_a_journal_does_not_take(kind: str) -> None:
    events: list[Event] = []
    worker = WorkerEntry(name="helper", tools=[look], model=scripted(calls(("look", {"n": 1})), says("done")))
    runtime = Runtime([worker], message_callback=events.append, journal=FailsOnce(kind))
    with pytest.raises(OSError, match="disk full"):
        await runtime.call("helper", "go")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    folded = fold(events)
    assert [fields(record) for record in folded.trace] == [fields(record) for record in runtime.trace]
    assert folded.meter.by_model == runtime.usage
    assert runtime.trace[0].state == "failed"


async def test_a_request_that_a_journal_does_not_take_ends_for_sinks() -> None:
    events: list[Event] = []
    worker = WorkerEntry(name="helper", model=scripted(says("done")))
    runtime = Runtime([worker], message_callback=events.append, journal=FailsOnce("request_started"))
    with pytest.raises(OSError, match="disk full"):
        await runtime.call("helper", "go")
    assert [(each.type, each.number) for each in events if isinstance(each, RequestStarted | RequestEnded)] == [
        ("request_started", 1),
        ("request_ended", 1),
    ]
    assert not runtime.usage and runtime.budget.reserved == 0


async def test_a_journal_that_fails_leaves_a_cancellation_one() -> None:
    @entry
    async def wait() -> None:
        await asyncio.sleep(5)

    task = asyncio.create_task(Runtime([wait], journal=FailsOnce("call_closed")).call("wait"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert "It could not be recorded: OSError: disk full" in cancelled.value.__notes__
    with pytest.raises(CallTimeout):
        await Runtime([wait], journal=FailsOnce("call_closed"), limits=Limits(timeout=0.01)).call("wait")


async def test_a_journal_that_fails_leaves_the_cancellation_of_a_request_one() -> None:
    async def wait(messages: Any, info: Any) -> Any:
        await asyncio.sleep(5)

    worker = WorkerEntry(name="helper", model=FunctionModel(wait))
    task = asyncio.create_task(Runtime([worker], journal=FailsOnce("request_ended")).call("helper", "go"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- calls that cannot be made -------------------------------------------------------------------------


def rejected(events: list[Event]) -> list[tuple[str, Any]]:
    return [(event.name, event.arguments) for event in of(CallRejected, events)]


@entry
def fail() -> None:
    raise ValueError("'look' is not what failed")


async def test_calls_that_cannot_be_made_beside_one_that_ends_the_run_are_rejected() -> None:
    events: list[Event] = []
    asks = calls(("look", {"n": "x"}), ("nothing", {"n": 1}), ("fail", {}))
    worker = WorkerEntry(name="helper", tools=[look, fail], model=scripted(asks), retries=2)
    with pytest.raises(ValueError, match="is not what failed"):
        await Runtime([worker], message_callback=events.append).call("helper", "go")
    assert rejected(events) == [("look", {"n": "x"}), ("nothing", {"n": 1})]


async def test_a_call_that_was_never_tried_is_not_rejected() -> None:
    events: list[Event] = []
    first, then = (ToolEntry(Tool(each.tool.function, name=each.name, sequential=True)) for each in (fail, look))
    worker = WorkerEntry(name="helper", tools=[first, then], model=scripted(calls(("fail", {}), ("look", {"n": 1}))))
    with pytest.raises(ValueError, match="is not what failed"):
        await Runtime([worker], message_callback=events.append).call("helper", "go")
    assert rejected(events) == []


async def test_of_two_calls_at_the_last_retry_only_the_wrong_one_is_rejected() -> None:
    events: list[Event] = []
    asks = calls(("look", {"n": 1}), ("look", {"n": "x"}))
    worker = WorkerEntry(name="helper", tools=[look], model=scripted(asks), retries=0)
    with pytest.raises(ModelBehaviorError):
        await Runtime([worker], message_callback=events.append).call("helper", "go")
    assert rejected(events) == [("look", {"n": "x"})]


async def test_a_call_of_a_tool_with_another_name_for_the_model_is_the_one_that_it_asked_for() -> None:
    class Renames(AbstractCapability[Context]):
        def get_wrapper_toolset(self, toolset: AbstractToolset[Context]) -> AbstractToolset[Context]:
            return toolset.prefixed("my")

    @entry
    def again(n: int) -> int:
        raise ModelRetry("once more")

    events: list[Event] = []
    asks = calls(("my_again", {"n": 1}), ("my_look", {"n": 1}))
    worker = WorkerEntry(name="helper", tools=[look, again], capabilities=[Renames()], model=scripted(asks, says("ok")))
    await Runtime([worker], message_callback=events.append).call("helper", "go")
    assert rejected(events) == []
    places = [event.key.rpartition(":")[2] for event in of(CallOpened, events) if event.parent_id is not None]
    assert places == ["1.0", "1.1"]


async def test_a_turn_and_files_that_cannot_be_had_are_rejected(tmp_path: Path) -> None:
    events: list[Event] = []

    class Number(BaseModel):
        n: int

    reader = WorkerEntry(name="reader", model=scripted(says("read")))
    counter = WorkerEntry(name="counter", input_type=Number, model=scripted(says("counted")))
    asks = calls(("reader", {"input": "go", "attachments": ["/etc/passwd"]}))
    box = SandboxConfig(paths={"in": RootConfig(root=str(tmp_path))})
    boss = WorkerEntry(name="boss", tools=[reader], sandbox=box, model=scripted(asks, says("done")))
    runtime = Runtime([reader, counter, boss], message_callback=events.append)
    async with counter.start(runtime) as scope:
        with pytest.raises(ArgumentError):
            await scope.run_turn(n="none")
    with pytest.raises(PathMissing):
        await runtime.call("reader", "go", attachments=["/nothing.txt"])
    await runtime.call("boss", "go")
    assert rejected(events) == [
        ("counter", {"n": "none"}),
        ("reader", {"0": "go", "attachments": ["/nothing.txt"]}),
        ("reader", {"input": "go", "attachments": ["/etc/passwd"]}),
    ]


# -- secrets in calls that do not fit, and in histories ------------------------------------------------


class Account(BaseModel):
    user: str
    pin: Annotated[int, Secret]


@entry
def enter(user: str, pin: Annotated[int, Secret]) -> str:
    return user


def places(events: list[Event], text: str) -> list[tuple[str, str]]:
    return [(event.type, name) for event in events for name, value in vars(event).items() if text in repr(value)]


@pytest.mark.parametrize("arguments", ['{"user":"ann","pin":73915', '["ann",73915]', {"pin": 73915}, '{"pin":73915}'])
@pytest.mark.parametrize("tool", [enter, "enter"])
async def test_arguments_that_do_not_fit_a_tool_with_secrets_are_in_no_event(tool: Any, arguments: Any) -> None:
    events: list[Event] = []
    asks = ModelResponse(parts=[ToolCallPart("enter", arguments)])
    worker = WorkerEntry(name="helper", tools=[tool], model=scripted(asks, says("no")), retries=2)
    runtime = Runtime([worker, enter], message_callback=events.append)
    await runtime.call("helper", "go")
    assert len(rejected(events)) == 1
    assert places(events, "73915") == []
    assert "73915" not in repr(list(runtime.messages))


async def test_no_history_shows_the_secrets_of_tools_that_are_given_by_name_or_by_a_toolset() -> None:
    def sign_in(user: str, pin: Annotated[int, Secret]) -> str:
        return user

    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("log in")]),
        calls(("enter", {"user": "ann", "pin": 73915}), ("sign_in", {"user": "ann", "pin": 73915})),
        ModelRequest(parts=[ToolReturnPart("enter", "ann", "1"), ToolReturnPart("sign_in", "ann", "2")]),
    ]
    events: list[Event] = []
    worker = WorkerEntry(
        name="helper",
        tools=["enter"],
        toolsets=[lambda ctx: FunctionToolset([Tool(sign_in)])],
        model=scripted(says("hello")),
    )
    runtime = Runtime([worker, enter], message_callback=events.append)
    async with worker.start(runtime, message_history=history) as scope:
        await scope.run_turn("again")
    assert places(events, "73915") == []
    assert '"user"' not in repr(of(ScopeOpened, events)[0].history[1].parts[1].args)


async def test_a_delegation_by_a_json_text_hides_the_secrets_of_the_worker() -> None:
    events: list[Event] = []
    vault = WorkerEntry(name="vault", input_type=Account, model=scripted(says("welcome")))
    asks = calls(("worker_call", {"worker": "vault", "input_data": '{"user": "ann", "pin": 73915}'}))
    model = scripted(asks, says("done"))
    boss = WorkerEntry(name="boss", tools=[worker_call], allow_workers=["vault"], model=model)
    runtime = Runtime([vault, boss], message_callback=events.append, tool_rules={"worker.call": "allow"})
    await runtime.call("boss", "go")
    assert places(events, "73915") == []


async def test_what_was_judged_of_a_call_has_no_secret() -> None:
    events: list[Event] = []
    runtime = Runtime([enter], message_callback=events.append, tool_rules={"enter": "allow"})
    await runtime.call("enter", "ann", 739)
    assert [case.facts for case in of(ApprovalDecided, events)[0].cases] == [{"user": "ann", "pin": "[secret]"}]


def test_names_of_settings_that_are_secret_are_recognised_in_every_spelling() -> None:
    body = {"accessToken": "a", "api_key": "b", "X-API-Key": "c", "monkey": "d", "max_tokens": 5}
    sent = settings_sent(scripted(says("")), {"extra_body": body})["extra_body"]
    assert [name for name, value in sent.items() if value == "[secret]"] == ["accessToken", "api_key", "X-API-Key"]


# -- events stay as they were made ---------------------------------------------------------------------


async def test_what_a_tool_goes_on_writing_to_is_recorded_as_it_was_sent() -> None:
    events: list[Event] = []
    lines: list[str] = []

    @entry
    def begin() -> list[str]:
        lines.append("line 1")
        return lines

    @entry
    def more(items: list[str]) -> str:
        lines.append("line 2")
        items.append("line 3")
        return "written"

    model = scripted(calls(("begin", {})), calls(("more", {"items": []})), says("done"))
    worker = WorkerEntry(name="helper", tools=[begin, more], model=model)
    runtime = Runtime([worker], message_callback=events.append, tool_rules={"more": "allow"})
    await runtime.call("helper", "go")
    lines.append("line 4")
    assert [places([event], "line 1") != [] for event in of(RequestStarted, events)] == [False, True, True]
    assert [places([event], "line 2") != [] for event in of(RequestStarted, events)] == [False, False, True]
    assert of(ApprovalDecided, events)[0].cases[0].facts == {"items": []}
    assert places(events, "line 4") == []


async def test_the_messages_of_a_request_are_those_before_it_up_to_a_number_and_new_ones() -> None:
    events: list[Event] = []
    sent: list[list[ModelMessage]] = []

    def answer(messages: list[ModelMessage], info: Any) -> ModelResponse:
        sent.append(list(messages))
        if len(sent) == 2:
            raise RuntimeError("down")
        return says("an answer")

    worker = WorkerEntry(name="helper", model=FunctionModel(answer))
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("before")]), says("yes")]
    runtime = Runtime([worker], message_callback=events.append)
    async with worker.start(runtime, message_history=history) as scope:
        await scope.run_turn("one")
        with pytest.raises(RuntimeError):
            await scope.run_turn("two")
        await scope.run_turn("three")
    conversation = list(of(ScopeOpened, events)[0].history)
    for event, messages in zip(of(RequestStarted, events), sent, strict=True):
        conversation = [*conversation[: event.messages_from], *event.messages]
        assert conversation == messages
    assert [event.messages_from for event in of(RequestStarted, events)] == [2, 3, 4]


async def test_a_value_that_is_equal_to_itself_only_is_not_recorded_again() -> None:
    events: list[Event] = []

    class Handle:
        pass

    @entry
    def open_it() -> ToolReturn:
        return ToolReturn("opened", metadata=[Handle()])

    model = scripted(calls(("open_it", {})), calls(("open_it", {})), says("done"))
    worker = WorkerEntry(name="helper", tools=[open_it], model=model)
    await Runtime([worker], message_callback=events.append).call("helper", "go")
    assert [len(event.messages) for event in of(RequestStarted, events)] == [1, 2, 2]


async def test_the_history_of_a_lone_run_is_recorded_with_its_request() -> None:
    events: list[Event] = []
    worker = WorkerEntry(name="helper", model=scripted(says("hello")))
    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("before")]), says("yes")]
    runtime = Runtime([worker], message_callback=events.append)
    scope = worker.start(runtime, message_history=history, is_conversation=False)
    await scope.run_turn("again")
    await scope.close()
    assert len(of(RequestStarted, events)[0].messages) == 3


# -- who asked, and how a run was ended ----------------------------------------------------------------


async def test_a_model_asked_for_the_tools_of_its_provider() -> None:
    events: list[Event] = []
    answer = ModelResponse(parts=[NativeToolCallPart("web_search", {"query": "x"}), TextPart("found")])
    worker = WorkerEntry(name="helper", model=scripted(answer))
    await Runtime([worker], message_callback=events.append).call("helper", "go")
    assert [(event.kind, event.asked_by) for event in of(CallOpened, events)] == [
        ("worker", "python"),
        ("native", "model"),
    ]


async def test_an_answer_that_comes_when_the_run_was_ended_is_recorded() -> None:
    events: list[Event] = []

    @entry(requires_approval=True)
    async def pay(amount: int) -> int:
        return amount

    async def decide(name: str, payload: Any, reason: str | None) -> ApprovalDecision:
        await asyncio.sleep(0.01 * payload["amount"])
        return ApprovalDecision(approved=payload["amount"] > 1, end_run=payload["amount"] == 1)

    @entry
    async def pay_both(ctx: RunContext[Context]) -> Any:
        return await asyncio.gather(*(ctx.deps.call("pay", each) for each in (1, 3)), return_exceptions=True)

    runtime = Runtime([pay_both, pay], message_callback=events.append, approval_callback=decide)
    await runtime.call("pay_both")
    outcomes = [event.outcome for event in of(ApprovalDecided, events)]
    assert [(outcome.approved, outcome.by) for outcome in outcomes] == [(False, "callback"), (False, "error")]
    assert outcomes[1].note == "it was approved when the run was ended"
    assert [record.state for record in runtime.trace] == ["ok", "refused", "failed"]
