"""Threads of synchronous functions: how many there are, and that none of them keeps a program."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import pytest
from pydantic_ai import Tool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from llm_do import CallTimeout, Context, Limits, Runtime, ToolEntry, WorkerEntry, entry
from llm_do import threads as threads_module
from llm_do.errors import ToolTimeout
from llm_do.events import Event

from .processes import PATIENCE, start_interruptible
from .scripted import calls, scripted

PLACES = 40

PROGRAM = """
import asyncio, sys, threading
from llm_do import CallTimeout, Limits, Runtime, entry

@entry
def hang() -> None:
    print("started", flush=True)
    threading.Event().wait()

def call_sync(runtime):
    runtime.call_sync("hang")

def call_async(runtime):
    asyncio.run(runtime.call("hang"))

first, second = (call_sync, call_async) if sys.argv[1] == "sync" else (call_async, call_sync)
try:
    first(Runtime([hang], limits=Limits(timeout=0.1)))
except CallTimeout as exc:
    print(exc, flush=True)
second(Runtime([hang]))
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
    for program in [
        start_interruptible([sys.executable, "-c", PROGRAM, first], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for first in ("sync", "async")
    ]:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(3)] == [
            "started\n",
            "Time is up after 0.1 s (Limits.timeout), in hang. Left running, since threads cannot be stopped: hang.\n",
            "started\n",
        ]
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=PATIENCE)
        assert program.returncode == -signal.SIGINT
        assert "llm-do left hang running: its thread cannot be stopped." in err


async def test_the_threads_of_cancelled_calls_keep_their_places(hanging: Hanging) -> None:
    """So that there are never more of them than places, and those who wait are told who has these."""
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
        while runtime.context().session.threads.left_running():
            await asyncio.sleep(0.005)
        assert await runtime.call("hang") == "over"


def test_they_keep_them_over_event_loops(hanging: Hanging) -> None:
    """`call_sync` has one for each call."""
    runtime = Runtime([ToolEntry.from_function(hanging.hang)], limits=Limits(timeout=0.002))
    threads = runtime.context().session.threads
    while threads.left_running() != "hang (40 times)":
        with pytest.raises(CallTimeout):
            runtime.call_sync("hang")
    with pytest.raises(CallTimeout, match="which waited for a thread"):
        runtime.call_sync("hang")
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
    assert runtime.context().session.threads.left_running() == "w > hang (40 times)"


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
