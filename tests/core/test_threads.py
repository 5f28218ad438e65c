"""Threads of synchronous functions: how many there are, and that none of them keeps a program."""

import asyncio
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import pytest
from pydantic_ai import RunContext, Tool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import CallTimeout, Context, Limits, Runtime, ToolEntry, WorkerEntry, entry
from llm_do.core import threads as threads_module
from llm_do.core.events import Event
from llm_do.core.frame import CallFrame
from llm_do.errors import EventLoopError, ToolTimeout
from llm_do.machine import pool

from ..processes import PATIENCE, start_interruptible
from ..scripted import by_tools, calls, scripted

PLACES = 40

PROGRAM = """
import asyncio, os, threading, time, traceback
from llm_do import CallTimeout, Limits, Runtime, entry

@entry
def hang() -> None:
    time.sleep(0.3)  # asyncio loses an interrupt that comes just before its loop begins to wait
    # Not by print: Python aborts if a thread that never ends still holds the lock of a stream at the end.
    os.write(1, b"started\\n")
    threading.Event().wait()

def call_async(runtime):
    asyncio.run(runtime.call("hang"))

def call_sync(runtime):
    runtime.call_sync("hang")

for call in (call_sync, call_async):
    try:
        call(Runtime([hang], limits=Limits(timeout=0.6)))
    except CallTimeout as exc:
        print(exc, flush=True)
try:
    call_sync(Runtime([hang]))
except KeyboardInterrupt:
    traceback.print_exc()
call_async(Runtime([hang]))
"""


class Hanging:
    """A synchronous function that hangs until it is let go."""

    def __init__(self) -> None:
        self.started = 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def hang(self) -> str:
        """Hang."""
        with self._lock:
            self.started += 1
        self.go_on.wait()
        return "over"

    async def until_started(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.started < number:
                await asyncio.sleep(0.005)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go_on.set()


async def cancelled(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_program_ends_though_a_synchronous_tool_hangs() -> None:
    """When the time is up, and at Ctrl-C: at once, with the name of the tool that it left."""
    program = start_interruptible([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    left = "Time is up after 0.6 s (Limits.timeout), in hang. Left running, since threads cannot be stopped: hang.\n"
    assert [program.stdout.readline() for _ in range(4)] == ["started\n", left] * 2
    for _ in range(2):
        assert program.stdout.readline() == "started\n"
        program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=PATIENCE)
    assert program.returncode == -signal.SIGINT, err
    assert err.count("llm-do left hang running: its thread cannot be stopped.") == 2


async def test_the_threads_of_cancelled_calls_keep_their_places(hanging: Hanging) -> None:
    """So there are never more of them than places, and a waiting call is told which calls hold these."""
    tool = ToolEntry.from_function(hanging.hang)
    runtime = Runtime([tool], limits=Limits(timeout=0.05))
    for number in (400, 1):
        errors = await asyncio.gather(*(runtime.call("hang") for _ in range(number)), return_exceptions=True)
        assert {type(error) for error in errors} == {CallTimeout}
        assert hanging.started <= PLACES
        assert str(errors[-1]).startswith(
            "Time is up after 0.05 s (Limits.timeout), in hang, which waited for a thread: "
            "all 40 of its depth are held by hang (40 times)"
        )
    assert runtime.trace[-1].error == f"CallTimeout: {errors[-1]}"
    hanging.go_on.set()
    async with asyncio.timeout(PATIENCE):
        while runtime.loop.threads.left_running():
            await asyncio.sleep(0.005)
        assert await runtime.call("hang") == "over"


def test_they_keep_them_over_event_loops(hanging: Hanging) -> None:
    """`call_sync` has one for each call."""
    runtime = Runtime([ToolEntry.from_function(hanging.hang)], limits=Limits(timeout=0.002))
    threads = runtime.loop.threads
    while threads.left_running() != "hang (40 times)":
        with pytest.raises(CallTimeout):
            runtime.call_sync("hang")
    with pytest.raises(CallTimeout, match="which waited for a thread"):
        runtime.call_sync("hang")
    ends = time.monotonic() + PATIENCE
    while hanging.started < PLACES and time.monotonic() < ends:  # a thread has its place before it begins
        time.sleep(0.005)
    assert hanging.started == PLACES


async def test_a_tool_with_a_timeout_says_that_it_waited_for_a_thread(hanging: Hanging) -> None:
    hang, quick = ToolEntry.from_function(hanging.hang), ToolEntry(Tool(lambda: "quick", name="quick", timeout=0.01))
    runtime = Runtime([hang, quick])
    tasks = [asyncio.create_task(runtime.call("hang")) for _ in range(PLACES)]
    await hanging.until_started(PLACES)
    with pytest.raises(
        ToolTimeout, match=r"0\.01 seconds\. It waited for a thread: all 40 of its depth are held by hang"
    ):
        await runtime.call("quick")
    hanging.go_on.set()
    assert await asyncio.gather(*tasks) == ["over"] * PLACES
    assert await runtime.call("quick") == "quick"


async def test_a_call_that_waits_long_for_a_thread_is_told_once(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads_module, "SECONDS_BEFORE_NOTICE", 0.01)
    told: list[Event] = []
    heard = asyncio.Event()

    def hear(event: Event) -> None:
        if event.type == "notice":
            told.append(event)
            heard.set()

    runtime = Runtime([ToolEntry.from_function(hanging.hang)], message_callback=hear)
    left = [asyncio.create_task(runtime.call("hang")) for _ in range(3)]
    await hanging.until_started(3)
    await cancelled(left)
    tasks = [asyncio.create_task(runtime.call("hang")) for _ in range(PLACES)]
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    hanging.go_on.set()
    assert await asyncio.gather(*tasks) == ["over"] * PLACES
    assert [event.text for event in told if event.type == "notice"] == [
        "hang waits for a thread: all 40 of its depth are held by hang (40 times), "
        "3 of them for calls that were cancelled."
    ]


async def test_threads_of_foreign_tools_keep_their_places_too(hanging: Hanging) -> None:
    def foreign(ctx: Context) -> AbstractToolset[Any]:
        return FunctionToolset([hanging.hang])

    worker = WorkerEntry(name="w", toolsets=[foreign])
    runtime = Runtime([worker], model=scripted(calls(*[("hang", {})] * 60)))
    for _ in range(2):
        task = asyncio.create_task(runtime.call("w", "go"))
        await hanging.until_started(PLACES)
        while len(runtime.trace) % 61:
            await asyncio.sleep(0.005)
        await cancelled([task])
    assert hanging.started == PLACES
    dropped = [record for record in runtime.trace if "thread cannot be stopped" in (record.error or "")]
    assert len(dropped) == PLACES
    assert runtime.loop.threads.left_running() == "w > hang (40 times)"


async def test_a_synchronous_entry_can_use_anyio_and_sees_context_variables() -> None:
    """As in a thread of AnyIO's own."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def upper(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    @entry
    def uses() -> tuple[str, str, int]:
        anyio.from_thread.check_cancelled()
        seen = variable.get()
        variable.set("of the thread")
        own_loop: int = anyio.run(anyio.sleep, 0) or 1
        return seen, anyio.from_thread.run(upper, "x"), own_loop

    variable.set("of the caller")
    assert await Runtime([uses]).call("uses") == ("of the caller", "X", 1)
    assert variable.get() == "of the caller"


async def test_a_synchronous_entry_may_raise_what_no_future_takes() -> None:
    @entry
    def stops() -> None:
        raise StopIteration("x")

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await Runtime([stops]).call("stops")


async def test_a_call_fails_where_the_system_has_no_thread_to_give(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for a place get a thread that is there already."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool, "_idle", [])
    runtime = Runtime([ToolEntry.from_function(hanging.hang)])
    held = [asyncio.create_task(runtime.call("hang")) for _ in range(PLACES)]
    await hanging.until_started(PLACES)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", NoThread)
        calls = [asyncio.create_task(runtime.context().call("hang")) for _ in range(100)]
        while len(runtime.trace) < PLACES + 100:
            await asyncio.sleep(0)
        deeper = ToolEntry(Tool(lambda ctx: ctx.deps.call_sync("hang"), name="deeper", takes_ctx=True))
        hanging.go_on.set()
        assert await asyncio.gather(*held, *calls) == ["over"] * (PLACES + 100)
        monkeypatch.setattr(pool, "_idle", [])
        with pytest.raises(RuntimeError, match="can't start new thread") as caught:
            await runtime.call(deeper)
    assert "llm-do could not run deeper: a synchronous function needs a thread." in caught.value.__notes__
    assert await runtime.call(deeper) == "over"


def test_a_call_whose_loop_is_gone_does_not_run_when_a_place_is_free(hanging: Hanging) -> None:
    """Though no cancellation reached it."""
    ran: list[str] = []
    tools = [ToolEntry.from_function(hanging.hang), ToolEntry(Tool(lambda: ran.append("late"), name="late"))]
    runtime = Runtime(tools)
    threads = runtime.loop.threads
    loop = asyncio.new_event_loop()
    held = [loop.create_task(runtime.call("hang")) for _ in range(PLACES)]
    loop.run_until_complete(hanging.until_started(PLACES))
    late = loop.create_task(runtime.call("late"))
    while not threads._waiting[0]:
        loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(cancelled(held))
    with suppress(RuntimeError):  # there is no loop to clean up in
        late.get_coro().close()
    late._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    hanging.go_on.set()
    assert runtime.call_sync("hang") == "over"
    assert ran == []


async def test_a_foreign_tool_may_use_its_executor_from_its_threads(hanging: Hanging) -> None:
    """Where no loop runs, also when there is no place."""
    holder = ToolEntry.from_function(hanging.hang)
    runtime = Runtime([holder])
    left = [asyncio.create_task(runtime.call("hang")) for _ in range(PLACES)]
    await hanging.until_started(PLACES)
    frame = CallFrame(holder, runtime.context().frame)
    await cancelled(left)
    executor = threads_module.ThreadsOfCall(runtime.loop.threads, frame)
    futures = await asyncio.to_thread(lambda: [executor.submit(str.upper, "x") for _ in range(50)])
    hanging.go_on.set()
    assert [await asyncio.wrap_future(future) for future in futures] == ["X"] * 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("in_task", [False, True])
async def test_calls_through_the_runtime_need_no_place_that_their_callers_hold(in_task: bool) -> None:
    """At no depth below them, and also from a task that a tool starts."""
    number = PLACES + 5
    all_hold = threading.Barrier(PLACES)
    arrivals = itertools.count()

    @entry
    def small() -> str:
        return "small"

    @entry
    async def spawn() -> str:
        return await asyncio.create_task(runtime.call("nested"))

    @entry
    def nested(ctx: RunContext[Context]) -> str:
        return str(ctx.deps.call_sync(small))

    @entry
    def again() -> str:
        if next(arrivals) < PLACES:
            all_hold.wait(PATIENCE)
        return str(runtime.call_sync(leaf, "x"))

    @entry
    async def outer(ctx: RunContext[Context]) -> str:
        return await ctx.deps.call(again)

    tool = spawn if in_task else small
    leaf = WorkerEntry(name="leaf", model=by_tools({tool.name: calls((tool.name, {}))}), tools=[tool])
    runtime = Runtime([outer, again, nested, small], limits=Limits(timeout=30))
    # The tool of the leaf is at depth 1, as `again` is; what `spawn` calls is at the depths 0 and 1.
    assert set(await asyncio.gather(*(runtime.call("outer") for _ in range(number)))) == {"small"}


def test_an_interrupt_ends_the_call_that_another_thread_serves() -> None:
    """Ctrl-C ends the wait of the main thread. Nothing else would end its call."""
    go_on, ended = threading.Event(), threading.Event()
    running = threading.Barrier(2)

    @entry
    async def wait(interrupt: bool) -> None:
        if interrupt:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        await pool.run(running.wait, PATIENCE)
        await pool.run(go_on.wait, PATIENCE)

    runtime = Runtime([wait])
    owner = threading.Thread(target=runtime.call_sync, args=("wait",), kwargs={"interrupt": False})
    owner.start()
    running.wait(PATIENCE)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            runtime.call_sync("wait", interrupt=True)
    finally:
        signal.signal(signal.SIGINT, before)
    has_ended = ended.wait(30)
    go_on.set()
    owner.join()
    assert has_ended  # while the loop still runs, which cancels what is left when it ends
    assert [record.error for record in runtime.trace] == [None, "cancelled"]


def test_a_call_that_ends_with_the_loop_of_another_thread_says_so() -> None:
    """It is no cancellation of the thread that made the call."""
    started = threading.Event()
    errors: list[BaseException] = []

    @entry
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    @entry
    async def be_quick() -> None:
        """Bind the session to the loop."""

    runtime = Runtime([wait, be_quick])

    def call() -> None:
        try:
            runtime.call_sync("wait")
        except BaseException as exc:
            errors.append(exc)

    async def serve() -> None:
        await runtime.call("be_quick")
        thread.start()
        await asyncio.to_thread(started.wait, PATIENCE)

    thread = threading.Thread(target=call, daemon=True)
    asyncio.run(serve())
    thread.join(PATIENCE)
    [error] = errors
    assert isinstance(error, EventLoopError)
    assert "The event loop that served the call ended before the call did" in str(error)
    assert [record.duration is not None for record in runtime.trace] == [True, True]


class Callers:
    """Threads that call entries of one runtime, and the result of each call."""

    def __init__(self) -> None:
        self.events: dict[str, threading.Event] = defaultdict(threading.Event)
        self.results: dict[str, Any] = {}
        self.runtime = Runtime([entry(self.work), entry(self.leave_thread)])

    async def work(self, name: str, error: type[BaseException] | None = None) -> str:
        self.events[f"{name} runs"].set()
        await pool.run(self.events[name].wait, PATIENCE)
        if error is not None:
            raise error
        return name

    async def leave_thread(self) -> None:
        """Return while a thread of the loop goes on, and calls."""
        asyncio.get_running_loop().run_in_executor(None, self._call_when_closing)

    def _call_when_closing(self) -> None:
        self.events["left"].wait(PATIENCE)
        self.results["left"] = self.runtime.call_sync("work", "x")

    def start(self, name: str, error: type[BaseException] | None = None) -> threading.Thread:
        def call() -> None:
            try:
                self.results[name] = self.runtime.call_sync("work", name, error=error)
            except BaseException as exc:
                self.results[name] = type(exc)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        assert self.events[f"{name} runs"].wait(PATIENCE)
        return thread

    def end(self, name: str, thread: threading.Thread) -> None:
        self.events[name].set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("served_by", ["its caller", "a caller that still waits", "a thread of the pool"])
def test_the_end_of_a_thread_ends_no_call_of_another_thread(error: type[BaseException], served_by: str) -> None:
    """`sys.exit` and a cancellation are for the thread whose call raised them, whichever thread runs the loop."""
    callers = Callers()
    names = ["first", "ends", "last"] if served_by != "its caller" else ["ends", "first", "last"]
    threads = {name: callers.start(name, error if name == "ends" else None) for name in names}
    if served_by == "a thread of the pool":
        callers.end("first", threads["first"])
    for name in ("ends", "last", "first"):
        callers.end(name, threads[name])
    assert {**callers.results, "ends": None} == {"first": "first", "last": "last", "ends": None}
    # A guest has no task of its own that was cancelled.
    assert callers.results["ends"] in (error, EventLoopError if error is asyncio.CancelledError else error)


def test_a_thread_leaves_the_loop_of_others_after_one_that_was_broken() -> None:
    """A loop that broke while the pool ran it gets no message when a guest leaves."""
    callers = Callers()
    threads = {name: callers.start(name) for name in ("first", "second")}
    callers.end("first", threads["first"])
    loop = callers.runtime.loop.current
    assert loop is not None
    loop.call_soon_threadsafe(sys.exit)
    callers.end("second", threads["second"])
    assert callers.results.pop("second") is EventLoopError
    threads = {name: callers.start(name) for name in ("third", "fourth")}
    callers.end("fourth", threads["fourth"])
    callers.end("third", threads["third"])
    assert callers.results == {"first": "first", "third": "third", "fourth": "fourth"}


def test_a_thread_that_a_loop_waits_for_at_its_end_can_call() -> None:
    """Such as one of `asyncio.to_thread`: each would wait for the other."""
    callers = Callers()
    closing = threading.Thread(target=callers.runtime.call_sync, args=("leave_thread",), daemon=True)
    closing.start()
    callers.events["x"].set()
    session = callers.runtime.loop
    ends = time.monotonic() + PATIENCE
    while (session.current is None or session.find_running() is not None) and time.monotonic() < ends:
        time.sleep(0.001)
    callers.events["left"].set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert callers.results == {"left": "x"}


async def test_a_forked_process_begins_with_all_places(hanging: Hanging) -> None:
    """A fork copies no threads, so none of them will ever give a place back."""
    runtime = Runtime([ToolEntry.from_function(hanging.hang), ToolEntry(Tool(lambda: "quick", name="quick"))])
    left = [asyncio.create_task(runtime.call("hang")) for _ in range(PLACES)]
    await hanging.until_started(PLACES)
    await cancelled(left)
    threads, (read, write) = runtime.loop.threads, os.pipe()
    with threads._lock:  # as another thread may hold it
        child = os.fork()
    if not child:
        try:
            thread = threads_module.CallThread(CallFrame(None, runtime.context().frame), has_place=True)
            thread.job = pool.Job(lambda: os.write(write, b"quick"), lambda result, error: None)
            started = threads.submit(thread)
            threading.Event().wait(PATIENCE if started else 0)
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 10) == b"quick"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it was killed
        os.close(read)


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    """That of its parent looks as if it ran there, and never serves a call."""
    running, go_on = threading.Event(), threading.Event()

    @entry
    async def wait() -> None:
        running.set()
        await pool.run(go_on.wait, PATIENCE)

    @entry
    async def double(x: int) -> int:
        return 2 * x

    runtime = Runtime([wait, double])
    owner = threading.Thread(target=runtime.call_sync, args=("wait",))
    owner.start()
    running.wait(PATIENCE)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, str(runtime.call_sync("double", 21)).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        assert select.select([read], [], [], PATIENCE)[0] and os.read(read, 10) == b"42"
        assert runtime.call_sync("double", 4) == 8
    finally:
        go_on.set()
        owner.join(PATIENCE)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
