"""The events of a session are its record: nothing that ran is missing in them, and the trace is a fold over them."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import (
    ApprovalDecided,
    ApprovalDecision,
    ApprovalDenied,
    ArgumentError,
    CallClosed,
    CallFrame,
    CallOpened,
    CallRejected,
    CallStarted,
    CallTimeout,
    Context,
    Event,
    Executor,
    Limits,
    RequestEnded,
    RequestStarted,
    Runtime,
    ScopeClosed,
    ScopeOpened,
    Secret,
    TraceEntry,
    UnknownEntryError,
    WorkerEntry,
    entry,
)
from llm_do.core.definition_digest import definition_digest

from ..scripted import calls, says, scripted
from .fold import fold
from .trees import PLANS, World

RULES = {"pay": {"rule": "ask", "reason": "money"}}


def fields(record: TraceEntry) -> dict[str, Any]:
    names = [name for name in TraceEntry.__annotations__ if not name.startswith("_")]
    return {name: list(value) if name == "requests" else value for name in names for value in [getattr(record, name)]}


def of(kind: type[Any], events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("bounded", [False, True])
@given(plan=PLANS)
@settings(max_examples=60)
async def test_the_fold_of_the_events_is_the_trace_and_the_usage(plan: list[Any], bounded: bool) -> None:
    world, events = World(), list[Event]()
    runtime = Runtime(
        world.entries,
        message_callback=events.append,
        approval_callback=lambda name, payload, reason: ApprovalDecision(
            approved=payload["amount"] != 1, arguments={"amount": 9} if payload["amount"] == 2 else None
        ),
        tool_rules=RULES,
        max_records=2 if bounded else None,
    )
    await runtime.call("glue", plan=json.dumps(plan))
    folded = fold(events)
    known = {record.id: fields(record) for record in folded.trace}
    assert len(runtime.trace) == len(known) or bounded
    assert [fields(record) for record in runtime.trace] == [known[record.id] for record in runtime.trace]
    assert folded.meter.by_model == runtime.usage
    assert folded.meter.by_provider == runtime.usage_by_provider
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.session_id for event in events}) == 1
    assert all(event.at > 0 for event in events)
    opened, closed = of(CallOpened, events), of(CallClosed, events)
    assert sorted(event.key for event in opened) == sorted(event.key for event in closed)
    assert len({event.key for event in opened}) == len(opened)


async def test_nothing_is_made_where_nothing_listens() -> None:
    world = World()
    runtime = Runtime(world.entries)
    await runtime.call("worker", json.dumps([["tool", 1]]))
    assert [record.key for record in runtime.trace] == [None, None]


async def test_the_arguments_that_ran_are_in_an_event() -> None:
    """A person writes others in place of those that were asked about."""
    events = list[Event]()

    @entry(requires_approval=True)
    def pay(amount: int) -> int:
        return amount

    def edit(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={"amount": 1})

    assert await Runtime([pay], approval_callback=edit, message_callback=events.append).call("pay", 5) == 1
    (opened,), (decided,), (started,) = of(CallOpened, events), of(ApprovalDecided, events), of(CallStarted, events)
    assert (opened.arguments, decided.arguments, started.arguments) == ({"amount": 5}, {"amount": 1}, {"amount": 1})
    assert opened.key == decided.key == started.key
    assert decided.outcome.edited and len(decided.cases) == 1


async def test_a_call_that_asks_from_within_starts_again_with_the_arguments_that_run() -> None:
    events, begun = list[Event](), list[dict[str, Any]]()

    class Intents(Executor):
        async def begin(self, call: CallFrame) -> None:
            begun.append(dict(call.arguments))

    @entry
    async def pay(ctx: RunContext[Context], amount: int) -> int:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return amount

    def edit(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True, arguments={"amount": 1})

    runtime = Runtime([pay], approval_callback=edit, message_callback=events.append, executor=Intents())
    assert await runtime.call("pay", 5) == 1
    assert [event.arguments for event in of(CallStarted, events)] == begun == [{"amount": 5}, {"amount": 1}]
    (record,) = runtime.trace
    assert fields(fold(events).trace[0]) == fields(record)


async def test_a_call_that_runs_again_has_its_own_arguments_and_not_those_of_the_record() -> None:
    received: list[str] = []

    @entry
    def login(token: Annotated[str, Secret]) -> None: ...

    @entry
    async def send(ctx: RunContext[Context], text: str) -> None:
        received.append(text)
        if not ctx.tool_call_approved:
            await ctx.deps.call("login", "hunter2222")
            assert "hunter2222" not in str(ctx.deps.trace)  # the record is searched again
            raise ApprovalRequired

    runtime = Runtime([login, send], approval_callback=lambda *_: ApprovalDecision(approved=True))
    await runtime.call("send", "it is hunter2222")
    assert received == ["it is hunter2222"] * 2


async def test_a_rule_that_decides_alone_is_in_an_event_with_what_was_judged() -> None:
    events = list[Event]()

    @entry
    def read(path: str) -> str:
        return path

    await Runtime([read], tool_rules={"read": "allow"}, message_callback=events.append).call("read", "/tmp/x")
    (decided,) = of(ApprovalDecided, events)
    assert decided.outcome.by == "rule" and "read" in decided.outcome.rule
    assert [case.facts for case in decided.cases] == [{"path": "/tmp/x"}]


async def test_calls_that_cannot_be_made_are_rejected_with_what_was_written() -> None:
    """By Python, and by a model: after its response, and before the request in which it reads why."""
    events = list[Event]()

    @entry
    def add(a: int, b: int) -> int:
        return a + b

    model = scripted(calls(("add", {"a": "x", "b": 2}), ("subtract", {"a": 1}), ("add", {"a": 1, "b": 2})), says("3"))
    worker = WorkerEntry(name="w", tools=[add], model=model, retries=2)
    runtime = Runtime([worker, add], message_callback=events.append)
    await runtime.call("w", "go")
    rejected = of(CallRejected, events)
    assert [(event.name, event.arguments) for event in rejected] == [
        ("add", {"a": "x", "b": 2}),
        ("subtract", {"a": 1}),
    ]
    assert "valid integer" in rejected[0].error and "Unknown tool" in rejected[1].error
    key = of(CallOpened, events)[0].key
    assert {event.key for event in rejected} == {key} and rejected[0].tool_call_id is not None
    kinds = [event.type for event in events]
    first, second = [number for number, kind in enumerate(kinds) if kind == "request_started"]
    assert first < kinds.index("call_rejected") < second
    assert [record.name for record in runtime.trace] == ["w", "add"]
    del events[:]
    with pytest.raises(ArgumentError):
        await runtime.call("add", 1, c=3)
    with pytest.raises(UnknownEntryError):
        await runtime.call("ad", 1)
    assert [(event.type, event.name, event.arguments, event.key) for event in events] == [
        ("call_rejected", "add", {"0": 1, "c": 3}, ""),
        ("call_rejected", "ad", {"0": "[secret]"}, ""),
    ]


async def test_a_rejected_call_shows_no_secret() -> None:
    events = list[Event]()

    @entry
    def login(user: str, token: Annotated[str, Secret]) -> str:
        return user

    runtime = Runtime([login], message_callback=events.append)
    with pytest.raises(ArgumentError):
        await runtime.call("login", "ann", tokn="hunter22")
    model = scripted(calls(("login", {"user": 1, "token": "hunter22"})), says("no"))
    worker = WorkerEntry(name="w", tools=[login], model=model)
    await Runtime([worker], message_callback=events.append).call("w", "go")
    assert len(of(CallRejected, events)) == 2
    assert "hunter22" not in repr(events)


async def test_a_call_of_an_unknown_entry_shows_no_arguments_of_python() -> None:
    events = list[Event]()

    @entry
    def login(user: str, token: Annotated[str, Secret]) -> str:
        return user

    with pytest.raises(UnknownEntryError, match="Did you mean 'login'"):
        await Runtime([login], message_callback=events.append).call("logn", "ann", token="hunter22")
    assert [event.arguments for event in of(CallRejected, events)] == [{"0": "[secret]", "token": "[secret]"}]


async def test_the_name_of_an_unknown_entry_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "abc-12345")
    events = list[Event]()
    worker = WorkerEntry(name="w", model=scripted(calls(("call-abc-12345", {})), says("no")))
    runtime = Runtime([worker], secrets=["MY_KEY"], message_callback=events.append)
    with pytest.raises(UnknownEntryError):
        await runtime.call("abc-12345")
    await runtime.call("w", "go")
    assert [event.name for event in of(CallRejected, events)] == ["[secret MY_KEY]", "call-[secret MY_KEY]"]


@pytest.mark.parametrize("is_conversation", [False, True])
async def test_the_history_of_a_conversation_shows_no_secret(is_conversation: bool) -> None:
    """It may come from another session, in which a tool was called with one."""
    events = list[Event]()

    @entry
    def login(user: str, pin: Annotated[int, Secret]) -> str:
        return user

    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("log in")]),
        calls(("login", {"user": "ann", "pin": 73915})),
        ModelRequest(parts=[ToolReturnPart("login", "ann")]),
        says("done"),
    ]
    worker = WorkerEntry(name="w", tools=[login], model=scripted(says("hello")))
    runtime = Runtime([worker], message_callback=events.append)
    async with worker.start(runtime, message_history=history, is_conversation=is_conversation) as scope:
        await scope.run_turn("again")
    assert [event.type for event in events].count("scope_opened") == is_conversation
    assert "73915" not in repr(events) and "'ann'" in repr(events)


async def test_requests_have_their_number_what_is_new_and_what_changed() -> None:
    events = list[Event]()

    @entry
    def add(a: int, b: int) -> int:
        return a + b

    step = calls(("add", {"a": 1, "b": 2}))
    worker = WorkerEntry(
        name="w",
        tools=[add],
        model=scripted(step, step, says("3")),
        model_settings={"temperature": 0.5, "extra_headers": {"Authorization": "Bearer hunter22"}},
    )
    async with worker.start(Runtime([worker], message_callback=events.append)) as scope:
        await scope.run_turn("go")
        await scope.run_turn("again")
    started, ended = of(RequestStarted, events), of(RequestEnded, events)
    assert [event.number for event in started] == [1, 2, 3, 1] == [event.number for event in ended]
    assert started[0].setup is not None and [tool.name for tool in started[0].setup.tools] == ["add"]
    assert started[0].setup.settings == {"temperature": 0.5, "extra_headers": {"Authorization": "[secret]"}}
    assert [event.setup for event in started[1:]] == [None] * 3
    assert len({event.setup_digest for event in started}) == 1
    sent = [message.parts for event in started for message in event.messages]
    responses = [event.response.parts for event in ended]
    assert all(response in sent for response in responses[:-1])  # each is new in exactly one request
    assert len(sent) == 7
    assert all(event.usage is not None and event.spent[-1].usage == event.usage for event in ended)


async def test_every_way_to_end_has_its_state() -> None:
    events = list[Event]()

    @entry
    def good() -> None: ...

    @entry
    def bad() -> None:
        raise KeyError("x")

    @entry(requires_approval=True)
    def forbidden() -> None: ...

    runtime = Runtime([good, bad, forbidden], message_callback=events.append)
    await runtime.call("good")
    for name in ("bad", "forbidden"):
        with pytest.raises((KeyError, ApprovalDenied)):
            await runtime.call(name)
    assert [(event.name, event.state, event.error_type) for event in of(CallClosed, events)] == [
        ("good", "ok", None),
        ("bad", "failed", "KeyError"),
        ("forbidden", "refused", "ApprovalDenied"),
    ]
    assert [record.state for record in runtime.trace] == ["ok", "failed", "refused"]


async def test_a_function_that_goes_on_running_after_its_time_is_dropped() -> None:
    release = threading.Event()

    @entry
    def slow() -> None:
        release.wait(10)

    runtime = Runtime([slow], limits=Limits(timeout=0.05))
    try:
        with pytest.raises(CallTimeout):
            await runtime.call("slow")
    finally:
        release.set()
    assert [record.state for record in runtime.trace] == ["dropped"]


async def test_a_conversation_has_its_own_events_and_a_lone_run_has_none() -> None:
    events = list[Event]()
    worker = WorkerEntry(name="w", model=scripted(says("hello")))
    runtime = Runtime([worker], message_callback=events.append)
    async with worker.start(runtime) as scope:
        await scope.run_turn("one")
        await scope.run_turn("two")
    (opened,), (closed,) = of(ScopeOpened, events), of(ScopeClosed, events)
    turns = of(CallOpened, events)
    assert opened.key == closed.key == "/w@" and opened.history == ()
    assert [(turn.key, turn.scope) for turn in turns] == [("/w@.1", "/w@"), ("/w@.2", "/w@")]
    assert (events[0], events[-1]) == (opened, closed)
    again = worker.start(runtime, message_history=scope.messages)
    await again.run_turn("three")
    await again.close()
    resumed = of(ScopeOpened, events)[1]
    assert str(resumed.key).startswith("/w@") and resumed.key != "/w@#1" and len(resumed.history) == 4
    del events[:]
    await runtime.call("w", "alone")
    assert not of(ScopeOpened, events)


async def test_a_request_that_a_journal_does_not_take_is_not_sent_and_not_spent() -> None:
    class Full:
        def on_event(self, event: Event) -> None:
            if event.type == "request_started":
                raise OSError("disk full")

    worker = WorkerEntry(name="w", model=scripted(says("ok")))
    runtime = Runtime([worker], journal=Full(), limits=Limits(max_tokens=100_000))
    with pytest.raises(OSError, match="disk full"):
        await runtime.call("w", "go")
    tokens = runtime.budget.tokens
    assert (tokens.spent, tokens.estimated, tokens.reserved) == (0, 0, 0)


async def test_attempts_that_a_model_moved_on_from_are_in_the_record() -> None:
    def fails(messages: list[ModelMessage], info: AgentInfo) -> Any:
        from pydantic_ai.exceptions import ModelHTTPError

        raise ModelHTTPError(500, "first")

    events = list[Event]()
    model = FallbackModel(FunctionModel(fails, model_name="first"), scripted(says("yes"), name="second"))
    runtime = Runtime([WorkerEntry(name="w", model=model)], message_callback=events.append)
    assert await runtime.call("w", "go") == "yes"
    ended = of(RequestEnded, events)
    assert [(event.number, event.model, event.error is None) for event in ended] == [
        (1, "first", False),
        (2, "second", True),
    ]
    assert fold(events).meter.by_model == runtime.usage


def test_events_are_data_that_cannot_be_changed() -> None:
    event = CallRejected(key="", call_id=None, parent_id=None, name="x", arguments={}, error="no")
    with pytest.raises(AttributeError):
        event.error = "yes"  # type: ignore[misc]
    assert replace(event, error="yes").error == "yes"


def test_the_digest_of_a_definition_tells_what_a_function_does_when_something_fails() -> None:
    """Both have the same instructions and constants. Only the table of their exception handlers differs."""

    def make(*, is_caught: bool) -> Any:
        if is_caught:

            def steps(first: Any, second: Any) -> None:
                try:
                    first()
                    second()
                except ValueError:
                    pass

        else:

            def steps(first: Any, second: Any) -> None:
                try:
                    first()
                except ValueError:
                    pass
                else:
                    second()

        return entry(steps)

    assert definition_digest(make(is_caught=True)) != definition_digest(make(is_caught=False))


def test_the_digest_of_a_definition_is_the_same_in_every_process() -> None:
    """Neither the order of a set, which is a constant of the code, nor the place of a function in memory is in it."""
    code = textwrap.dedent(
        """
        from pydantic_ai import TextOutput
        from llm_do import WorkerEntry, entry
        from llm_do.core.definition_digest import definition_digest

        @entry
        def known(word: str) -> bool:
            return word in {"a", "b", "c", "d", "e"}

        def upper(text: str) -> str:
            return text.upper()

        print([definition_digest(each) for each in (known, WorkerEntry(name="w", output_type=TextOutput(upper)))])
        """
    )

    def digests(seed: str) -> str:
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
        ).stdout

    assert digests("1") == digests("2") != ""
