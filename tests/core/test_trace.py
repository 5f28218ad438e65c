"""The trace, the usage and the message log are exact, because they are written when things happen."""

import asyncio
import contextlib
import gc
import logging
import random
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from pydantic import BaseModel, Field
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, FunctionModel
from pydantic_ai.tools import ToolDenied
from pydantic_ai.usage import RequestUsage

from llm_do import (
    AnswerCutOff,
    ApprovalDecision,
    CallClosed,
    Context,
    Event,
    LimitExceeded,
    Limits,
    RequestEnded,
    RequestStarted,
    Runtime,
    TraceEntry,
    WorkerEntry,
    entry,
)
from llm_do.core.trace import BoundedTrace

from ..processes import PATIENCE
from ..scripted import answers, calls, says, scripted, tool_results


@entry
async def double(x: int) -> int:
    await asyncio.sleep(random.random() / 100)
    return x * 2


async def test_twenty_parallel_nested_calls_have_twenty_records_with_the_right_parents() -> None:
    """Whatever the order in which they end."""
    inner = WorkerEntry(name="inner", tools=[double])

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if results := tool_results(messages):
            return says(str(results[0]))
        return calls(("double", {"x": int(messages[0].parts[0].content)}))  # type: ignore[arg-type, union-attr]

    @entry
    async def fan_out(ctx: RunContext[Context]) -> list[str]:
        return await asyncio.gather(*(ctx.deps.call(inner, str(number)) for number in range(20)))

    runtime = Runtime([fan_out], model=scripted(step))
    assert await runtime.call("fan_out") == [str(number * 2) for number in range(20)]
    inner_records = [t for t in runtime.trace if t.name == "inner"]
    assert len(inner_records) == 20
    assert {t.parent_id for t in inner_records} == {1}
    assert {t.depth for t in inner_records} == {1}
    below = {t.parent_id: t for t in runtime.trace if t.name == "double"}
    assert below.keys() == {t.id for t in inner_records}
    for record in inner_records:
        assert below[record.id].input_data == {"x": int(record.input_data["input"])}
        assert record.output_data == str(below[record.id].output_data)
    assert len({t.id for t in runtime.trace}) == 41


async def test_a_record_tells_all_about_a_call() -> None:
    runtime = Runtime(model=scripted(says("hi", input_tokens=3, output_tokens=4, cost=Decimal("0.5")), name="m"))
    await runtime.call(WorkerEntry(name="w"), "hello")
    record = runtime.trace[0]
    assert (record.id, record.parent_id, record.name, record.kind, record.depth) == (1, None, "w", "worker", 0)
    assert (record.input_data, record.output_data, record.error) == ({"input": "hello"}, "hi", None)
    assert (record.model, record.cost, record.approval) == ("m", Decimal("0.5"), None)
    assert record.usage is not None
    assert (record.usage.requests, record.usage.input_tokens, record.usage.output_tokens) == (1, 3, 4)
    assert record.duration is not None
    assert record.duration > 0
    assert record.started_at > 1e9


async def test_records_hold_what_was_passed_not_what_became_of_it() -> None:
    class Basket(BaseModel):
        items: list[str]

    @dataclass
    class Box:
        items: list[str] = field(default_factory=list)

    @entry
    async def spoil(data: Any, basket: Basket, box: Box) -> list[Any]:
        data["items"].append("worm")
        basket.items.append("worm")
        box.items.append("worm")
        return [data]

    runtime = Runtime([spoil])
    output = await runtime.call("spoil", {"items": ["apple"]}, Basket(items=["pear"]), Box())
    output.append("rot")
    record = runtime.trace[0]
    assert record.input_data == {"data": {"items": ["apple"]}, "basket": Basket(items=["pear"]), "box": Box()}
    assert record.output_data == [{"items": ["apple", "worm"]}]


async def test_values_that_cannot_be_copied_stand_for_themselves() -> None:
    @entry
    async def take(thing: Any) -> Any:
        return thing

    loop: list[Any] = []
    loop.append(loop)
    lock = asyncio.Lock()
    runtime = Runtime([take])
    assert await runtime.call("take", lock) is lock
    assert runtime.trace[0].input_data == {"thing": lock}
    assert await runtime.call("take", thing=loop) is loop
    assert runtime.trace[1].input_data["thing"][0] is runtime.trace[1].input_data["thing"]


async def test_the_tree_view() -> None:
    inner_model = scripted(calls(("double", {"x": 2})), says("four"))
    inner = WorkerEntry(name="inner", tools=[double], model=inner_model)
    outer = WorkerEntry(name="outer", tools=[inner, double])
    outer_model = scripted(calls(("inner", {"input": "two"})), calls(("double", {"x": 4})), says("eight"))
    runtime = Runtime(model=outer_model)
    await runtime.call(outer, "start")
    (root,) = runtime.trace.tree()
    assert [child.entry.name for child in root.children] == ["inner", "double"]
    for record in runtime.trace:
        record.duration = 0.001
    assert str(runtime.trace) == snapshot("""\
outer(input='start') [worker, 1 ms] -> 'eight'
├─ inner(input='two') [worker, 1 ms] -> 'four'
│  └─ double(x=2) [tool, 1 ms] -> 4
└─ double(x=4) [tool, 1 ms] -> 8\
""")
    assert isinstance(runtime.trace[0], TraceEntry)
    assert [t.name for t in runtime.trace[1:3]] == ["inner", "double"]
    assert repr(runtime.trace) == "<Trace of 4 calls>"


# -- usage ---------------------------------------------------------------------------------------------


async def test_usage_is_counted_per_model_over_the_whole_tree() -> None:
    small = scripted(says("a", input_tokens=1, output_tokens=2), name="small")
    inner = WorkerEntry(name="inner", model=small)

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if tool_results(messages):
            return says("ok", input_tokens=10, output_tokens=20)
        return calls(*[("inner", {"input": str(number)}) for number in range(5)])

    runtime = Runtime([WorkerEntry(name="outer", tools=[inner])], model=scripted(step, name="big"))
    await runtime.call("outer", "go")
    given = [message.usage for message in runtime.messages if isinstance(message, ModelResponse)]
    assert runtime.usage["small"].requests == 5
    assert (runtime.usage["small"].input_tokens, runtime.usage["small"].output_tokens) == (5, 10)
    assert runtime.usage["big"].requests == 2
    assert sum(usage.total_tokens for usage in runtime.usage.values()) == sum(usage.total_tokens for usage in given)
    own = [t.usage.total_tokens for t in runtime.trace if t.usage is not None]
    assert sum(own) == sum(usage.total_tokens for usage in given)


@pytest.mark.parametrize("seed", range(10))
async def test_usage_equals_what_the_models_gave_also_when_the_run_fails(seed: int) -> None:
    """Random trees, in which calls fail and their siblings are cancelled."""
    chance = random.Random(seed)
    given = [0, 0]

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        # Never nothing at all: FunctionModel would then estimate.
        usage = RequestUsage(input_tokens=chance.randrange(1, 50), output_tokens=chance.randrange(50))
        given[0] += 1
        given[1] += usage.total_tokens
        if chance.random() < 0.2 or len(messages) > 4 or not info.function_tools:
            return ModelResponse(parts=[TextPart("done")], usage=usage)
        tools = [chance.choice(info.function_tools).name for _ in range(chance.randrange(1, 4))]
        made = calls(*[(name, {"input": "x"}) for name in tools])
        made.usage = usage
        return made

    @entry
    async def risky(input: str) -> str:
        await asyncio.sleep(chance.random() / 200)
        if chance.random() < 0.15:
            raise OSError("disk")
        return "fine"

    worker = WorkerEntry(name="leaf", tools=[risky])
    for depth in range(3):
        worker = WorkerEntry(name=f"level{depth}", tools=[worker, risky])
    runtime = Runtime(model=FunctionModel(step, model_name="m"))
    with contextlib.suppress(OSError):
        await runtime.call(worker, "go")
    assert runtime.usage["m"].requests == given[0]
    assert runtime.usage["m"].total_tokens == given[1]
    assert all(t.duration is not None for t in runtime.trace), "every record is closed"


async def test_a_provider_error_passes_through_and_the_usage_before_it_stays() -> None:
    def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(status_code=500, model_name="m", body="overloaded")

    model = scripted(calls(("double", {"x": 1})), fail, name="m")
    runtime = Runtime(model=model)
    with pytest.raises(ModelHTTPError) as caught:
        await runtime.call(WorkerEntry(name="w", tools=[double]), "go")
    assert caught.value.__notes__ == ["llm-do call path: w"]
    assert runtime.usage["m"].requests == 1


async def test_the_price_is_known_where_the_price_list_knows_it() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        usage = RequestUsage(input_tokens=1_000_000, output_tokens=0)
        return ModelResponse([TextPart("x")], usage=usage, model_name="gpt-4o", provider_name="openai")

    class Named(FunctionModel):
        async def request(self, *args: Any) -> ModelResponse:
            response = await super().request(*args)
            response.model_name, response.provider_name = "gpt-4o", "openai"
            return response

    runtime = Runtime(model=Named(answer))
    await runtime.call(WorkerEntry(name="w"), "x")
    assert runtime.usage["gpt-4o"].cost == Decimal("2.5")
    assert runtime.trace[0].cost == Decimal("2.5")


# -- the message log ---------------------------------------------------------------------------------------


async def test_the_message_log_is_in_the_order_in_which_things_happened() -> None:
    class Note(BaseModel):
        text: str

    inner = WorkerEntry(name="inner", model=scripted(says("inner says")))
    outer_model = scripted(calls(("inner", {"input": "ask"})), answers({"text": "note"}))
    runtime = Runtime(model=outer_model)
    assert await runtime.call(WorkerEntry(name="outer", tools=[inner], output_type=Note), "go") == Note(text="note")
    assert [(type(m).__name__, [type(p).__name__ for p in m.parts]) for m in runtime.messages] == [
        ("ModelRequest", ["UserPromptPart"]),
        ("ModelResponse", ["ToolCallPart"]),
        ("ModelRequest", ["UserPromptPart"]),
        ("ModelResponse", ["TextPart"]),
        ("ModelRequest", ["ToolReturnPart"]),
        ("ModelResponse", ["ToolCallPart"]),
        ("ModelRequest", ["ToolReturnPart"]),  # what PydanticAI answers to an output, which no model is shown
    ]


async def test_the_message_log_of_a_failed_call_has_what_was_said() -> None:
    @entry
    async def fail() -> None:
        raise OSError("disk")

    runtime = Runtime(model=scripted(calls(("fail", {}))))
    with pytest.raises(OSError, match="disk"):
        await runtime.call(WorkerEntry(name="w", tools=[fail]), "go")
    assert [type(message) for message in runtime.messages][:2] == [ModelRequest, ModelResponse]


# -- sinks -------------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


async def test_sinks_and_callbacks_are_told_everything_in_order() -> None:
    recorder, told = Recorder(), []
    inner = WorkerEntry(name="inner", tools=[double], model=scripted(calls(("double", {"x": 2})), says("4")))
    outer = WorkerEntry(name="outer", tools=[inner], model=scripted(calls(("inner", {"input": "x"})), says("ok")))
    runtime = Runtime([outer], sinks=[recorder], message_callback=told.append)
    await runtime.call("outer", "go")
    assert told == recorder.events
    assert [(e.type, e.name, e.worker, e.depth, e.call_id, e.parent_id) for e in told] == snapshot(
        [
            ("call_opened", "outer", "outer", 0, 1, None),
            ("call_started", "outer", "outer", 0, 1, None),
            ("message", "outer", "outer", 0, 1, None),
            ("request_started", "outer", "outer", 0, 1, None),
            ("message", "outer", "outer", 0, 1, None),
            ("request_ended", "outer", "outer", 0, 1, None),
            ("call_opened", "inner", "inner", 1, 2, 1),
            ("call_started", "inner", "inner", 1, 2, 1),
            ("message", "inner", "inner", 1, 2, 1),
            ("request_started", "inner", "inner", 1, 2, 1),
            ("message", "inner", "inner", 1, 2, 1),
            ("request_ended", "inner", "inner", 1, 2, 1),
            ("call_opened", "double", "inner", 2, 3, 2),
            ("call_started", "double", "inner", 2, 3, 2),
            ("call_closed", "double", "inner", 2, 3, 2),
            ("message", "inner", "inner", 1, 2, 1),
            ("request_started", "inner", "inner", 1, 2, 1),
            ("message", "inner", "inner", 1, 2, 1),
            ("request_ended", "inner", "inner", 1, 2, 1),
            ("call_closed", "inner", "inner", 1, 2, 1),
            ("message", "outer", "outer", 0, 1, None),
            ("request_started", "outer", "outer", 0, 1, None),
            ("message", "outer", "outer", 0, 1, None),
            ("request_ended", "outer", "outer", 0, 1, None),
            ("call_closed", "outer", "outer", 0, 1, None),
        ]
    )


async def test_text_is_told_as_it_is_written_for_the_whole_tree() -> None:
    """Only when it was asked for, since it makes every request a stream."""
    told: list[Event] = []
    inner = WorkerEntry(name="inner", model=scripted(says("from the inside")))
    outer = WorkerEntry(name="outer", tools=[inner])
    model = scripted(calls(("inner", {"input": "x"})), says("and out"))
    runtime = Runtime(model=model, message_callback=told.append, text_deltas=True)
    async with outer.start(runtime) as scope:
        assert (await scope.run_turn("go")).strip() == "and out"
    deltas = [(e.worker, e.depth, e.call_id, e.text) for e in told if e.type == "text_delta"]
    assert deltas == [
        ("inner", 1, 2, "from "),
        ("inner", 1, 2, "the "),
        ("inner", 1, 2, "inside "),
        ("outer", 0, 1, "and "),
        ("outer", 0, 1, "out "),
    ]
    assert runtime.usage["scripted"].requests == 3
    quiet = Runtime(model=scripted(says("x")), message_callback=told.append)
    told.clear()
    await quiet.call(outer, "go")
    assert "text_delta" not in {event.type for event in told}


async def test_a_sink_that_raises_is_reported_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    class Broken:
        def on_event(self, event: Event) -> None:
            raise RuntimeError("no paper")

    async def not_a_function(event: Event) -> None: ...

    runtime = Runtime([double], sinks=[Broken(), recorder], message_callback=not_a_function)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR, "llm_do"):
        assert await runtime.call("double", 2) == 4
        assert await runtime.call("double", 3) == 6
    assert len(recorder.events) == 6
    assert len(caplog.records) == 2
    assert "no paper" in caplog.text
    assert "must be a plain function" in caplog.text


async def test_what_a_journal_cannot_record_does_not_run() -> None:
    class FullDisk:
        def on_event(self, event: Event) -> None:
            raise OSError("no space left on device")

    ran: list[int] = []

    @entry
    async def effect() -> None:
        ran.append(1)

    runtime = Runtime([effect], journal=FullDisk())
    with pytest.raises(OSError, match="no space left"):
        await runtime.call("effect")
    assert not ran


# -- what must not upset the records -------------------------------------------------------------------------


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [FrozenError(3), UnprintableError()])
async def test_an_exception_that_cannot_be_annotated_or_printed_arrives_all_the_same(error: Exception) -> None:
    @entry
    async def fail() -> None:
        raise error

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        await ctx.deps.call(fail)

    told: list[Event] = []
    runtime = Runtime(message_callback=told.append)
    with pytest.raises(type(error)) as caught:
        await runtime.call(outer)
    assert caught.value is error
    assert all(t.duration is not None and t.error and type(error).__name__ in t.error for t in runtime.trace)
    assert [event.type for event in told].count("call_closed") == 2


async def test_a_sink_cannot_rewrite_the_trace() -> None:
    def vandal(event: Event) -> None:
        if event.type == "call_opened":
            event.arguments["items"].append("sink")
        if event.type == "call_closed":
            event.output.append("sink")

    @entry
    async def echo(items: list[str]) -> list[str]:
        return items

    runtime = Runtime([echo], message_callback=vandal)
    assert await runtime.call("echo", ["mine"]) == ["mine"]
    assert runtime.trace[0].input_data == {"items": ["mine"]}
    assert runtime.trace[0].output_data == ["mine"]


async def test_a_sink_changes_neither_usage_nor_what_models_are_sent() -> None:
    seen: list[Any] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info.function_tools[0].parameters_json_schema.get("description"))
        return says("x", input_tokens=1)

    def vandal(event: Event) -> None:
        if isinstance(event, RequestStarted) and event.setup is not None:
            event.setup.tools[0].parameters_json_schema["description"] = "changed"
        if isinstance(event, RequestEnded):
            event.spent[0].usage.input_tokens += 1000
        if isinstance(event, CallClosed) and event.requests:
            event.requests[0].input_tokens += 1000

    @entry
    def add(a: int) -> int:
        return a

    worker = WorkerEntry(name="w", tools=[add], model=FunctionModel(model))
    runtime = Runtime([worker], message_callback=vandal)
    await runtime.call("w", "go")
    usage = runtime.trace[0].usage
    assert seen == [None] and usage is not None and usage.input_tokens == 1
    assert [each.input_tokens for each in runtime.usage.values()] == [1]


async def test_every_error_names_the_path_of_calls_once() -> None:
    @entry
    async def strict(x: int) -> int:
        return x

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        await ctx.deps.call(strict)

    with pytest.raises(TypeError) as caught:
        await Runtime([outer]).call("outer")
    assert caught.value.__notes__ == ["llm-do call path: outer"]
    started = asyncio.Event()

    @entry
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(Runtime([forever]).call("forever"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert cancelled.value.__notes__ == ["llm-do call path: forever"]


async def test_a_journal_that_fails_at_the_end_fails_the_call_and_the_record_is_closed() -> None:
    class Fills:
        def on_event(self, event: Event) -> None:
            if event.type == "call_closed":
                raise OSError("no space left on device")

    runtime = Runtime([double], journal=Fills())
    with pytest.raises(OSError, match="no space left"):
        await runtime.call("double", 1)
    assert runtime.trace[0].duration is not None


# -- the message log, in odd cases -----------------------------------------------------------------------------


def logged(runtime: Runtime) -> list[str]:
    return [type(part).__name__ for message in runtime.messages for part in message.parts]


class Note(BaseModel):
    text: str


async def test_the_log_repeats_nothing_over_the_turns_of_a_chat() -> None:
    """PydanticAI merges the last answer to an output with the next prompt."""
    worker = WorkerEntry(name="w", output_type=Note)
    runtime = Runtime(model=scripted(answers({"text": "a"}), answers({"text": "b"})))
    async with worker.start(runtime) as scope:
        await scope.run_turn("1")
        await scope.run_turn("2")
        history = scope.messages
    turn = ["UserPromptPart", "ToolCallPart", "ToolReturnPart"]
    assert logged(runtime) == turn * 2
    resumed = Runtime(model=scripted(answers({"text": "c"})))
    async with worker.start(resumed, message_history=history) as scope:
        await scope.run_turn("3")
    assert logged(resumed) == turn


async def test_an_agent_of_ones_own_inside_a_tool_does_not_upset_the_log() -> None:
    @entry
    async def think(ctx: RunContext[Context]) -> str:
        return (await Agent(ctx.model).run("inner")).output  # type: ignore[arg-type]

    model = scripted(calls(("think", {})), says("thought"), answers({"text": "done"}))
    runtime = Runtime(model=model)
    await runtime.call(WorkerEntry(name="w", tools=[think], output_type=Note), "go")
    assert logged(runtime) == [
        "UserPromptPart",
        "ToolCallPart",
        "UserPromptPart",
        "TextPart",
        "ToolReturnPart",
        "ToolCallPart",
        "ToolReturnPart",
    ]


async def test_the_results_of_tools_that_no_model_was_shown_are_in_the_log() -> None:
    """A run that fails after its tools: their results were part of the conversation."""

    @entry
    async def fine() -> str:
        return "fine"

    @entry
    async def fail() -> str:
        await asyncio.sleep(0.02)
        raise OSError("disk")

    runtime = Runtime(model=scripted(calls(("fine", {}), ("fail", {}))))
    with pytest.raises(OSError, match="disk"):
        await runtime.call(WorkerEntry(name="w", tools=[fine, fail]), "go")
    assert logged(runtime)[:3] == ["UserPromptPart", "ToolCallPart", "ToolCallPart"]
    assert "ToolReturnPart" in logged(runtime)


# -- streams ---------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_broken_off_is_counted() -> None:
    reached = asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "one two three "
        reached.set()
        await asyncio.Event().wait()

    runtime = Runtime(model=FunctionModel(stream_function=stream, model_name="m"), text_deltas=True)
    task = asyncio.create_task(runtime.call(WorkerEntry(name="w"), "go"))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runtime.usage["m"].requests == 1
    assert runtime.usage["m"].output_tokens > 0
    assert logged(runtime) == ["UserPromptPart", "TextPart"]


async def test_thinking_is_told_apart_from_answering() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="hm")}
        yield {0: DeltaThinkingPart(content=", well")}
        yield "yes"

    told: list[Event] = []
    runtime = Runtime(model=FunctionModel(stream_function=stream), text_deltas=True, message_callback=told.append)
    await runtime.call(WorkerEntry(name="w"), "go")
    deltas = [(event.text, event.thinking) for event in told if event.type == "text_delta"]
    assert deltas == [("hm", True), (", well", True), ("yes", False)]


async def test_a_graph_with_back_pointers_that_cannot_be_copied_costs_no_time() -> None:
    @dataclass
    class Node:
        parent: Any
        lock: Any
        children: list[Any] = field(default_factory=list)

    lock = threading.Lock()
    root = Node(None, lock)
    root.children = [Node(root, lock) for _ in range(30)]

    @entry
    async def take(node: Any) -> Any:
        node.children.clear()
        return node

    runtime = Runtime([take])
    async with asyncio.timeout(PATIENCE):
        assert await runtime.call("take", node=root) is root
    recorded = runtime.trace[0].input_data["node"]
    assert len(recorded.children) == 30
    assert recorded.children[0].parent is recorded
    assert recorded.lock is lock


async def test_whatever_a_value_is_made_of_the_call_is_recorded() -> None:
    class Pair(NamedTuple):
        lock: Any

    class Liar:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("guess")

    @entry
    async def take(thing: Any) -> Any:
        return thing

    runtime = Runtime([take])
    for thing in ({Pair(threading.Lock())}, Liar(), [Liar()]):
        assert await runtime.call("take", thing=thing) is thing
    assert [t.duration is not None for t in runtime.trace] == [True] * 3


@dataclass
class Redact(AbstractCapability[Any]):
    """A capability that replaces the parts of requests, and one that adds the same part to each of them."""

    reminder: Any = field(default_factory=lambda: UserPromptPart("remember"))

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        request = request_context.messages[-1]
        request.parts = [*request.parts, self.reminder]
        return request_context


async def test_the_log_has_what_each_request_had() -> None:
    worker = WorkerEntry(name="w", capabilities=[Redact()])
    runtime = Runtime(model=scripted(says("ok")))
    for _ in range(50):
        await runtime.call(worker, "x")
    assert logged(runtime) == ["UserPromptPart", "UserPromptPart", "TextPart"] * 50


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


async def test_a_trace_is_shown_whatever_the_values_do() -> None:
    """A `__repr__` that fails, and half of a character, are in no way of a text that can be printed."""

    @entry
    async def echo(value: Any, other: Any = None) -> Any:
        return value

    @entry
    async def fail(value: Any) -> None:
        raise ValueError(f"not {value}")

    runtime = Runtime()
    await runtime.call(echo, Unshowable(), [Unshowable()])
    await runtime.call(echo, "half \ud800")
    with pytest.raises(ValueError, match="not half"):
        await runtime.call(fail, "half \ud800")
    first, second, third = str(runtime.trace).encode().decode().split("\n")
    unshowable = "<Unshowable that cannot be shown>"
    assert first.startswith(f"echo(value={unshowable}, other=<list that cannot be shown>) [tool")
    assert first.endswith(f"-> {unshowable}")
    assert second.endswith(r"-> 'half \ud800'")
    assert third.endswith(r"!! ValueError: not half \ud800")


# -- long sessions -------------------------------------------------------------------------------------


@given(st.lists(st.integers(min_value=0, max_value=30), max_size=80), st.integers(min_value=0, max_value=5))
def test_a_bounded_trace_keeps_open_calls_and_those_above_them(steps: list[int], most: int) -> None:
    """Whatever the order in which calls are opened and closed, also below calls that are over."""
    trace, made, open_ids = BoundedTrace(most), dict[int, TraceEntry](), set[int]()
    for step in steps:
        if step % 3 and open_ids:
            closing = sorted(open_ids)[step % len(open_ids)]
            open_ids.discard(closing)
            trace.close(made[closing])
            trace.close(made[closing])  # once more does nothing
        else:
            parent = step % (len(made) + 1) or None
            record = made[len(made) + 1] = TraceEntry(len(made) + 1, parent, "f", "tool", 0, {}, 0.0)
            open_ids.add(record.id)
            trace.append(record)
        kept = {record.id for record in trace}
        held = set(open_ids)
        for number in open_ids:
            above = made[number].parent_id
            while above is not None and above in kept:
                held.add(above)
                above = made[above].parent_id
        assert held <= kept
        assert len(kept - held) <= most
        assert trace.left_out == len(made) - len(kept)
        assert [record.id for record in trace] == sorted(kept)


async def test_a_bounded_session_keeps_little_and_tells_its_sinks_all() -> None:
    """`max_records` bounds the trace and the message log; both say how much they left out."""
    events: list[Event] = []
    worker = WorkerEntry(name="w", model=scripted(says("ok")))
    runtime = Runtime([worker], max_records=3, message_callback=events.append)
    for number in range(50):
        await runtime.call("w", str(number))
    assert len(runtime.recorder.messages) <= 22  # also where nothing reads it
    assert [record.input_data["input"] for record in runtime.trace] == ["47", "48", "49"]
    assert (runtime.trace.left_out, runtime.messages.left_out, len(runtime.messages)) == (47, 97, 3)
    assert repr(runtime.trace) == "<Trace of 3 calls, 47 more left out>"
    assert str(runtime.trace).startswith("(47 calls that ended earlier are left out)\nw(")
    assert repr(runtime.messages) == "<MessageLog of 3 messages, 97 earlier ones left out>"
    assert sum(event.type == "call_closed" for event in events) == 50
    assert sum(event.type == "message" for event in events) == 100
    whole = Runtime([worker])
    for number in range(20):
        await whole.call("w", str(number))
    assert (len(whole.trace), whole.trace.left_out, len(whole.messages), whole.messages.left_out) == (20, 0, 40, 0)


@pytest.mark.parametrize("number", [-1, 1.5, True, "3"])
def test_a_bound_of_records_is_a_number_of_them(number: Any) -> None:
    """A message log cannot be cut to one and a half messages: the calls would fail."""
    with pytest.raises(ValueError, match="max_records must be a number of records"):
        Runtime([], max_records=number)


async def test_the_records_above_an_open_call_stay() -> None:
    """The tree of a bounded trace leads to the call that asks for it."""
    seen: list[str] = []

    @entry
    async def leaf(ctx: RunContext[Context], last: bool) -> None:
        if last:
            seen.extend(record.name for record in ctx.deps.trace)

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        for number in range(5):
            await ctx.deps.call(leaf, last=number == 4)

    runtime = Runtime([outer], max_records=0)
    await runtime.call("outer")
    assert seen == ["outer", "leaf"]
    assert (len(runtime.trace), runtime.trace.left_out) == (0, 6)


# -- where an error was raised ---------------------------------------------------------------------------


async def test_the_path_is_noted_also_where_the_text_has_its_words() -> None:
    """The name of an entry is a word like any other."""

    @entry
    async def a() -> None:
        raise ValueError("a bad day")

    with pytest.raises(ValueError) as caught:
        await Runtime([a]).call("a")
    assert caught.value.__notes__ == ["llm-do call path: a"]


async def test_each_raise_of_one_exception_object_shows_its_own_path() -> None:
    """Also where a call above caught it in between, and however many calls it passes."""
    always = ValueError("always the same")

    @entry
    async def first() -> None:
        raise always

    @entry
    async def second() -> None:
        raise always

    @entry
    async def both(ctx: RunContext[Context]) -> None:
        with contextlib.suppress(ValueError):
            await ctx.deps.call(first)
        await ctx.deps.call(second)

    always.add_note("mine")
    runtime = Runtime([first, second, both])
    for name, path in (("first", "first"), ("both", "both > second"), ("second", "second"), ("both", "both > second")):
        with pytest.raises(ValueError):
            await runtime.call(name)
        assert always.__notes__ == ["mine", f"llm-do call path: {path}"]


# -- time -------------------------------------------------------------------------------------------------


async def test_a_duration_is_without_the_wait_for_a_person() -> None:
    """Two questions that are open side by side count once in the call that made both calls."""
    waiting, events = 0.2, list[Event]()

    async def approve(name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        await asyncio.sleep(waiting)
        return ApprovalDecision(approved=True)

    @entry(requires_approval=True)
    async def send(to: str) -> str:
        return to

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        await asyncio.gather(ctx.deps.call(send, "a"), ctx.deps.call(send, "b"))

    runtime = Runtime([outer], approval_callback=approve, message_callback=events.append)
    clock = perf_counter()
    await runtime.call("outer")
    took = perf_counter() - clock
    outer_record, *sent = runtime.trace
    closed = {event.call_id: event for event in events if event.type == "call_closed"}
    for record in runtime.trace:
        assert record.duration is not None
        assert record.waited >= waiting * 0.9
        assert record.duration + record.waited <= took
        assert (closed[record.id].waited, closed[record.id].duration) == (record.waited, record.duration)
        assert "ms waiting for a person" in str(record)
    assert outer_record.waited < sum(record.waited for record in sent)


# -- requests ---------------------------------------------------------------------------------------------


async def test_two_providers_of_one_model_are_two_in_records_and_one_in_usage() -> None:
    """`usage` goes by the model's name, as ever."""

    class Named(FunctionModel):
        maker = ""

        @property
        def system(self) -> str:
            return self.maker

    def model(provider: str) -> Named:
        made = Named(lambda messages, info: says("ok", input_tokens=1), model_name="m")
        made.maker = provider
        return made

    runtime = Runtime()
    for provider in ("here", "there"):
        await runtime.call(WorkerEntry(name="w", model=model(provider)), "x")
    assert [record.model for record in runtime.trace] == ["here:m", "there:m"]
    assert {name: used.requests for name, used in runtime.usage.items()} == {"m": 2}
    assert {name: used.requests for name, used in runtime.usage_by_provider.items()} == {"here:m": 1, "there:m": 1}


async def test_the_start_and_the_end_of_a_request_are_told_also_when_it_fails() -> None:
    """The end has the usage, or the error."""

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "bad" in [getattr(part, "content", None) for part in messages[-1].parts]:
            raise ModelHTTPError(500, "m", None)
        return says("ok", input_tokens=3)

    events: list[Event] = []
    runtime = Runtime(
        [WorkerEntry(name="w")], model=FunctionModel(step, model_name="m"), message_callback=events.append
    )
    await runtime.call("w", "good")
    with pytest.raises(ModelHTTPError):
        await runtime.call("w", "bad")
    assert [event.model for event in events if event.type == "request_started"] == ["m", "m"]
    good, bad = [event for event in events if event.type == "request_ended"]
    assert good.usage is not None and good.usage.input_tokens == 3 and good.error is None and good.duration > 0
    assert bad.usage is None and bad.error is not None and bad.error.startswith("ModelHTTPError")


async def test_an_answer_that_was_cut_off_is_marked_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """The worker says which. The text names the limit, and how to raise it."""

    def cut(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("half an")], finish_reason="length")

    runtime = Runtime(model=FunctionModel(cut, model_name="m"))
    short = WorkerEntry(name="w", model_settings={"max_tokens": 5})
    assert await runtime.call(short, "x") == "half an"
    assert runtime.trace[0].cut_off == "max_tokens=5 of its settings was reached; raise it in `model_settings`"
    assert "cut off" in str(runtime.trace[0])
    assert "cut off: max_tokens=5" in caplog.text
    with pytest.raises(
        AnswerCutOff, match=r"^w: an answer of model 'm' was cut off: the model's own limit was reached"
    ):
        await runtime.call(WorkerEntry(name="w", on_cut_off="error"), "x")
    assert runtime.trace[1].cut_off is not None
    with pytest.raises(ValueError, match="on_cut_off of worker 'w' must be 'note' or 'error'"):
        WorkerEntry(name="w", on_cut_off="never")  # type: ignore[arg-type]


async def test_a_denial_that_a_tool_returns_is_a_failure_of_its_call() -> None:
    """It is in the record and in the event, without secrets; one that is learned later is taken out of the record."""
    events: list[Event] = []

    @entry
    async def buy(what: str) -> Any:
        return ToolDenied("no pin-12345678 today")

    @entry
    async def unlock(pin: Annotated[str, Field(json_schema_extra={"writeOnly": True})]) -> None: ...

    runtime = Runtime([buy, unlock], message_callback=events.append)
    await runtime.call("buy", "bread")
    assert runtime.trace[0].failure == "denied: no pin-12345678 today"
    assert [event.failure for event in events if event.type == "call_closed"] == [runtime.trace[0].failure]
    await runtime.call("unlock", "pin-12345678")
    assert runtime.trace[0].failure == "denied: no [secret] today"


async def test_the_wait_for_other_limits_is_no_part_of_a_duration() -> None:
    """A person is asked for them, as for an approval."""
    waiting = 0.1

    async def more(exceeded: LimitExceeded, limits: Limits) -> Limits:
        await asyncio.sleep(waiting)
        return Limits(max_requests=5)

    runtime = Runtime(model=scripted(says("ok")), limits=Limits(max_requests=0), limit_callback=more)
    clock = perf_counter()
    await runtime.call(WorkerEntry(name="w"), "x")
    took = perf_counter() - clock
    (record,) = runtime.trace
    assert record.duration is not None
    assert waiting * 0.9 <= record.waited <= took - record.duration


async def test_what_is_recorded_when_it_is_over_does_not_stay_in_a_bounded_trace() -> None:
    """A server that ended, and a tool that ran at the provider: neither is open, and neither holds its call."""

    @entry
    async def work(ctx: RunContext[Context]) -> None:
        recorder = ctx.deps.runtime.recorder
        recorder.add_whole(ctx.deps.frame, "files", "server", {}, error="it ended")
        recorder.add_whole(ctx.deps.frame, "web_search", "native", {"q": 1}, output="found")

    runtime = Runtime([work], max_records=2)
    for _ in range(5):
        await runtime.call("work")
    assert [record.name for record in runtime.trace] == ["work", "web_search"]
    assert runtime.trace.left_out == 13


async def test_a_long_bounded_session_keeps_no_more_objects_than_a_short_one() -> None:
    """Nothing of a call that is over stays, but what `max_records` keeps."""

    @entry
    async def leaf(n: int) -> list[int]:
        return [n]

    @entry
    async def outer(ctx: RunContext[Context], n: int) -> list[int]:
        return await ctx.deps.call(leaf, n)

    runtime = Runtime([outer, WorkerEntry(name="w", model=scripted(says("ok")))], max_records=4)

    async def count(times: int) -> int:
        for number in range(times):
            await runtime.call("outer", number)
        for number in range(6):
            await runtime.call("w", str(number))
        assert len(runtime.trace) == len(runtime.messages) == 4
        gc.collect()
        return len(gc.get_objects())

    await count(20)
    before = await count(20)
    assert await count(400) - before < 100
