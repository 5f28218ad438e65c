"""Depth, budgets, deadlines and concurrency hold over the whole tree of calls."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import (
    ApprovalDecision,
    CallTimeout,
    Context,
    DepthLimitError,
    LimitExceeded,
    Limits,
    Runtime,
    WorkerEntry,
    entry,
    partial_messages,
)

from ..processes import PATIENCE
from ..scripted import calls, says, scripted, tool_results


@entry
async def dig(ctx: RunContext[Context], levels: int) -> int:
    return 0 if levels == 0 else 1 + await ctx.deps.call("dig", levels - 1)


# -- depth ---------------------------------------------------------------------------------------------


async def test_the_time_of_a_call_covers_its_wait_for_a_slot() -> None:
    """With the only slot taken, a call ends in time, and its error names the slot."""
    inside, over = asyncio.Event(), asyncio.Event()

    async def forever(messages: Any, info: Any) -> Any:
        inside.set()
        await over.wait()
        return says("ok")

    worker = WorkerEntry(name="w", model=FunctionModel(forever))
    quick = WorkerEntry(name="quick", model=scripted(says("ok")), limits=Limits(timeout=0.5))
    runtime = Runtime([worker, quick], max_concurrency=1)
    held = asyncio.create_task(runtime.call("w", "x"))
    await inside.wait()
    with pytest.raises(LimitExceeded, match=r"Time is up after 0.5 s .* in quick, which waits for a slot"):
        await runtime.call("quick", "x")

    @entry
    async def ask(ctx: RunContext[Context]) -> str:
        return await ctx.deps.call(quick, "x")

    with pytest.raises(LimitExceeded, match="in ask > quick, which waits to send a request"):
        await runtime.call(ask)
    over.set()
    assert await held == "ok"
    assert await runtime.call("w", "x") == "ok"


async def test_a_call_at_max_depth_is_refused_and_recorded() -> None:
    runtime = Runtime([dig], max_depth=3)
    assert await runtime.call("dig", 2) == 2
    before = len(runtime.trace)
    with pytest.raises(DepthLimitError, match=r"max_depth=3 allows: dig > dig > dig > dig\. Raise"):
        await runtime.call("dig", 3)
    refused = runtime.trace[-1]
    assert (refused.depth, refused.output_data, len(runtime.trace) - before) == (3, None, 4)
    assert refused.error is not None
    assert refused.error.startswith("DepthLimitError")


async def test_a_recursion_through_models_ends_at_the_depth_limit() -> None:
    """Every call counts as a level, and the error reaches the top with the whole path."""
    worker = WorkerEntry(name="loop", tools=["loop"])
    runtime = Runtime([worker], model=scripted(calls(("loop", {"input": "again"}))))
    with pytest.raises(DepthLimitError, match="loop > loop"):
        await runtime.call("loop", "start")
    assert max(t.depth for t in runtime.trace) == 16
    assert runtime.usage["scripted"].requests == 16


# -- budgets -------------------------------------------------------------------------------------------


async def test_the_number_of_calls_is_limited_over_the_whole_tree() -> None:
    runtime = Runtime([dig], limits=Limits(max_calls=3))
    with pytest.raises(LimitExceeded, match=r"dig > dig > dig does not run: the 3 calls of the session are used up"):
        await runtime.call("dig", 5)
    with pytest.raises(LimitExceeded, match="dig does not run"):
        await runtime.call("dig", 0)


async def test_the_number_of_requests_is_exact_under_concurrency() -> None:
    asked = 0

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return says("ok")

    worker = WorkerEntry(name="w")
    runtime = Runtime(model=FunctionModel(slow), limits=Limits(max_requests=5))
    results = await asyncio.gather(*(runtime.call(worker, str(n)) for n in range(20)), return_exceptions=True)
    assert asked == 5
    assert results.count("ok") == 5
    errors = [result for result in results if result != "ok"]
    assert all(isinstance(error, LimitExceeded) for error in errors)
    assert "w stops: the 5 model requests of the session are used up (Limits.max_requests)." in str(errors[0])


def test_limits_must_make_sense() -> None:
    with pytest.raises(ValueError, match=r"Limits\.max_calls must not be negative, got -1"):
        Limits(max_calls=-1)
    with pytest.raises(ValueError, match=r"Limits\.max_cost must not be negative, got -0\.1"):
        Limits(max_cost=-0.1)
    for endless in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"Limits\.max_cost must be a finite number"):
            Limits(max_cost=endless)
    for wrong in ("1", True):
        with pytest.raises(TypeError, match=r"Limits\.max_cost must be a number"):
            Limits(max_cost=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        Runtime(max_depth=0)


async def test_a_limit_that_ends_a_worker_ends_its_callers_too() -> None:
    """A model does not get to try again on a budget that is used up."""
    inner = WorkerEntry(name="inner")

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says("never") if tool_results(messages) else calls(("inner", {"input": "x"}))

    outer = WorkerEntry(name="outer", tools=[inner], model=scripted(step))
    runtime = Runtime([outer], model=scripted(says("x")), limits=Limits(max_requests=1))
    with pytest.raises(LimitExceeded, match="outer > inner stops"):
        await runtime.call("outer", "go")
    assert runtime.usage["scripted"].requests == 1


async def test_long_tasks_are_not_ended_by_pydantic_ais_own_default() -> None:
    """PydanticAI stops a run at its 51st request. The session's budgets are ours."""

    @entry
    async def tick() -> None: ...

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says("done") if len(messages) > 120 else calls(("tick", {}))

    assert await Runtime(model=scripted(step)).call(WorkerEntry(name="w", tools=[tick]), "go") == "done"


# -- time ----------------------------------------------------------------------------------------------


async def test_a_deadline_ends_the_whole_tree_and_names_the_call_that_was_running() -> None:
    closed: list[str] = []

    @entry
    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("forever")

    inner = WorkerEntry(name="inner", tools=[forever], model=scripted(calls(("forever", {}))))
    outer = WorkerEntry(name="outer", tools=[inner], model=scripted(calls(("inner", {"input": "x"}))))
    runtime = Runtime([outer], limits=Limits(timeout=1))
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError) as caught:
        await runtime.call("outer", "go")
    assert isinstance(caught.value, CallTimeout)
    assert str(caught.value) == "Time is up after 1 s (Limits.timeout), in outer > inner > forever."
    assert closed == ["forever"]
    assert [(t.name, t.error) for t in runtime.trace] == [
        ("outer", f"CallTimeout: {caught.value}"),
        ("inner", "cancelled"),
        ("forever", "cancelled"),
    ]
    assert asyncio.all_tasks() == before
    with pytest.raises(CallTimeout):  # each top-level call has its own time
        await runtime.call("outer", "go")


async def test_a_synchronous_tool_does_not_hold_up_the_deadline() -> None:
    over = threading.Event()

    @entry
    def slow() -> str:
        over.wait()
        return "late"

    runtime = Runtime([slow], limits=Limits(timeout=0.1))
    with pytest.raises(CallTimeout):
        await runtime.call("slow")
    over.set()
    assert runtime.trace[0].output_data is None


async def test_the_clock_stops_while_a_person_is_being_asked() -> None:
    @entry(requires_approval=True)
    async def careful() -> str:
        return "done"

    @entry
    async def two(ctx: RunContext[Context]) -> list[str]:
        return await asyncio.gather(ctx.deps.call(careful), ctx.deps.call("also"))

    @entry(requires_approval=True)
    async def also() -> str:
        await asyncio.sleep(0.01)
        return "done too"

    async def think(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        await asyncio.sleep(2.5 if tool_name == "careful" else 0.5)
        return ApprovalDecision(approved=True)

    runtime = Runtime([two, careful, also], approval_callback=think, limits=Limits(timeout=2))
    assert await runtime.call("two") == ["done", "done too"]


async def test_a_deadline_is_not_extended_by_a_tool_that_ignores_it() -> None:
    @entry
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I go on"
        return "never"

    with pytest.raises(CallTimeout):
        await Runtime([stubborn], limits=Limits(timeout=0.05)).call("stubborn")


async def test_the_turns_of_a_chat_have_their_own_time() -> None:
    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(0.6)
        return says("ok")

    worker = WorkerEntry(name="w")
    async with worker.start(Runtime(model=FunctionModel(slow), limits=Limits(timeout=2))) as scope:
        for _ in range(4):
            assert await scope.run_turn("x") == "ok"


# -- concurrency -----------------------------------------------------------------------------------------


async def test_workers_of_one_parent_and_requests_of_the_session_are_bounded() -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.002)
        running -= 1
        return says("ok")

    worker = WorkerEntry(name="w")
    runtime = Runtime(model=FunctionModel(slow), max_concurrency=4)
    await asyncio.gather(*(runtime.call(worker, str(n)) for n in range(30)))
    assert most == 4


async def test_nesting_cannot_deadlock_on_the_bound() -> None:
    """With one slot everywhere: every level fans out, and every level waits for the one below."""
    leaf = WorkerEntry(name="leaf")
    level: WorkerEntry[str] = leaf
    for depth in range(4):

        def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if tool_results(messages) or not info.function_tools:
                return says("ok")
            return calls(*[(info.function_tools[0].name, {"input": str(n)}) for n in range(2)])

        level = WorkerEntry(name=f"level{depth}", tools=[level], model=FunctionModel(step))
    runtime = Runtime([level], model=scripted(says("leaf")), max_concurrency=1)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*(runtime.call(level, str(n)) for n in range(3))) == ["ok"] * 3
    assert len([t for t in runtime.trace if t.name == "leaf"]) == 3 * 2**4


async def test_waiting_for_an_approval_holds_no_slot() -> None:
    answer = asyncio.Event()

    async def think(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        await answer.wait()
        return ApprovalDecision(approved=True)

    guarded = WorkerEntry(name="guarded", requires_approval=True)
    free = WorkerEntry(name="free")
    runtime = Runtime(model=scripted(says("ok")), max_concurrency=1, approval_callback=think)
    waiting = asyncio.create_task(runtime.call(guarded, "x"))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        assert await runtime.call(free, "x") == "ok"
    answer.set()
    assert await waiting == "ok"


async def test_workers_of_one_parent_are_bounded_even_while_they_ask_no_model() -> None:
    inside, most = 0, 0
    full = asyncio.Event()

    @entry
    async def stay() -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if most == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)
        inside -= 1
        return "stayed"

    def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says("ok") if tool_results(messages) else calls(("stay", {}))

    worker = WorkerEntry(name="w", tools=[stay])
    runtime = Runtime(model=scripted(step), max_concurrency=3)
    await asyncio.gather(*(runtime.call(worker, str(n)) for n in range(12)))
    assert most == 3


async def test_requests_are_bounded_over_all_parents() -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)
        running -= 1
        return says("ok")

    leaf = WorkerEntry(name="leaf")

    @entry
    async def parent(ctx: RunContext[Context]) -> list[str]:
        return await asyncio.gather(*(ctx.deps.call(leaf, str(n)) for n in range(3)))

    runtime = Runtime([parent], model=FunctionModel(slow), max_concurrency=3)
    await asyncio.gather(*(runtime.call("parent") for _ in range(4)))
    assert most == 3


async def test_a_call_that_is_made_when_time_is_up_does_not_run() -> None:
    """A function that will not be stopped gets nothing done any more."""
    ran: list[str] = []

    @entry
    async def effect() -> None:
        ran.append("effect")

    @entry
    async def stubborn(ctx: RunContext[Context]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await ctx.deps.call("effect")

    with pytest.raises(CallTimeout):
        await Runtime([stubborn, effect], limits=Limits(timeout=0.05)).call("stubborn")
    assert not ran


async def test_a_timeout_has_the_partial_messages_too() -> None:
    @entry
    async def forever() -> None:
        await asyncio.Event().wait()

    runtime = Runtime(model=scripted(calls(("forever", {}))), limits=Limits(timeout=1))
    with pytest.raises(CallTimeout) as caught:
        await runtime.call(WorkerEntry(name="w", tools=[forever]), "go")
    assert len(partial_messages(caught.value)) >= 2


# -- the executor ------------------------------------------------------------------------------------------------


async def test_an_executor_stands_around_every_entry_after_everything_was_checked() -> None:
    ran: list[tuple[str, dict[str, Any], int]] = []

    class Noting:
        async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Context, run_ctx: Any) -> Any:
            ran.append((entry.name, arguments, ctx.frame.depth))
            return await entry.call(arguments, ctx, run_ctx)

    @entry(requires_approval=True)
    async def refused() -> None: ...

    @entry
    async def add(x: int) -> int:
        return x + 1

    worker = WorkerEntry(name="w", tools=[add], model=scripted(calls(("add", {"x": 1})), says("ok")))
    runtime = Runtime([worker, refused], executor=Noting())
    assert await runtime.call("w", "go") == "ok"
    with pytest.raises(PermissionError):
        await runtime.call("refused")
    assert ran == [("w", {"input": "go"}, 0), ("add", {"x": 1}, 1)]


async def test_the_clock_goes_on_after_a_tool_asked_from_within() -> None:
    @entry
    async def asks(ctx: RunContext[Context]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        await asyncio.sleep(30)
        return "late"

    def yes(tool_name: str, payload: dict[str, Any], reason: str) -> ApprovalDecision:
        return ApprovalDecision(approved=True)

    with pytest.raises(CallTimeout):
        await Runtime([asks], approval_callback=yes, limits=Limits(timeout=0.3)).call("asks")


async def test_what_a_thread_of_an_async_tool_waits_for_ends_with_the_tool() -> None:
    effects: list[str] = []
    started = asyncio.Event()

    @entry
    async def slow() -> None:
        started.set()
        await asyncio.sleep(0.5)
        effects.append("late")

    @entry
    async def outer(ctx: RunContext[Context]) -> None:
        await asyncio.to_thread(ctx.deps.call_sync, "slow")

    runtime = Runtime([outer, slow])
    task = asyncio.create_task(runtime.call("outer"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [t.error for t in runtime.trace] == ["cancelled", "cancelled"]
    await asyncio.sleep(0.6)
    assert not effects


@pytest.mark.parametrize("of_worker", [False, True])
async def test_a_timeout_is_one_for_streamed_answers_too(of_worker: bool) -> None:
    async def slow(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "well"
        await asyncio.sleep(PATIENCE)

    limits = Limits(timeout=0.3)
    worker = WorkerEntry(name="w", model=FunctionModel(stream_function=slow), limits=limits if of_worker else None)
    runtime = Runtime([worker], limits=None if of_worker else limits, text_deltas=True)
    with pytest.raises(CallTimeout, match=r"Time is up after 0.3 s"):
        await runtime.call("w", "go")
