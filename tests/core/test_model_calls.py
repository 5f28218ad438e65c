"""A model's calls take the same way as Python's: one dispatch, for our own tools and for foreign ones."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed, UnexpectedModelBehavior
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import (
    ApprovalDecision,
    Context,
    LimitExceeded,
    Limits,
    ModelBehaviorError,
    Runtime,
    ToolEntry,
    ToolsetError,
    ToolTimeout,
    WorkerEntry,
    entry,
    strict_mode_callback,
)

from ..processes import PATIENCE
from ..scripted import calls, says, scripted, tool_results


def outcomes(messages: list[ModelMessage]) -> list[tuple[str, Any]]:
    return [
        (part.outcome, part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def repeat_result(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return says(" ".join(map(str, tool_results(messages))))


# -- our own entries ---------------------------------------------------------------------------------


async def test_the_model_sees_each_entry_with_its_own_schema() -> None:
    """Functions as PydanticAI shows them; workers with their input type, or with `input: string`."""

    class Brief(BaseModel):
        topic: str

    @entry
    def search(query: str, limit: int = 3) -> str:
        """Search.

        Args:
            query: What for.
        """
        return query

    seen: dict[str, ToolDefinition] = {}

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.update({tool.name: tool for tool in info.function_tools})
        return says("ok")

    worker = WorkerEntry(
        name="boss",
        tools=[
            search,
            WorkerEntry(name="typed", description="Writes.", input_type=Brief),
            WorkerEntry(name="untyped"),
        ],
    )
    await Runtime(model=scripted(look)).call(worker, "x")
    assert seen["search"].description == "Search."
    assert seen["search"].parameters_json_schema["properties"]["query"] == {
        "type": "string",
        "description": "What for.",
    }
    assert seen["typed"].description == "Writes."
    assert seen["typed"].parameters_json_schema["properties"] == {"topic": {"title": "Topic", "type": "string"}}
    assert seen["typed"].parameters_json_schema["additionalProperties"] is False
    assert seen["untyped"].parameters_json_schema["required"] == ["input"]
    assert seen["untyped"].parameters_json_schema["properties"]["input"]["type"] == "string"


async def test_parallel_calls_of_one_response_run_side_by_side() -> None:
    """Each waits until the other has started."""
    barrier = asyncio.Barrier(3)

    @entry
    async def meet(who: str) -> str:
        async with asyncio.timeout(PATIENCE):
            await barrier.wait()
        return who

    model = scripted(calls(("meet", {"who": "a"}), ("meet", {"who": "b"}), ("meet", {"who": "c"})), repeat_result)
    runtime = Runtime(model=model)
    assert await runtime.call(WorkerEntry(name="w", tools=[meet]), "go") == "a b c"
    assert [(t.name, t.depth, t.parent_id, t.output_data) for t in runtime.trace[1:]] == [
        ("meet", 1, 1, "a"),
        ("meet", 1, 1, "b"),
        ("meet", 1, 1, "c"),
    ]


async def test_arguments_that_do_not_validate_leave_no_record_and_the_model_is_asked_again() -> None:
    ran: list[int] = []

    @entry
    async def half(x: int) -> float:
        ran.append(x)
        return x / 2

    model = scripted(calls(("half", {"x": "many"})), calls(("half", {"x": 8})), repeat_result)
    runtime = Runtime(model=model)
    assert "4.0" in await runtime.call(WorkerEntry(name="w", tools=[half]), "go")
    assert ran == [8]
    assert [t.name for t in runtime.trace] == ["w", "half"]


async def test_a_model_that_calls_what_does_not_exist_is_told_and_then_given_up() -> None:
    model = scripted(calls(("nope", {})), name="confused")
    runtime = Runtime(model=model)
    with pytest.raises(ModelBehaviorError, match="w: model 'confused' did not behave: .*'nope'"):
        await runtime.call(WorkerEntry(name="w"), "go")
    assert [t.name for t in runtime.trace] == ["w"]
    assert runtime.trace[0].usage is not None
    assert runtime.trace[0].usage.requests == 2


async def test_exceptions_cross_a_model_as_in_python() -> None:
    """They end the run, reach its caller unchanged, and carry the path of calls."""

    class Boom(Exception):
        pass

    boom = Boom("no such luck")

    @entry
    async def fail() -> None:
        raise boom

    inner = WorkerEntry(name="inner", tools=[fail], model=scripted(calls(("fail", {}))))
    outer = WorkerEntry(name="outer", tools=[inner], model=scripted(calls(("inner", {"input": "x"}))))
    runtime = Runtime([outer])
    with pytest.raises(Boom) as caught:
        await runtime.call("outer", "go")
    assert caught.value is boom
    assert caught.value.__notes__ == ["llm-do call path: outer > inner > fail"]
    assert [(t.name, t.error) for t in runtime.trace] == [(n, "Boom: no such luck") for n in ("outer", "inner", "fail")]


@pytest.mark.parametrize(("error", "outcome"), [(ToolFailed("disk full"), "failed"), (ModelRetry("again"), "retried")])
async def test_what_is_meant_for_the_model_reaches_the_model(error: Exception, outcome: str) -> None:
    attempts: list[int] = []

    @entry
    async def flaky() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise error
        return "fine"

    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(outcomes(messages))
        return says("ok")

    runtime = Runtime(model=scripted(calls(("flaky", {})), look))
    assert await runtime.call(WorkerEntry(name="w", tools=[flaky]), "go") == "ok"
    assert str(error) in str(seen[0][1])
    assert runtime.trace[1].error == f"{type(error).__name__}: {error}"


async def test_a_tools_own_timeout_holds_for_both_callers_and_does_not_count_the_approval() -> None:
    async def slow() -> str:
        await asyncio.sleep(5)
        return "never"

    async def quick() -> str:
        return "done"

    async def think(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        await asyncio.sleep(1)
        return ApprovalDecision(approved=True)

    tools = [
        ToolEntry(tool=Tool(slow, timeout=0.02)),
        ToolEntry(tool=Tool(quick, timeout=0.5), requires_approval=True),
    ]
    model = scripted(calls(("slow", {})), calls(("quick", {})), repeat_result)
    runtime = Runtime(tools, model=model, approval_callback=think)
    answer = await runtime.call(WorkerEntry(name="w", tools=tools), "go")
    assert "timed out after 0.02 seconds" in answer
    assert "done" in answer
    with pytest.raises(TimeoutError) as caught:
        await runtime.call("slow")
    assert isinstance(caught.value, ToolTimeout)


async def test_tools_keep_what_their_author_said() -> None:
    """`prepare`, `strict`, retries and metadata of a PydanticAI tool survive."""
    seen: list[ToolDefinition] = []

    async def rename(ctx: RunContext[Context], tool_def: ToolDefinition) -> ToolDefinition | None:
        assert isinstance(ctx.deps, Context)
        tool_def.description = "prepared"
        return tool_def

    def tool(x: int) -> int:
        return x

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(info.function_tools)
        return says("ok")

    made = Tool(tool, prepare=rename, strict=True, max_retries=4, metadata={"team": "a"}, sequential=True)
    await Runtime(model=scripted(look)).call(WorkerEntry(name="w", tools=[ToolEntry(tool=made)]), "x")
    (definition,) = seen
    assert (definition.description, definition.strict, definition.metadata, definition.sequential) == (
        "prepared",
        True,
        {"team": "a"},
        True,
    )


# -- tools from elsewhere -----------------------------------------------------------------------------------


def shop(ctx: Context) -> AbstractToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool
    async def price(run_ctx: RunContext[Context], item: str) -> str:
        # The context belongs to this very call: what it calls is below it.
        return f"{item} costs {await run_ctx.deps.call('number')} at depth {run_ctx.deps.depth}"

    @toolset.tool_plain(requires_approval=True)
    def buy(item: str) -> str:
        return f"bought {item}"

    return toolset


@entry
async def number() -> int:
    return 7


async def test_tools_of_a_foreign_toolset_are_dispatched_like_all_others() -> None:
    model = scripted(calls(("price", {"item": "tea"})), calls(("buy", {"item": "tea"})), repeat_result)
    asked: list[tuple[str, dict[str, Any]]] = []

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append((tool_name, payload))
        return ApprovalDecision(approved=True)

    runtime = Runtime([number], model=model, approval_callback=callback)
    worker = WorkerEntry(name="w", toolsets=[shop])
    assert await runtime.call(worker, "go") == "tea costs 7 at depth 2 bought tea"
    assert asked == [("buy", {"item": "tea"})]
    assert [(t.name, t.kind, t.depth, t.parent_id, t.input_data) for t in runtime.trace] == [
        ("w", "worker", 0, None, {"input": "go"}),
        ("price", "tool", 1, 1, {"item": "tea"}),
        ("number", "tool", 2, 2, {}),
        ("buy", "tool", 1, 1, {"item": "tea"}),
    ]


async def test_a_refused_foreign_tool_does_not_run() -> None:
    bought: list[str] = []

    def factory(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()

        @toolset.tool_plain(requires_approval=True)
        def buy(item: str) -> str:
            bought.append(item)
            return "bought"

        return toolset

    seen: list[Any] = []

    def look(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.extend(outcomes(messages))
        return says("ok")

    runtime = Runtime(model=scripted(calls(("buy", {"item": "tea"})), look))
    await runtime.call(WorkerEntry(name="w", toolsets=[factory]), "go")
    assert not bought
    assert seen[0][0] == "denied"
    assert "nobody can be asked" in seen[0][1]


async def test_a_tool_that_asks_from_within_asks_the_runtime() -> None:
    """PydanticAI's `ApprovalRequired` and `toolset.approval_required(...)` end in the same approval."""
    asked: list[str] = []
    ran: list[str] = []

    async def conditional(ctx: RunContext[Context], amount: int) -> str:
        if amount > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired
        ran.append(f"conditional {amount}")
        return f"paid {amount}"

    def factory(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()

        @toolset.tool_plain
        def wipe(disk: str) -> str:
            ran.append(f"wipe {disk}")
            return f"wiped {disk}"

        return toolset.approval_required()

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append(tool_name)
        return ApprovalDecision(approved=tool_name != "wipe", note="not today")

    pay = ToolEntry(tool=Tool(conditional, name="pay"))
    model = scripted(calls(("pay", {"amount": 5}), ("pay", {"amount": 500}), ("wipe", {"disk": "a"})), repeat_result)
    runtime = Runtime([pay], model=model, approval_callback=callback)
    answer = await runtime.call(WorkerEntry(name="w", tools=[pay], toolsets=[factory]), "go")
    assert "paid 5 paid 500" in answer
    assert "not today" in answer
    assert asked == ["pay", "wipe"]
    assert ran == ["conditional 5", "conditional 500"]
    assert await runtime.call("pay", 200) == "paid 200"


@dataclass
class Rewrite(AbstractCapability[Any]):
    """A capability that changes arguments as late as a capability can."""

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: Any, tool_def: ToolDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        return {"x": 99}


def foreign(ctx: Context) -> AbstractToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool_plain(requires_approval=True)
    async def far(x: int) -> int:
        return x

    return toolset


async def test_a_capability_that_rewrites_arguments_cannot_slip_past_an_approval() -> None:
    """The arguments that the person approved are those that run, for our own tools and for foreign ones."""
    asked: list[Any] = []

    @entry(requires_approval=True)
    async def near(x: int) -> int:
        return x

    def callback(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        asked.append((tool_name, payload))
        return ApprovalDecision(approved=True)

    worker = WorkerEntry(name="w", tools=[near], toolsets=[foreign], capabilities=[Rewrite()])
    model = scripted(calls(("near", {"x": 0}), ("far", {"x": 0})), repeat_result)
    runtime = Runtime(model=model, approval_callback=callback)
    assert await runtime.call(worker, "go") == "99 99"
    assert sorted(asked) == [("far", {"x": 99}), ("near", {"x": 99})]
    assert [(t.name, t.input_data) for t in runtime.trace[1:]] == [("near", {"x": 99}), ("far", {"x": 99})]


@dataclass
class Bringer(AbstractCapability[Any]):
    """A capability with a tool of its own."""

    def get_toolset(self) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()

        @toolset.tool_plain
        async def brought(x: int) -> int:
            return x + 1

        return toolset


async def test_tools_that_a_capability_brings_are_dispatched_too() -> None:
    worker = WorkerEntry(name="w", capabilities=[Bringer()])
    runtime = Runtime(model=scripted(calls(("brought", {"x": 1})), repeat_result), limits=Limits(max_calls=2))
    assert await runtime.call(worker, "go") == "2"
    assert [(t.name, t.depth, t.output_data) for t in runtime.trace] == [("w", 0, "2"), ("brought", 1, 2)]


@dataclass
class Switch(AbstractCapability[Any]):
    """A capability that sends requests to another model."""

    model: Any = None

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        request_context.model = self.model
        return request_context


async def test_a_model_that_a_capability_chooses_is_metered_too() -> None:
    other = scripted(says("from the other", input_tokens=5, output_tokens=7), name="other")
    runtime = Runtime(model=scripted(says("never"), name="first"))
    assert await runtime.call(WorkerEntry(name="w", capabilities=[Switch(model=other)]), "go") == "from the other"
    assert {name: usage.total_tokens for name, usage in runtime.usage.items()} == {"other": 12}


async def test_a_foreign_tool_must_not_shadow_the_workers_own() -> None:
    def clash(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset(id="clashing")

        @toolset.tool_plain(name="number")
        def shadow() -> int:
            return 8

        return toolset

    runtime = Runtime(model=scripted(calls(("number", {})), repeat_result))
    with pytest.raises(
        ToolsetError, match="FunctionToolset 'clashing' brings worker 'w' a tool that it has itself: number"
    ):
        await runtime.call(WorkerEntry(name="w", tools=[number], toolsets=[clash]), "go")
    assert [t.name for t in runtime.trace] == ["w"]


def counter(ctx: Context) -> AbstractToolset[Any]:
    server = str(Path(__file__).parents[1] / "mcp_server.py")
    # By default FastMCP keeps the process for other connections, after everybody has left.
    return MCPToolset(StdioTransport(sys.executable, [server], keep_alive=False), init_timeout=PATIENCE)


async def test_an_mcp_server_is_a_foreign_toolset() -> None:
    """A real process on the other side: one session for the whole conversation, gone after it."""
    worker = WorkerEntry(name="w", toolsets=[counter])
    step = calls(("increment", {"by": 2}))
    runtime = Runtime(model=scripted(step, repeat_result, step, repeat_result))
    async with worker.start(runtime) as scope:
        first = await scope.run_turn("go")
        second = await asyncio.create_task(scope.run_turn("again"))
    pid, count = first.split(":")
    assert count == "2"
    assert second == f"{pid}:2 {pid}:4"
    assert [(t.name, t.depth, t.input_data) for t in runtime.trace if t.kind == "tool"] == [
        ("increment", 1, {"by": 2}),
        ("increment", 1, {"by": 2}),
    ]
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            break
        await asyncio.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


async def test_a_tool_of_provider_side_kind_is_recorded_from_the_messages() -> None:
    from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart, TextPart

    response = ModelResponse(
        parts=[
            NativeToolCallPart("web_search", {"query": "x"}, tool_call_id="1"),
            NativeToolReturnPart("web_search", {"hits": 3}, tool_call_id="1"),
            TextPart("found"),
        ]
    )
    runtime = Runtime(model=scripted(response))
    assert await runtime.call(WorkerEntry(name="w"), "go") == "found"
    record = runtime.trace[1]
    assert (record.name, record.kind, record.depth, record.parent_id, record.input_data, record.output_data) == (
        "web_search",
        "native",
        1,
        1,
        {"query": "x"},
        {"hits": 3},
    )


# -- ways around ------------------------------------------------------------------------------------------------


async def test_a_foreign_tool_with_the_name_of_a_hidden_one_of_ours_is_no_way_around() -> None:
    """With capabilities about, one wrapper stands around all tools. It must not go by names."""
    ran: list[str] = []

    async def hide(ctx: RunContext[Any], tool_def: ToolDefinition) -> None:
        return None

    async def ours() -> str:
        return "ours"

    def factory(ctx: Context) -> AbstractToolset[Any]:
        toolset: FunctionToolset[Any] = FunctionToolset()

        @toolset.tool_plain(name="score", requires_approval=True)
        def theirs() -> str:
            ran.append("theirs")
            return "theirs"

        return toolset

    worker = WorkerEntry(
        name="w",
        tools=[ToolEntry(tool=Tool(ours, name="score", prepare=hide))],
        toolsets=[factory],
        capabilities=[Bringer()],
    )
    runtime = Runtime(model=scripted(calls(("score", {})), says("ok")), approval_callback=strict_mode_callback)
    with pytest.raises(ToolsetError, match="brings worker 'w' a tool that it has itself: score"):
        await runtime.call(worker, "go")
    assert not ran


@dataclass
class Replace(AbstractCapability[Any]):
    """A capability that puts another model in the place of the one it is given."""

    other: Any = None

    def get_wrapper_model(self, model: Any) -> Any:
        return self.other


async def test_a_model_that_a_capability_wraps_around_nothing_is_metered_too() -> None:
    other = scripted(says("other", input_tokens=5), name="other")
    worker = WorkerEntry(name="w", capabilities=[Replace(other=other)])
    runtime = Runtime(model=scripted(says("never")))
    assert await runtime.call(worker, "go") == "other"
    assert runtime.usage["other"].input_tokens == 5
    with pytest.raises(LimitExceeded):
        await Runtime(model=scripted(says("never")), limits=Limits(max_requests=0)).call(worker, "go")


async def test_responses_that_a_fallback_rejects_are_paid_too() -> None:
    first = scripted(says("bad", input_tokens=10, output_tokens=5), name="first")
    second = scripted(says("good", input_tokens=1, output_tokens=1), name="second")

    def is_bad(response: ModelResponse) -> bool:
        return "bad" in str(response.parts)

    model = FallbackModel(first, second, fallback_on=is_bad)
    runtime = Runtime(model=model)
    assert await runtime.call(WorkerEntry(name="w"), "go") == "good"
    assert {name: usage.total_tokens for name, usage in runtime.usage.items()} == {"first": 15, "second": 2}


async def test_a_timeout_below_is_not_a_retry_above() -> None:
    """Only the tool that timed out is tried again, by its own caller."""

    async def slow() -> None:
        await asyncio.sleep(5)

    inner = ToolEntry(tool=Tool(slow, timeout=0.02))

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        await ctx.deps.call(inner)

    runtime = Runtime(model=scripted(calls(("outer", {})), says("never")))
    with pytest.raises(ToolTimeout, match=r"slow\(\) timed out"):
        await runtime.call(WorkerEntry(name="w", tools=[outer]), "go")


async def test_a_tools_own_trouble_with_a_model_is_not_the_workers() -> None:
    @entry
    async def troubled() -> None:
        raise UnexpectedModelBehavior("mine")

    runtime = Runtime(model=scripted(calls(("troubled", {}))))
    with pytest.raises(UnexpectedModelBehavior, match="mine"):
        await runtime.call(WorkerEntry(name="w", tools=[troubled]), "go")


def waiting(ctx: Context) -> AbstractToolset[Any]:
    toolset: FunctionToolset[Any] = FunctionToolset()

    @toolset.tool
    def wait_for(run_ctx: RunContext[Context], name: str) -> str:
        return str(run_ctx.deps.call_sync(name, "x"))

    return toolset


async def test_a_synchronous_foreign_tool_is_cancelled_with_all_it_waits_for() -> None:
    effects: list[str] = []
    started = asyncio.Event()

    @entry
    async def slow(input: str) -> None:
        started.set()
        await asyncio.sleep(0.5)
        effects.append("late")

    runtime = Runtime([slow], model=scripted(calls(("wait_for", {"name": "slow"}))), limits=Limits(timeout=30))
    task = asyncio.create_task(runtime.call(WorkerEntry(name="w", toolsets=[waiting]), "go"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(t.name, t.error) for t in runtime.trace] == [
        ("w", "cancelled"),
        ("wait_for", "cancelled; its thread cannot be stopped, and its result is dropped"),
        ("slow", "cancelled"),
    ]
    await asyncio.sleep(0.6)
    assert not effects


async def test_synchronous_foreign_tools_do_not_starve_each_other_of_threads() -> None:
    leaf = WorkerEntry(name="leaf", toolsets=[waiting])
    outer = WorkerEntry(name="outer", toolsets=[waiting])

    @entry
    def number_of(input: str) -> int:
        return 7

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if tool_results(messages):
            return says(str(tool_results(messages)[0]))
        depth = "leaf" if "outer" in str(messages[0].parts[0].content) else "number_of"  # type: ignore[union-attr]
        return calls(*[("wait_for", {"name": depth})] * (45 if depth == "leaf" else 2))

    runtime = Runtime([leaf, number_of], model=scripted(step), limits=Limits(max_requests=None))
    async with asyncio.timeout(PATIENCE):
        assert await runtime.call(outer, "outer") == "7"


async def test_provider_side_tools_are_told_to_sinks() -> None:
    from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart, TextPart

    heard: list[Any] = []
    response = ModelResponse(
        parts=[
            NativeToolCallPart("web_search", '{"query": "x"}', tool_call_id="1"),
            NativeToolReturnPart("web_search", "hits", tool_call_id="1"),
            TextPart("found"),
        ]
    )
    runtime = Runtime(model=scripted(response), message_callback=heard.append)
    await runtime.call(WorkerEntry(name="w"), "go")
    native = [event for event in heard if event.name == "web_search"]
    assert [(e.type, e.kind, e.depth, e.parent_id, e.worker) for e in native] == [
        ("call_opened", "native", 1, 1, "w"),
        ("call_closed", "native", 1, 1, "w"),
    ]
    assert native[0].arguments == {"query": "x"}
    assert runtime.trace[1].duration is not None


async def test_the_toolset_of_another_agent_is_a_foreign_one() -> None:
    """Though it has the id of the agent's own."""
    ran: list[str] = []

    def buy() -> str:
        ran.append("bought")
        return "bought"

    other: Agent[Any, str] = Agent(tools=[Tool(buy, requires_approval=True)])
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: other.toolsets[0]], capabilities=[Bringer()])
    runtime = Runtime(model=scripted(calls(("buy", {})), says("ok")), approval_callback=strict_mode_callback)
    await runtime.call(worker, "go")
    assert not ran
    assert [t.name for t in runtime.trace] == ["w", "buy"]


@dataclass
class Backup(AbstractCapability[Any]):
    def get_wrapper_model(self, model: Any) -> Any:
        return FallbackModel(model, scripted(says("never")))


async def test_a_fallback_around_the_metered_model_is_counted_once() -> None:
    runtime = Runtime(model=scripted(says("ok", input_tokens=7), name="m"))
    await runtime.call(WorkerEntry(name="w", capabilities=[Backup()]), "go")
    assert {name: (usage.requests, usage.input_tokens) for name, usage in runtime.usage.items()} == {"m": (1, 7)}
    assert len(runtime.messages) == 2


async def test_the_answer_of_a_tool_may_be_of_its_own_class() -> None:
    class Found(ToolReturn):
        def __init__(self, text: str) -> None:
            super().__init__(return_value=text, content=f"In full: {text}")

    @entry
    def search() -> Found:
        return Found("tea")

    worker = WorkerEntry(name="w", tools=[search], model=scripted(calls(("search", {})), says("ok")))
    runtime = Runtime([worker])
    assert await runtime.call("w", "go") == "ok"
    assert "In full: tea" in str(runtime.messages)
