"""Calls by name, by object, bound, and from synchronous code."""

import asyncio
import contextlib
import copy
import inspect
import pickle
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from llm_do import (
    ArgumentError,
    CallEnded,
    Context,
    DuplicateEntryError,
    EventLoopError,
    LimitExceeded,
    Limits,
    ModelChoiceError,
    Runtime,
    ToolEntry,
    UnknownEntryError,
    WorkerEntry,
    entry,
)

from ..processes import PATIENCE
from ..scripted import calls, says, scripted, tool_results


@entry
async def search(query: str, limit: int = 3) -> list[str]:
    """Search."""
    return [query] * limit


@entry
def upper(text: str) -> str:
    return text.upper()


# -- names ---------------------------------------------------------------------------------------------


async def test_an_unknown_name_lists_the_nearest_ones_and_runs_nothing() -> None:
    runtime = Runtime([search, upper])
    with pytest.raises(KeyError) as caught:
        await runtime.call("serach", "x")
    assert isinstance(caught.value, UnknownEntryError)
    assert str(caught.value) == "No entry is named 'serach'. Did you mean 'search'?"
    with pytest.raises(UnknownEntryError, match=r"Known names: 'search', 'upper'\."):
        await runtime.call("zzz")
    assert not runtime.trace


def test_two_entries_of_one_name_are_an_error_that_names_both() -> None:
    def other(text: str) -> str:
        return text

    with pytest.raises(DuplicateEntryError) as caught:
        Runtime([upper, ToolEntry.from_function(other, name="upper")])
    message = str(caught.value)
    assert message.count("test_calls.py:") == 2
    with pytest.raises(DuplicateEntryError, match="of worker 'w' are named 'search'"):
        WorkerEntry(name="w", tools=[search, WorkerEntry(name="search", instructions="Find.")])
    Runtime([upper, upper])  # the same entry twice is one entry


@pytest.mark.parametrize("name", ["", "a b", "../../evil", "näme", "a" * 65, "_x", "x\n", "-x", "x.y"])
def test_names_that_no_entry_may_have(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be an entry's name"):
        WorkerEntry(name=name)
    with pytest.raises(ValueError, match="cannot be an entry's name"):
        ToolEntry(tool=Tool.from_schema(lambda: None, name, None, {"type": "object", "properties": {}}))


def test_what_is_not_an_entry_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match="is not an entry.*@entry"):
        Runtime([len])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="worker 'w' cannot call it"):
        WorkerEntry(name="w", tools=[test_what_is_not_an_entry_is_refused_with_a_hint])  # type: ignore[list-item]


async def test_a_workers_own_tools_come_before_the_projects() -> None:
    """Two workers may each have a `score`; a function called by a worker sees that worker's."""

    def scores(value: int) -> ToolEntry[int]:
        return ToolEntry.from_function(lambda: value, name="score")

    @entry
    async def ask_score(ctx: RunContext[Context]) -> int:
        return await ctx.deps.call("score")  # type: ignore[no-any-return]

    model = scripted(lambda messages, info: calls(("ask_score", {})) if len(messages) == 1 else says("ok"))
    first = WorkerEntry(name="first", tools=[ask_score, scores(1)])
    second = WorkerEntry(name="second", tools=[ask_score, scores(2)])
    runtime = Runtime([first, second, scores(0), ask_score], model=model)
    assert await runtime.call("ask_score") == 0
    await runtime.call("first", "x")
    await runtime.call("second", "x")
    assert [t.output_data for t in runtime.trace if t.name == "score"] == [0, 1, 2]


async def test_a_context_from_a_worker_knows_everything_the_worker_reaches() -> None:
    inner = WorkerEntry(name="inner", tools=[search])
    outer = WorkerEntry(name="outer", tools=[inner, upper])
    ctx = Context.from_worker(outer, model=TestModel())
    assert sorted(ctx.registry) == ["inner", "outer", "search", "upper"]
    assert await ctx.call("search", "x", limit=1) == ["x"]


async def test_a_name_that_means_two_entries_must_be_said_as_an_object() -> None:
    one = ToolEntry.from_function(lambda: 1, name="score")
    two = ToolEntry.from_function(lambda: 2, name="score")
    root = WorkerEntry(name="root", tools=[WorkerEntry(name="a", tools=[one]), WorkerEntry(name="b", tools=[two])])
    ctx = Context.from_worker(root, model=TestModel())
    with pytest.raises(UnknownEntryError, match="is a tool of worker 'a' and of worker 'b'"):
        await ctx.call("score")
    assert await ctx.call(two) == 2


async def test_tools_can_be_names_of_the_project_so_workers_can_be_recursive() -> None:
    """A worker cannot hold itself, but it can name itself."""
    worker = WorkerEntry(name="countdown", tools=["countdown"])

    def step(messages: Any, info: Any) -> Any:
        left = int(messages[0].parts[0].content)
        if left == 0:
            return says("liftoff")
        if results := tool_results(messages):
            return says(results[0])
        return calls(("countdown", {"input": str(left - 1)}))

    runtime = Runtime([worker], model=scripted(step))
    assert await runtime.call("countdown", "3") == "liftoff"
    assert [t.depth for t in runtime.trace] == [0, 1, 2, 3]
    with pytest.raises(UnknownEntryError, match="No entry is named 'nobody'"):
        await Runtime(model=TestModel()).call(WorkerEntry(name="w", tools=["nobody"]), "x")


async def test_one_worker_serves_two_runtimes_at_once_with_the_tools_that_each_of_them_means() -> None:
    worker = WorkerEntry(name="w", tools=["score"])

    def step(messages: Any, info: Any) -> Any:
        return says(str(tool_results(messages)[0])) if tool_results(messages) else calls(("score", {}))

    runtimes = [
        Runtime([ToolEntry.from_function(lambda value=value: value, name="score")], model=scripted(step))
        for value in range(4)
    ]
    assert await asyncio.gather(*(runtime.call(worker, "go") for runtime in runtimes * 3)) == ["0", "1", "2", "3"] * 3


async def test_a_plain_function_is_no_entry_and_the_error_says_how_to_make_it_one() -> None:
    with pytest.raises(TypeError, match="is not an entry.*@entry"):
        await Runtime().call(asyncio.sleep, 1)  # type: ignore[call-overload]


# -- ways to call --------------------------------------------------------------------------------------


async def test_every_way_to_call_is_the_same_call() -> None:
    runtime = Runtime([search, WorkerEntry(name="my-worker")], model=TestModel())
    ctx = runtime.context()
    expected = ["x", "x"]
    assert await ctx.call("search", "x", limit=2) == expected
    assert await ctx.call(search, "x", 2) == expected
    assert await ctx.call("search", {"query": "x", "limit": 2}) == expected
    assert await ctx.tools.search(query="x", limit=2) == expected
    assert await ctx.tools["search"]("x", 2) == expected
    assert await ctx.bind(search)("x", 2) == expected
    assert await runtime.bind("search")("x", 2) == expected
    assert await ctx.tools["my-worker"]("x") == "success (no tool calls)"
    records = [t.input_data for t in runtime.trace if t.name == "search"]
    assert records == [{"query": "x", "limit": 2}] * 7


def test_bound_entries_complain_at_once() -> None:
    runtime = Runtime([search])
    with pytest.raises(UnknownEntryError, match="Did you mean 'search'"):
        runtime.bind("serch")
    with pytest.raises(UnknownEntryError):
        runtime.context().tools.serch  # noqa: B018
    assert not hasattr(runtime.context().tools, "__deepcopy__")


async def test_two_runtimes_share_nothing() -> None:
    one, two = Runtime([search]), Runtime([search])
    first, second = one.bind(search), two.bind(search)
    await first("x")
    assert (len(one.trace), len(two.trace)) == (1, 0)
    await second("x")
    assert (len(one.trace), len(two.trace)) == (1, 1)


async def test_functions_of_every_kind_are_entries() -> None:
    """Sync and async, with and without a context, and a plain function that returns a coroutine."""

    async def async_with(ctx: RunContext[Context], x: int) -> int:
        return ctx.deps.depth + x

    def sync_with(ctx: RunContext[Context], x: int) -> int:
        return ctx.deps.depth + x

    async def async_without(x: int) -> int:
        return x

    def sync_without(x: int) -> int:
        return x

    runtime = Runtime()
    for function, expected in [(async_with, 2), (sync_with, 2), (async_without, 1), (sync_without, 1)]:
        assert await runtime.call(ToolEntry.from_function(function), 1) == expected
    assert await runtime.call(ToolEntry.from_function(lambda: async_without(7), name="seven")) == 7


# -- from synchronous code ------------------------------------------------------------------------------


def test_call_sync_at_the_top_level() -> None:
    """Again and again, each in a loop of its own."""
    runtime = Runtime([search, upper, WorkerEntry(name="w")], model=TestModel())
    assert runtime.call_sync("search", "x", limit=1) == ["x"]
    assert runtime.call_sync(upper, "x") == "X"
    assert runtime.call_sync("w", "x") == "success (no tool calls)"
    assert runtime.bind(upper).call_sync("y") == "Y"
    assert runtime.context().call_sync("upper", "z") == "Z"
    assert len(runtime.trace) == 5


async def test_call_sync_in_a_running_loop_says_what_to_do() -> None:
    ran: list[str] = []

    @entry
    async def blocks(ctx: RunContext[Context]) -> str:
        return ctx.deps.call_sync("never")  # type: ignore[no-any-return]

    @entry
    def never() -> None:
        ran.append("never")

    runtime = Runtime([blocks, never])
    with pytest.raises(EventLoopError, match=r"Use `await ctx\.call\(\.\.\.\)` here"):
        runtime.call_sync("never")
    with pytest.raises(RuntimeError, match="would block the event loop"):
        await runtime.call("blocks")
    assert not ran
    assert [t.name for t in runtime.trace] == ["blocks"]


async def test_a_synchronous_entry_makes_the_same_calls() -> None:
    """Same parent, same depth, same approvals; from its own thread, and from threads that it starts."""

    @entry
    def outer(ctx: RunContext[Context], words: list[str]) -> list[str]:
        first = ctx.deps.call_sync("upper", words[0])
        second = ctx.deps.tools.upper.call_sync(words[1])
        with ThreadPoolExecutor(2) as pool:
            return [first, second, *pool.map(lambda word: ctx.deps.call_sync(upper, word), words[2:])]

    runtime = Runtime([outer, upper])
    assert await runtime.call("outer", list("abcd")) == list("ABCD")
    assert [(t.name, t.depth, t.parent_id) for t in runtime.trace] == [("outer", 0, None)] + [("upper", 1, 1)] * 4


async def test_synchronous_entries_do_not_starve_each_other_of_threads() -> None:
    """More callers than there are threads, all waiting for callees that need a thread too."""

    @entry
    def outer(ctx: RunContext[Context]) -> str:
        return ctx.deps.call_sync("middle")  # type: ignore[no-any-return]

    @entry
    def middle(ctx: RunContext[Context]) -> str:
        return ctx.deps.call_sync("upper", "x")  # type: ignore[no-any-return]

    runtime = Runtime([outer, middle, upper])
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*(runtime.call("outer") for _ in range(90)))
    assert results == ["X"] * 90


async def test_a_call_from_a_thread_after_its_call_was_cancelled_is_refused() -> None:
    """A thread cannot be stopped, but it can do nothing more through the runtime."""
    started, go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    @entry
    def slow(ctx: RunContext[Context]) -> None:
        started.set()
        go_on.wait(10)
        try:
            ctx.deps.call_sync("upper", "x")
        except BaseException as exc:
            outcome.append(exc)

    runtime = Runtime([slow, upper])
    task = asyncio.create_task(runtime.call("slow"))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runtime.trace[0].error == "cancelled; its thread cannot be stopped, and its result is dropped"
    go_on.set()
    for _ in range(200):
        if outcome:
            break
        await asyncio.sleep(0.01)
    assert "does not run: the call that makes it was cancelled" in str(outcome[0])
    assert [(t.name, t.output_data) for t in runtime.trace] == [("slow", None), ("upper", None)]


async def test_what_a_cancelled_thread_waits_for_is_cancelled_too() -> None:
    """Also when the cancellation comes from asyncio itself."""
    started = asyncio.Event()

    @entry
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    @entry
    def waits(ctx: RunContext[Context]) -> None:
        ctx.deps.call_sync("forever")

    runtime = Runtime([waits, forever])
    before = asyncio.all_tasks()
    task = asyncio.create_task(runtime.call("waits"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(t.name, t.error) for t in runtime.trace] == [
        ("waits", "cancelled; its thread cannot be stopped, and its result is dropped"),
        ("forever", "cancelled"),
    ]
    assert asyncio.all_tasks() == before


async def test_one_session_serves_one_loop_at_a_time() -> None:
    """A runtime's counters are not made for two threads: the second loop gets an error."""
    runtime = Runtime([search])
    await runtime.call("search", "x")

    def in_another_thread() -> BaseException | None:
        try:
            asyncio.run(runtime.call("search", "y"))
        except RuntimeError as exc:
            return exc
        return None

    error = await asyncio.to_thread(in_another_thread)
    assert isinstance(error, EventLoopError)
    assert "make one for each thread or request" in str(error)
    # `call_sync` from another thread goes to the loop that serves the session.
    assert await asyncio.to_thread(runtime.call_sync, "search", "z", limit=1) == ["z"]


# -- through the runtime from inside a call ----------------------------------------------------------------


async def test_a_call_through_the_runtime_from_inside_a_tool_cannot_deadlock() -> None:
    """It is a new top-level call, and the code that waits for it may hold the slot that it would wait for."""
    inner = WorkerEntry(name="inner", model=scripted(says("in")))

    @entry
    async def through_runtime() -> str:
        return await runtime.bind("inner")("x")  # type: ignore[no-any-return]

    outer = WorkerEntry(name="outer", tools=[through_runtime])
    step = scripted(lambda messages, info: says("out") if tool_results(messages) else calls(("through_runtime", {})))
    runtime = Runtime([inner, outer], model=step, max_concurrency=2)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*(runtime.call("outer", str(n)) for n in range(6))) == ["out"] * 6


@pytest.mark.parametrize("where", ["tasks of a tool", "instructions", "a tool below"])
async def test_nor_can_one_in_a_task_that_no_call_is_known_for(where: str) -> None:
    """As many parents as there are slots wait for calls that would have to wait for one of theirs."""
    inner = WorkerEntry(name="inner", model=scripted(says("in")))

    async def from_tasks(call: Any) -> str:
        return "".join(await asyncio.gather(*(asyncio.create_task(call("inner", "x")) for _ in range(2))))

    @entry
    async def through_runtime() -> str:
        return await from_tasks(runtime.call)

    @entry
    async def gather_below(ctx: RunContext[Context]) -> str:
        """Call workers whose tools use the context of this very call."""

        @entry
        async def back() -> str:
            return await from_tasks(ctx.deps.call)

        middle = WorkerEntry(name="middle", tools=[back], model=step("back"))
        return "".join(await asyncio.gather(*(ctx.deps.call(middle, "x") for _ in range(3))))

    def step(tool: str) -> Any:
        return scripted(lambda messages, info: says("out") if tool_results(messages) else calls((tool, {})))

    async def instruct(ctx: RunContext[Context]) -> str:
        return await from_tasks(runtime.call)

    outer = {
        "tasks of a tool": WorkerEntry(name="outer", tools=[through_runtime], model=step("through_runtime")),
        "instructions": WorkerEntry(name="outer", instructions=instruct, model=scripted(says("out"))),
        "a tool below": WorkerEntry(name="outer", tools=[gather_below], model=step("gather_below")),
    }[where]
    runtime = Runtime([inner, outer], max_concurrency=2)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*(runtime.call("outer", str(n)) for n in range(4))) == ["out"] * 4


@pytest.mark.parametrize("where", ["a model", "a toolset factory", "a limit callback"])
async def test_a_call_inside_a_request_or_a_factory_does_not_wait_for_itself(where: str) -> None:
    """With one slot, of workers and of requests, code that a worker waits for calls through the runtime."""
    inner = WorkerEntry(name="inner", model=scripted(says("in")))

    async def answer(messages: Any, info: Any) -> Any:
        return says(await runtime.call("inner", "x") if where == "a model" else "in")

    async def build(ctx: Context) -> Any:
        assert await runtime.call("inner", "x") == "in"
        return FunctionToolset([])

    async def more(exceeded: LimitExceeded, limits: Limits) -> Limits:
        with pytest.raises(LimitExceeded, match="inner stops"):
            await runtime.call("inner", "x")
        return Limits(max_requests=5)

    toolsets = [build] if where == "a toolset factory" else []
    outer = WorkerEntry(name="outer", model=FunctionModel(answer), toolsets=toolsets)
    limits = Limits(max_requests=1) if where == "a limit callback" else None
    runtime = Runtime([inner, outer], max_concurrency=1, limits=limits, limit_callback=more)
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*(runtime.call("outer", "x") for _ in range(2))) == ["in", "in"]


async def test_a_call_that_no_run_is_known_for_goes_on_when_the_session_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task of the program makes the call that a tool waits for."""
    monkeypatch.setattr("llm_do.core.loop.LOOK_AGAIN", 0.02)
    wanted: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()

    async def consume() -> None:
        answer = await wanted.get()
        answer.set_result(await runtime.call("inner", "x"))

    @entry
    async def ask() -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await wanted.put(answer)
        return await answer

    inner = WorkerEntry(name="inner", model=scripted(says("in")))
    outer = WorkerEntry(name="outer", tools=[ask], model=scripted(calls(("ask", {})), says("out")))
    runtime = Runtime([inner, outer], max_concurrency=1)
    consumer = asyncio.create_task(consume())
    async with asyncio.timeout(PATIENCE):
        assert await runtime.call("outer", "x") == "out"
    await consumer


async def test_workers_whose_tools_take_long_keep_their_slots() -> None:
    """Waiting for a tool of one's own is no reason to let more workers in."""
    running = most = 0

    @entry
    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.15)
        running -= 1

    model = scripted(lambda messages, info: says("ok") if tool_results(messages) else calls(("slow", {})))
    worker = WorkerEntry(name="w", tools=[slow], model=model)
    runtime = Runtime([worker], max_concurrency=2)
    assert await asyncio.gather(*(runtime.call(worker, "x") for _ in range(4))) == ["ok"] * 4
    assert most == 2


async def test_workers_that_are_at_their_models_keep_their_slots() -> None:
    """A session that does something does not let more of them in."""
    running = most = 0

    async def slow(messages: Any, info: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.12)  # longer than it takes to find out that a session stands still
        running -= 1
        return says("ok")

    runtime = Runtime(model=FunctionModel(slow), max_concurrency=2)
    worker = WorkerEntry(name="w")
    assert await asyncio.gather(*(runtime.call(worker, "x") for _ in range(6))) == ["ok"] * 6
    assert most == 2


# -- calls that are over -----------------------------------------------------------------------------------


async def test_a_context_makes_no_calls_once_its_call_or_one_above_has_ended() -> None:
    """In whatever way they are made. The context of the runtime never ends."""
    kept: list[Context] = []
    over = asyncio.Event()
    late: list[asyncio.Task[str]] = []

    @entry
    async def leaf() -> str:
        return "leaf"

    @entry
    async def below(ctx: RunContext[Context]) -> str:
        await over.wait()
        return await ctx.deps.call("leaf")  # type: ignore[no-any-return]

    @entry
    async def above(ctx: RunContext[Context]) -> None:
        kept.append(ctx.deps)
        late.append(asyncio.create_task(ctx.deps.call("below")))
        await asyncio.sleep(0)

    runtime = Runtime([leaf, below, above])
    await runtime.call("above")
    over.set()
    with pytest.raises(CallEnded, match="^above > below > leaf does not run: the call above has ended"):
        await late[0]
    ctx, refused = kept[0], "^above > leaf does not run: the call above has ended"
    for call in (lambda: ctx.call("leaf"), ctx.bind("leaf"), ctx.tools.leaf):
        with pytest.raises(CallEnded, match=refused):
            await call()
    for call_sync in (lambda: ctx.call_sync("leaf"), ctx.bind("leaf").call_sync):
        with pytest.raises(CallEnded, match=refused):
            await asyncio.to_thread(call_sync)
    assert await runtime.call("leaf") == await runtime.context().call("leaf") == "leaf"


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("turn", [False, True])
async def test_every_record_ends_however_often_a_call_is_cancelled(times: int, turn: bool) -> None:
    """Here while the call that a thread waits for cleans up, of our own tool and of one of a toolset."""
    started, cleaning, let = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @entry
    async def child() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            while not let.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await let.wait()

    def in_thread(ctx: RunContext[Context]) -> None:
        ctx.deps.call_sync("child")

    if turn:
        worker = WorkerEntry(
            name="w", toolsets=[lambda ctx: FunctionToolset([in_thread])], model=scripted(calls(("in_thread", {})))
        )
        runtime = Runtime([child])
        scope = worker.start(runtime)
        task = asyncio.create_task(scope.run_turn("x"))
    else:
        runtime = Runtime([child, ToolEntry.from_function(in_thread)])
        task = asyncio.create_task(runtime.call("in_thread"))
    await started.wait()
    for _ in range(times):
        task.cancel()
        await cleaning.wait()
        await asyncio.sleep(0.01)
    let.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    if turn:
        await scope.close()
    assert [record.name for record in runtime.trace if record.duration is None] == []
    assert {record.name for record in runtime.trace} == {"in_thread", "child"} | ({"w"} if turn else set())


async def test_nor_can_one_from_a_synchronous_entry() -> None:
    @entry
    def through_runtime() -> str:
        return runtime.call_sync("upper", "x")  # type: ignore[no-any-return]

    runtime = Runtime([through_runtime, upper])
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*(runtime.call("through_runtime") for _ in range(60))) == ["X"] * 60


def test_threads_that_share_a_runtime_do_not_cut_each_other_off() -> None:
    """The call of one thread runs in the loop of another, which waits for it."""
    started, joined = threading.Event(), threading.Event()

    @entry
    async def quick() -> str:
        started.set()
        await asyncio.to_thread(joined.wait, 30)
        return "quick"

    @entry
    async def slow() -> str:
        joined.set()
        await asyncio.sleep(0.5)
        return "slow"

    runtime = Runtime([quick, slow])
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(runtime.call_sync, "quick")
        started.wait(10)
        others = [pool.submit(runtime.call_sync, "slow") for _ in range(3)]
        assert first.result(30) == "quick"
        assert [other.result(30) for other in others] == ["slow"] * 3
    assert len(runtime.trace) == 4


def test_a_thread_waits_for_no_calls_of_others() -> None:
    """It gets its answer though its loop serves calls that come one after the other, and never all end."""
    done, joined = threading.Event(), threading.Semaphore(0)

    @entry
    async def mine() -> str:
        await asyncio.to_thread(joined.acquire)
        await asyncio.to_thread(joined.acquire)
        return "mine"

    @entry
    def others(ctx: RunContext[Context]) -> int:
        joined.release()
        return ctx.deps.call_sync("count", 1)  # type: ignore[no-any-return]

    @entry
    async def count(x: int) -> int:
        await asyncio.sleep(0.005)
        return x

    runtime = Runtime([mine, others, count], limits=Limits(max_calls=None))

    def keep_calling() -> int:
        served = 0
        while not done.is_set():
            served += runtime.call_sync("others")
        return served

    with ThreadPoolExecutor(3) as threads:
        owner = threads.submit(runtime.call_sync, "mine")
        while not runtime.trace:
            time.sleep(0.001)
        guests = [threads.submit(keep_calling) for _ in range(2)]
        try:
            assert owner.result(PATIENCE) == "mine"
            before = len(runtime.trace)
            while len(runtime.trace) < before + 20:  # they go on being served
                time.sleep(0.001)
        finally:
            done.set()
        assert all(guest.result(PATIENCE) for guest in guests)
    assert all(record.error is None and record.duration is not None for record in runtime.trace)
    assert runtime.call_sync("count", 3) == 3


def test_threads_that_come_and_go_at_once_are_all_served() -> None:
    """Each finds a loop, or starts one, and none is left waiting for one that has just ended."""

    @entry
    async def echo(x: int) -> int:
        await asyncio.sleep(0)
        return x

    runtime = Runtime([echo])
    for _ in range(15):
        barrier = threading.Barrier(3)

        def work(number: int, barrier: threading.Barrier = barrier) -> list[int]:
            barrier.wait(10)
            return [runtime.call_sync("echo", number * 10 + step) for step in range(8)]

        with ThreadPoolExecutor(3) as pool:
            results = [future.result(60) for future in [pool.submit(work, number) for number in range(3)]]
        assert results == [[number * 10 + step for step in range(8)] for number in range(3)]


async def test_a_loop_of_ones_own_inside_a_call_is_refused() -> None:
    errors: list[BaseException] = []

    @entry
    def own_loop(ctx: RunContext[Context]) -> None:
        try:
            asyncio.run(ctx.deps.call("upper", "x"))
        except BaseException as exc:
            errors.append(exc)

    await Runtime([own_loop, upper]).call("own_loop")
    assert isinstance(errors[0], EventLoopError)


# -- mistakes that newcomers make ------------------------------------------------------------------------------


def generates() -> Any:
    yield 1


def takes_bare_ctx(ctx, q: str) -> str:  # type: ignore[no-untyped-def]
    return q


def takes_context(ctx: Context, q: str) -> str:
    return q


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (lambda: Runtime(search), TypeError, "must be a list, got <ToolEntry 'search'"),
        (lambda: WorkerEntry(name="w", tools=search), TypeError, "The tools of worker 'w' must be a list"),
        (lambda: WorkerEntry(name="w", tools="search"), TypeError, "must be a list, got 'search'"),
        (lambda: Runtime([Tool(takes_context, takes_ctx=False, function_schema=search.tool.function_schema)]),
         TypeError, "Use ToolEntry"),
        (lambda: Runtime([WorkerEntry]), TypeError, "WorkerEntry is a class.*Give an instance"),
        (lambda: search("x"), TypeError, r"await ctx\.call\(search"),
        (lambda: entry("name"), TypeError, "A name is given with name="),
        (lambda: entry(lambda: 1), ValueError, "Give one with name="),
        (lambda: entry(generates), TypeError, "is a generator function"),
        (lambda: entry(takes_bare_ctx), TypeError, r"Annotate it: `ctx: RunContext\[Context\]`"),
        (lambda: entry(takes_context), TypeError, r"taken as `ctx: RunContext\[Context\]`, first"),
        (lambda: Runtime(limits={"max_calls": 3}), TypeError, r"limits must be Limits\(\.\.\.\)"),
        (lambda: Limits(max_calls="3"), TypeError, r"Limits\.max_calls must be a number"),
        (lambda: Runtime(model=TestModel).call_sync(WorkerEntry(name="w"), "x"), ModelChoiceError, "give a model's"),
        (lambda: WorkerEntry(name="w").start(TestModel()), TypeError, "on a Runtime or a Context, got TestModel"),
        (lambda: WorkerEntry(name="w").start(Runtime(), message_history=["hi"]), TypeError, "list of PydanticAI"),
        (lambda: Runtime({"a": upper}), ValueError, "'upper' cannot be called 'a'"),
        (lambda: Runtime(model=TestModel()).call_sync(WorkerEntry(name="w")), ArgumentError, "missing argument"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_with_what_to_do(mistake: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mistake()


def test_the_same_tool_twice_is_one_tool() -> None:
    worker = WorkerEntry(name="w", tools=[search, "search", search])
    assert Runtime([search], model=TestModel()).call_sync(worker, "x") == '{"search":["a","a","a"]}'


async def test_hasattr_tells_whether_a_context_can_call_it() -> None:
    tools = Runtime([search]).context().tools
    assert hasattr(tools, "search")
    assert not hasattr(tools, "serch")
    assert ("search" in tools, "serch" in tools, 0 in tools) == (True, False, False)
    assert getattr(tools, "serch", None) is None
    with pytest.raises(AttributeError, match="Did you mean 'search'") as caught:
        _ = tools.serch
    assert isinstance(caught.value, UnknownEntryError)
    with pytest.raises(KeyError) as missing:
        _ = tools["serch"]
    assert not isinstance(missing.value, AttributeError)
    with pytest.raises(TypeError):
        iter(tools)  # type: ignore[call-overload]


def test_tools_and_their_errors_can_be_inspected_and_copied() -> None:
    """Debuggers, test runners and mocks look at any object."""
    tools = Runtime([search]).context().tools
    with pytest.raises(UnknownEntryError) as caught:
        _ = tools.serch
    error = caught.value
    for copied in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (type(copied), str(copied)) == (type(error), str(error))
    assert "Did you mean 'search'" in "".join(traceback.format_exception(error))
    assert hasattr(copy.copy(tools), "search")
    assert "__getitem__" in dict(inspect.getmembers(tools))
    assert mock.create_autospec(tools) is not None
    assert "ToolsProxy" in repr(tools)


async def test_an_agent_is_refused_with_what_to_write_in_its_place() -> None:
    agent: Any = Agent("test", name="helper")
    advice = r"WorkerEntry\(name='helper', instructions=..., tools=\[...\]\)"
    runtime = Runtime()
    with pytest.raises(TypeError, match=advice):
        Runtime([agent])
    with pytest.raises(TypeError, match=advice):
        WorkerEntry(name="w", tools=[agent])
    with pytest.raises(TypeError, match=advice):
        Context.from_worker(agent)
    with pytest.raises(TypeError, match=advice):
        runtime.bind(agent)
    with pytest.raises(TypeError, match=advice):
        await runtime.call(agent, "x")
