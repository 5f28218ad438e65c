"""Calls and turns: toolsets and the conversation live as long as the scope."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.run import AgentRun
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import (
    ApprovalDenied,
    CallClosed,
    CallEnded,
    CallTimeout,
    Context,
    Event,
    Executor,
    LimitExceeded,
    Limits,
    Runtime,
    ScopeBusyError,
    ScopeClosedError,
    ToolsetError,
    WorkerEntry,
    entry,
    partial_messages,
)
from llm_do.core.toolset_owner import CLOSING_SECONDS

from ..processes import PATIENCE
from ..scripted import calls, says, scripted, tool_results


class Log:
    """The events of toolsets, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def toolset(self, name: str, *, fail: str = "") -> Any:
        log = self

        class Toolset(FunctionToolset[Any]):
            """It does not count references: entered twice, it would show."""

            async def __aenter__(self) -> Any:
                log.lines.append(f"enter {name}")
                if fail == "enter":
                    raise OSError(f"{name} is out of order")
                return self

            async def __aexit__(self, *args: Any) -> None:
                log.lines.append(f"exit {name}")

        def factory(ctx: Context) -> AbstractToolset[Any]:
            log.lines.append(f"build {name}")
            if fail == "build":
                raise OSError(f"{name} cannot be built")
            toolset = Toolset()

            @toolset.tool_plain(name=f"use_{name}")
            def use() -> str:
                log.lines.append(f"use {name}")
                return f"used {name}"

            return toolset

        return factory


async def test_toolsets_are_built_once_and_closed_in_reverse_order() -> None:
    log = Log()
    worker = WorkerEntry(name="w", toolsets=[log.toolset("a"), log.toolset("b")])
    model = scripted(calls(("use_a", {})), says("1"), calls(("use_b", {})), says("2"))
    scope = worker.start(Runtime(model=model))
    assert log.lines == []
    async with scope:
        assert log.lines == ["build a", "enter a", "build b", "enter b"]
        assert await scope.run_turn("x") == "1"
        assert await scope.run_turn("y") == "2"
    assert log.lines[4:] == ["use a", "use b", "exit b", "exit a"]
    await scope.close()
    assert len(log.lines) == 8


async def test_without_async_with_the_first_turn_opens_and_close_ends() -> None:
    log = Log()
    worker = WorkerEntry(name="w", toolsets=[log.toolset("a")])
    scope = worker.start(Runtime(model=scripted(says("1"))))
    await scope.run_turn("x")
    await scope.run_turn("y")
    assert log.lines == ["build a", "enter a"]
    await scope.close()
    await scope.close()
    assert log.lines == ["build a", "enter a", "exit a"]
    with pytest.raises(RuntimeError) as caught:
        await scope.run_turn("z")
    assert isinstance(caught.value, ScopeClosedError)
    assert log.lines == ["build a", "enter a", "exit a"]


async def test_a_refused_turn_builds_nothing() -> None:
    log = Log()
    worker = WorkerEntry(name="w", requires_approval=True, toolsets=[log.toolset("a")])
    runtime = Runtime([worker], model=scripted(says("never")))
    scope = worker.start(runtime)
    for attempt in (scope.run_turn("x"), runtime.call("w", "x")):
        with pytest.raises(ApprovalDenied):
            await attempt
    assert log.lines == []
    await scope.close()


async def test_a_scope_that_was_never_used_closes_too() -> None:
    worker = WorkerEntry(name="w")
    await worker.start(Runtime()).close()


@pytest.mark.parametrize("fail", ["build", "enter"])
async def test_when_a_later_factory_fails_the_earlier_toolsets_are_closed(fail: str) -> None:
    log = Log()
    worker = WorkerEntry(name="w", toolsets=[log.toolset("a"), log.toolset("b", fail=fail), log.toolset("c")])
    runtime = Runtime([worker], model=scripted(says("never")))
    with pytest.raises(OSError, match="^b "):
        await runtime.call("w", "x")
    expected = ["build a", "enter a", "build b", *(["enter b"] if fail == "enter" else []), "exit a"]
    assert log.lines == expected
    assert not runtime.usage
    assert runtime.trace[0].error is not None
    with pytest.raises(OSError, match="^b "):
        async with worker.start(runtime):
            raise AssertionError("not reached")


@pytest.mark.parametrize("made", [None, "toolset", 3])
async def test_a_factory_that_returns_something_else_is_an_error(made: Any) -> None:
    log = Log()
    worker = WorkerEntry(name="w", toolsets=[log.toolset("a"), lambda ctx: made])
    with pytest.raises(ToolsetError, match="of worker 'w' returned .*, not a toolset"):
        await Runtime(model=scripted(says("x"))).call(worker, "x")
    assert log.lines == ["build a", "enter a", "exit a"]


async def test_factories_may_be_async_and_know_their_context() -> None:
    seen: list[Context] = []

    async def factory(ctx: Context) -> AbstractToolset[Any]:
        await asyncio.sleep(0)
        seen.append(ctx)
        return FunctionToolset()

    worker = WorkerEntry(name="w", toolsets=[factory])
    await Runtime(model=scripted(says("x"))).call(worker, "x")
    assert seen[0].frame.entry is worker


async def test_toolsets_by_name_come_from_the_runtime() -> None:
    log = Log()
    worker = WorkerEntry(name="w", toolsets=["files"])
    runtime = Runtime(model=scripted(calls(("use_f", {})), says("ok")), toolsets={"files": log.toolset("f")})
    assert await runtime.call(worker, "x") == "ok"
    assert log.lines == ["build f", "enter f", "use f", "exit f"]
    with pytest.raises(ToolsetError, match="no toolset named 'fils'.*Did you mean 'files'"):
        await runtime.call(WorkerEntry(name="w2", toolsets=["fils"]), "x")
    with pytest.raises(ToolsetError, match="give a factory"):
        await runtime.call(WorkerEntry(name="w3", toolsets=[FunctionToolset()]), "x")  # type: ignore[list-item]


async def test_turns_and_close_may_come_from_different_tasks() -> None:
    """Also with a toolset that keeps a task group open, which only the task that entered it can leave."""
    states: list[str] = []

    class Grouped(FunctionToolset[Any]):
        async def __aenter__(self) -> Any:
            self.group = anyio.create_task_group()
            await self.group.__aenter__()
            states.append("open")
            return self

        async def __aexit__(self, *args: Any) -> None:
            self.group.cancel_scope.cancel()
            await self.group.__aexit__(None, None, None)
            states.append("closed")

    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Grouped()])
    scope = worker.start(Runtime(model=scripted(says("ok"))))
    await asyncio.create_task(scope.run_turn("a"))
    await asyncio.create_task(scope.run_turn("b"))
    await asyncio.create_task(scope.close())
    assert states == ["open", "closed"]


async def test_a_toolset_that_makes_a_fresh_one_for_each_run_is_entered_by_the_run() -> None:
    states: list[str] = []

    class PerRun(FunctionToolset[Any]):
        async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
            return Fresh()

    class Fresh(FunctionToolset[Any]):
        async def __aenter__(self) -> Any:
            states.append("enter")
            return self

        async def __aexit__(self, *args: Any) -> None:
            states.append("exit")

    worker = WorkerEntry(name="w", toolsets=[lambda ctx: PerRun()])
    async with worker.start(Runtime(model=scripted(says("ok")))) as scope:
        await scope.run_turn("a")
        await scope.run_turn("b")
    assert states == ["enter", "exit", "enter", "exit"]


async def test_a_turn_while_another_runs_raises_and_harms_nothing() -> None:
    go_on = asyncio.Event()

    @entry
    async def wait() -> str:
        await go_on.wait()
        return "waited"

    worker = WorkerEntry(name="w", tools=[wait])
    scope = worker.start(Runtime(model=scripted(calls(("wait", {})), says("done"))))
    first = asyncio.create_task(scope.run_turn("a"))
    await asyncio.sleep(0.02)
    with pytest.raises(ScopeBusyError):
        await scope.run_turn("b")
    with pytest.raises(ScopeBusyError):
        await scope.close()
    go_on.set()
    assert await first == "done"
    await scope.close()


async def test_a_failed_turn_leaves_the_conversation_as_it_was() -> None:
    """Its usage and its trace stay, and the exception has the partial messages."""

    @entry
    async def fail() -> None:
        raise OSError("disk")

    worker = WorkerEntry(name="w", tools=[fail])
    runtime = Runtime(model=scripted(says("one"), calls(("fail", {})), says("three"), name="m"))
    async with worker.start(runtime) as scope:
        await scope.run_turn("1")
        before = scope.messages
        with pytest.raises(OSError, match="disk") as caught:
            await scope.run_turn("2")
        assert scope.messages == before
        partial = partial_messages(caught.value)
        assert [type(message) for message in partial[:4]] == [ModelRequest, ModelResponse, ModelRequest, ModelResponse]
        assert await scope.run_turn("3") == "three"
        assert len(scope.messages) == 4
    assert runtime.usage["m"].requests == 3
    assert [(t.name, t.depth, t.error) for t in runtime.trace] == [
        ("w", 0, None),
        ("w", 0, "OSError: disk"),
        ("fail", 1, "OSError: disk"),
        ("w", 0, None),
    ]


async def test_a_cancelled_turn_leaves_the_conversation_as_it_was_and_nothing_open() -> None:
    started = asyncio.Event()
    log = Log()

    @entry
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = WorkerEntry(name="w", tools=[forever], toolsets=[log.toolset("a")])
    runtime = Runtime(model=scripted(says("one"), calls(("forever", {})), says("three")))
    before_tasks = asyncio.all_tasks()
    async with worker.start(runtime) as scope:
        await scope.run_turn("1")
        before = scope.messages
        turn = asyncio.create_task(scope.run_turn("2"))
        await started.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert scope.messages == before
        assert [t.error for t in runtime.trace] == [None, "cancelled", "cancelled"]
        assert await scope.run_turn("3") == "three"
    assert log.lines == ["build a", "enter a", "exit a"]
    assert asyncio.all_tasks() == before_tasks


async def test_an_error_has_the_messages_of_the_call_that_the_catching_code_made() -> None:
    """A function that catches its worker's failure sees that worker's messages, not its own caller's."""
    seen: list[list[ModelMessage]] = []

    @entry
    async def fail() -> None:
        raise OSError("disk")

    inner = WorkerEntry(name="inner", tools=[fail], model=scripted(calls(("fail", {}))))

    @entry
    async def catches(ctx: RunContext[Context]) -> None:
        try:
            await ctx.deps.call(inner, "inner prompt")
        except OSError as exc:
            seen.append(partial_messages(exc))
            raise

    outer = WorkerEntry(name="outer", tools=[catches], model=scripted(calls(("catches", {}))))
    with pytest.raises(OSError, match="disk") as caught:
        await Runtime([outer]).call("outer", "outer prompt")
    assert "inner prompt" in str(seen[0][0])
    assert "outer prompt" in str(partial_messages(caught.value)[0])


async def test_cancellation_at_any_await_leaves_nothing_open() -> None:
    """A call with toolsets, tools and nested workers, cancelled after every number of steps of the loop."""

    @entry
    async def pause(x: int) -> int:
        await asyncio.sleep(0)
        return x

    def build(log: Log) -> tuple[Runtime, WorkerEntry[str]]:
        inner = WorkerEntry(
            name="inner",
            tools=[pause],
            toolsets=[log.toolset("b")],
            model=scripted(calls(("pause", {"x": 1})), says("i")),
        )
        step = calls(("inner", {"input": "x"}), ("pause", {"x": 2}), ("use_a", {}))
        outer = WorkerEntry(
            name="outer", tools=[inner, pause], toolsets=[log.toolset("a")], model=scripted(step, says("o"))
        )
        return Runtime([outer]), outer

    cancelled = 0
    for steps in range(400):
        log = Log()
        runtime, outer = build(log)
        before = asyncio.all_tasks()
        task = asyncio.create_task(runtime.call(outer, "go"))
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            assert task.result() == "o"
            break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled += 1
        assert all(record.duration is not None for record in runtime.trace)
        for name in "ab":
            assert log.lines.count(f"enter {name}") == log.lines.count(f"exit {name}"), (steps, log.lines)
        assert not asyncio.all_tasks() - before, steps
    else:
        raise AssertionError("the call never ended")
    assert cancelled > 20


async def test_a_scope_resumes_from_a_given_history() -> None:
    seen: list[int] = []

    def count(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(len(messages))
        return says(f"turn {len(messages)}")

    worker = WorkerEntry(name="w")
    async with worker.start(Runtime(model=scripted(count))) as scope:
        await scope.run_turn("a")
        history = scope.messages
    async with worker.start(Runtime(model=scripted(count)), message_history=history) as scope:
        assert await scope.run_turn("b") == "turn 3"
        assert len(scope.messages) == 4
    assert len(history) == 2


async def test_nested_calls_have_their_own_frame_and_toolsets_and_a_scope_can_stand_in_a_tool() -> None:
    log = Log()
    helper = WorkerEntry(name="helper", toolsets=[log.toolset("h")], model=scripted(says("h1"), says("h2")))

    @entry
    async def chat_with_helper(ctx: RunContext[Context]) -> list[str]:
        async with helper.start(ctx.deps) as scope:
            return [await scope.run_turn("a"), await scope.run_turn("b")]

    outer = WorkerEntry(
        name="outer",
        tools=[chat_with_helper],
        toolsets=[log.toolset("o")],
        model=scripted(calls(("chat_with_helper", {})), says("ok")),
    )
    runtime = Runtime([outer])
    await runtime.call("outer", "go")
    assert [(t.name, t.depth, t.parent_id) for t in runtime.trace] == [
        ("outer", 0, None),
        ("chat_with_helper", 1, 1),
        ("helper", 2, 2),
        ("helper", 2, 2),
    ]
    assert log.lines == ["build o", "enter o", "build h", "enter h", "exit h", "exit o"]


async def test_an_idle_scope_keeps_no_run() -> None:
    worker = WorkerEntry(name="w")
    async with worker.start(Runtime(model=scripted(says("x")))) as scope:
        for turn in range(3):
            await scope.run_turn(str(turn))
        gc.collect()
        # Not `isinstance`: it would ask each of a million objects of other tests for its `__class__`.
        assert not [thing for thing in gc.get_objects() if type(thing) is AgentRun]
        held = {type(value) for value in vars(scope).values()}
        assert Agent not in held


async def test_a_finished_call_is_freed() -> None:
    worker = WorkerEntry(name="w")
    runtime = Runtime(model=scripted(says("x")))
    frames: list[weakref.ref[Any]] = []

    @asynccontextmanager
    async def scope_of(worker: WorkerEntry[str]) -> AsyncIterator[Any]:
        async with worker.start(runtime) as scope:
            frames.append(weakref.ref(scope.frame))
            yield scope

    async with scope_of(worker) as scope:
        await scope.run_turn("x")
    del scope
    for _ in range(3):  # a finalizer may keep things for one more collection
        gc.collect()
    assert frames[0]() is None


async def test_the_data_of_a_call_goes_with_the_call() -> None:
    """Without a garbage collection: frames that wait for one cost more than what they are for."""
    frames: list[weakref.ref[Any]] = []

    @entry
    async def note(ctx: RunContext[Context]) -> None:
        frames.extend(weakref.ref(frame) for frame in (ctx.deps.frame, ctx.deps.frame.parent) if frame)

    # Not `scripted`: PydanticAI runs a synchronous model in a thread, which may hold the data of its job a while.
    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says("ok") if tool_results(messages) else calls(("note", {}))

    runtime = Runtime(model=FunctionModel(respond))
    gc.collect()
    gc.disable()
    try:
        await runtime.call(WorkerEntry(name="w", tools=[note]), "x")
        await asyncio.sleep(0)
        assert [ref() for ref in frames] == [None, None]
    finally:
        gc.enable()


async def test_leaving_the_block_with_an_error_closes_the_toolsets() -> None:
    log = Log()
    worker = WorkerEntry(name="w", toolsets=[log.toolset("a")])
    with pytest.raises(ValueError, match="mine"):
        async with worker.start(Runtime(model=scripted(says("x")))):
            raise ValueError("mine")
    assert log.lines == ["build a", "enter a", "exit a"]


async def test_an_error_while_closing_is_told() -> None:
    class Stuck(FunctionToolset[Any]):
        async def __aexit__(self, *args: Any) -> None:
            raise OSError("cannot close")

    log = Log()
    worker = WorkerEntry(name="w", toolsets=[log.toolset("a"), lambda ctx: Stuck()])
    scope = worker.start(Runtime(model=scripted(says("x"))))
    await scope.run_turn("x")
    with pytest.raises(OSError, match="cannot close"):
        await scope.close()
    assert log.lines[-1] == "exit a"


# -- several tasks at one scope -------------------------------------------------------------------------


class Slow(FunctionToolset[Any]):
    """A slow toolset that notes when it is entered and left."""

    def __init__(self, log: list[str], *, opening: float = 0.1, closing: float = 0.0) -> None:
        super().__init__()
        self.log, self.opening, self.closing = log, opening, closing
        self.add_function(lambda: "used", name="use")

    async def __aenter__(self) -> Any:
        await asyncio.sleep(self.opening)
        self.log.append("open")
        return self

    async def __aexit__(self, *args: Any) -> None:
        await asyncio.sleep(self.closing)
        self.log.append("closed")


async def test_a_turn_waits_for_toolsets_that_another_task_is_opening() -> None:
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log)])
    scope = worker.start(Runtime(model=scripted(calls(("use", {})), says("ok"))))
    opening = asyncio.create_task(scope.open())
    await asyncio.sleep(0.01)
    assert await scope.run_turn("x") == "ok"
    await opening
    await scope.close()
    assert log == ["open", "closed"]


async def test_when_one_of_two_openers_is_cancelled_the_other_still_gets_its_toolsets() -> None:
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log)])
    scope = worker.start(Runtime(model=scripted(says("ok"))))
    first, second = asyncio.create_task(scope.open()), asyncio.create_task(scope.open())
    await asyncio.sleep(0.01)
    first.cancel()
    await second
    await scope.close()
    assert log == ["open", "closed"]


async def test_closing_while_another_task_opens_ends_the_opening() -> None:
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log, opening=30)])
    scope = worker.start(Runtime(model=scripted(says("ok"))))
    opening = asyncio.create_task(scope.open())
    await asyncio.sleep(0.01)
    await scope.close()
    with pytest.raises(ScopeClosedError, match="were closed before they were open"):
        await opening
    assert log == []


async def test_closing_returns_when_the_scope_is_closed() -> None:
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log, closing=0.1)])
    scope = worker.start(Runtime(model=scripted(says("ok"))))
    await scope.open()

    async def close() -> int:
        await scope.close()
        return len(log)

    assert await asyncio.gather(close(), close()) == [2, 2]


async def test_closing_is_finished_before_a_cancellation_goes_on() -> None:
    """Also a cancellation of asyncio's own, which no shield of anyio holds off."""
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log, closing=0.2)])
    task = asyncio.create_task(Runtime(model=scripted(says("ok"))).call(worker, "x"))
    while "open" not in log:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert log == ["open", "closed"]


async def test_a_toolset_that_does_not_close_is_cancelled_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_do.core.toolset_owner.CLOSING_SECONDS", 0.05)
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log, opening=0, closing=3600)])
    async with asyncio.timeout(PATIENCE):
        assert await Runtime(model=scripted(says("ok"))).call(worker, "x") == "ok"
    assert log == ["open"]


async def test_leaving_the_block_ends_a_turn_that_runs_in_another_task() -> None:
    log: list[str] = []
    started = asyncio.Event()

    @entry
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = WorkerEntry(name="w", tools=[forever], toolsets=[lambda ctx: Slow(log, opening=0)])
    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="mine"):
        async with worker.start(Runtime(model=scripted(calls(("forever", {}))))) as scope:
            turn = asyncio.create_task(scope.run_turn("x"))
            await started.wait()
            raise ValueError("mine")
    assert turn.cancelled()
    assert log == ["open", "closed"]
    assert asyncio.all_tasks() == before


async def test_toolsets_that_die_between_turns_are_built_anew() -> None:
    built: list[anyio.abc.TaskGroup] = []

    class Mortal(FunctionToolset[Any]):
        async def __aenter__(self) -> Any:
            self.group = anyio.create_task_group()
            built.append(await self.group.__aenter__())
            return self

        async def __aexit__(self, *args: Any) -> bool | None:
            self.group.cancel_scope.cancel()
            return await self.group.__aexit__(None, None, None)

    async def die() -> None:
        raise OSError("the server is gone")

    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Mortal()])
    async with worker.start(Runtime(model=scripted(says("ok")))) as scope:
        assert await scope.run_turn("x") == "ok"
        built[0].start_soon(die)
        await asyncio.sleep(0.05)
        assert await scope.run_turn("y") == "ok"
    assert len(built) == 2


async def test_a_factory_may_call_entries() -> None:
    @entry
    def number() -> int:
        return 7

    inner = WorkerEntry(name="inner", model=scripted(says("in")))
    seen: list[Any] = []

    async def factory(ctx: Context) -> AbstractToolset[Any]:
        seen.extend([await ctx.call("number"), await ctx.call(inner, "x")])
        return FunctionToolset()

    worker = WorkerEntry(name="w", toolsets=[factory])
    async with worker.start(Runtime([number], model=scripted(says("ok")))):
        assert seen == [7, "in"]


async def test_a_scope_that_is_forgotten_keeps_its_toolsets_until_the_loop_ends() -> None:
    """It does not fall to the garbage collector in the middle of something."""
    log: list[str] = []

    async def forgetful() -> None:
        worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log, opening=0)])
        await worker.start(runtime).run_turn("x")

    runtime = Runtime(model=scripted(says("ok")))
    await forgetful()
    gc.collect()
    await asyncio.sleep(0.01)
    assert log == ["open"]
    (owner,) = runtime.loop.tasks
    owner.cancel()
    await asyncio.wait([owner])
    assert log == ["open", "closed"]


async def test_closing_in_the_very_moment_of_opening_does_not_hang() -> None:
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow([])])
    scope = worker.start(Runtime(model=scripted(says("ok"))))
    opening = asyncio.create_task(scope.open())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await scope.close()
        with pytest.raises(ScopeClosedError):
            await opening


async def test_no_turn_starts_while_the_block_is_left() -> None:
    """A task that tries again and again gets no turn in between, and the toolsets are closed."""
    log: list[str] = []
    started = asyncio.Event()

    @entry
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = WorkerEntry(name="w", tools=[forever], toolsets=[lambda ctx: Slow(log, opening=0)])

    async def insist(scope: Any) -> None:
        while True:
            try:
                await scope.run_turn("again")
            except ScopeBusyError:
                await asyncio.sleep(0)

    async with worker.start(Runtime(model=scripted(calls(("forever", {}))))) as scope:
        first = asyncio.create_task(scope.run_turn("x"))
        await started.wait()
        second = asyncio.create_task(insist(scope))
        await asyncio.sleep(0.01)
    assert log == ["open", "closed"]
    assert first.cancelled()
    with pytest.raises(ScopeClosedError):
        await second


async def test_leaving_the_block_waits_for_the_turn_and_not_for_the_task_that_made_it() -> None:
    started = asyncio.Event()

    @entry
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    async def chat(scope: Any) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await scope.run_turn("x")
        await asyncio.sleep(0.5)  # it has better things to do
        return "went on"

    worker = WorkerEntry(name="w", tools=[forever])
    async with worker.start(Runtime(model=scripted(calls(("forever", {}))))) as scope:
        task = asyncio.create_task(chat(scope))
        await started.wait()
    assert not task.done()
    assert await task == "went on"


class Hanging(FunctionToolset[Any]):
    """A toolset that closes when it is let."""

    def __init__(self, let: asyncio.Event, log: list[str]) -> None:
        super().__init__(id="hanging")
        self.let, self.log = let, log

    async def __aexit__(self, *args: Any) -> None:
        self.log.append("closing")
        await self.let.wait()
        self.log.append("closed")


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_call_leaves_a_toolset_that_hangs_to_close_by_itself(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notice names the toolset, and the closing goes on without the call."""
    monkeypatch.setattr("llm_do.core.tasks.LEAVING_SECONDS", 0.05)
    let, log, told = asyncio.Event(), list[str](), list[Any]()
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Hanging(let, log)])
    runtime = Runtime(model=scripted(says("ok")), message_callback=told.append)
    before = asyncio.all_tasks()
    task = asyncio.create_task(runtime.call(worker, "x"))
    while "closing" not in log:
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["closing"]
    notices = [event.text for event in told if event.type == "notice"]
    assert len(notices) == 1
    assert "hanging" in notices[0] and "of worker 'w' takes long to close" in notices[0]
    let.set()
    while asyncio.all_tasks() - before:
        await asyncio.sleep(0)
    assert log == ["closing", "closed"]


async def test_a_toolset_that_hangs_on_closing_does_not_lengthen_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llm_do.core.tasks.LEAVING_SECONDS", 0.05)
    let, log = asyncio.Event(), list[str]()
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Hanging(let, log)])
    runtime = Runtime(model=scripted(says("ok")), limits=Limits(timeout=0.2), sinks=[Silent()])
    before = asyncio.all_tasks()
    async with asyncio.timeout(CLOSING_SECONDS / 2):
        with pytest.raises(LimitExceeded, match="Time is up after 0.2 s"):
            await runtime.call(worker, "x")
    assert log == ["closing"]
    let.set()
    while asyncio.all_tasks() - before:
        await asyncio.sleep(0)


class Silent:
    def on_event(self, event: Any) -> None:
        pass


def test_toolsets_belong_to_the_loop_that_opened_them() -> None:
    log: list[str] = []
    worker = WorkerEntry(name="w", toolsets=[lambda ctx: Slow(log, opening=0)])
    scope = worker.start(Runtime(model=scripted(says("ok"))))
    assert asyncio.run(scope.run_turn("x")) == "ok"  # the loop ends, and with it the toolsets
    assert asyncio.run(scope.run_turn("y")) == "ok"
    assert log == ["open", "closed"] * 2


async def test_a_scope_that_outlives_the_call_it_was_started_in_is_refused() -> None:
    """Its turns, and the opening of its toolsets, would be calls of a call that is over."""
    kept: list[Any] = []
    worker = WorkerEntry(name="w", model=scripted(says("ok")))

    @entry
    async def start(ctx: RunContext[Context]) -> None:
        kept.append(worker.start(ctx.deps))

    await Runtime([start]).call("start")
    with pytest.raises(CallEnded, match="start > w does not run: the call start has ended"):
        await kept[0].run_turn("x")
    with pytest.raises(CallEnded, match="the call start has ended"):
        await kept[0].open()


async def test_a_context_of_a_chat_makes_calls_during_its_turns_only() -> None:
    contexts: list[Context] = []

    @entry
    async def one() -> int:
        return 1

    def keep(ctx: Context) -> AbstractToolset[Any]:
        contexts.append(ctx)
        return FunctionToolset()

    @entry
    async def use(ctx: RunContext[Context]) -> int:
        contexts.append(ctx.deps)
        return await contexts[0].call(one)

    model = scripted(says("first"), calls(("use", {})), says("second"))
    async with WorkerEntry(name="w", tools=[use], toolsets=[keep], model=model).start(Runtime()) as scope:
        await scope.run_turn("x")
        with pytest.raises(CallEnded, match="w > one does not run: the call w has ended"):
            await contexts[0].call(one)
        assert await scope.run_turn("y") == "second"
        with pytest.raises(CallEnded, match="the call w > use has ended"):
            await contexts[1].bind(one)()


def test_what_a_worker_is_given_is_kept_as_it_was() -> None:
    @entry
    def one() -> int:
        return 1

    tools = [one]
    worker = WorkerEntry(name="w", tools=(tool for tool in tools))  # type: ignore[arg-type]
    assert list(worker.tools) == [one]
    assert list(worker.own_entries) == ["one"]
    with pytest.raises(TypeError, match="must be a list"):
        WorkerEntry(name="w", toolsets="files")


async def test_a_call_that_outlives_its_turn_takes_no_slot_of_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toolset may call workers from a task of its own. The workers of the next turn do not wait until it is over."""
    monkeypatch.setattr("llm_do.core.loop.LOOK_AGAIN", 3600.0)  # so that no worker goes on without a slot
    inside, over = asyncio.Event(), asyncio.Event()
    contexts: list[Context] = []

    @entry
    async def wait() -> None:
        inside.set()
        await over.wait()

    def keep(ctx: Context) -> AbstractToolset[Any]:
        contexts.append(ctx)
        return FunctionToolset()

    slow = WorkerEntry(name="slow", tools=[wait], model=scripted(calls(("wait", {})), says("late")))
    quick = WorkerEntry(name="quick", model=scripted(says("at once")))
    late: list[asyncio.Task[str]] = []

    @entry
    async def begin() -> None:
        late.append(asyncio.create_task(contexts[0].call(slow, "x")))
        await inside.wait()

    model = scripted(calls(("begin", {})), says("first"), calls(("quick", {"input": "x"})), says("second"))
    worker = WorkerEntry(name="w", tools=[quick, begin], toolsets=[keep], model=model)
    async with worker.start(Runtime(max_concurrency=1)) as scope:
        assert await scope.run_turn("x") == "first"
        async with asyncio.timeout(5):
            assert await scope.run_turn("y") == "second"
        over.set()
        assert await late[0] == "late"


class _Late(Executor):
    """Takes long to write an answer down."""

    async def execute(self, entry: Any, arguments: dict[str, Any], ctx: Any, run_ctx: Any) -> Any:
        output = await entry.call(arguments, ctx, run_ctx)
        await asyncio.sleep(60)
        return output


class _Full:
    """A journal without room for answers."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, CallClosed) and event.state == "ok":
            raise OSError("disk full")


@pytest.mark.parametrize("options", [{"executor": _Late(), "limits": Limits(timeout=0.1)}, {"journal": _Full()}])
async def test_a_turn_that_fails_after_its_answer_leaves_the_conversation_as_it_was(options: dict[str, Any]) -> None:
    worker = WorkerEntry(name="w", model=TestModel())
    async with worker.start(Runtime([worker], **options)) as scope:
        with pytest.raises((CallTimeout, OSError)):
            await scope.run_turn("hello")
        assert scope.messages == [] and scope.frame.history_digest == ""
