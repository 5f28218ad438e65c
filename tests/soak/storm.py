"""A storm: `python -m tests.soak.storm [calls] [seed]` (`make soak`). Counts decide; times are only printed.

Trees of workers, tools, threads, turns and streams are cancelled once or several times, time out, or pass a limit, at
random. In the end nothing may be left: no open record, task, thread, descriptor or session, and the usage of every
session is what its model counted. A seed gives the same calls and the same cancellations, as far as threads and
timeouts allow it.
"""

import asyncio
import faulthandler
import gc
import os
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RequestUsage

from llm_do import CallCancelled, CallEnded, Context, LimitExceeded, Limits, Runtime, WorkerEntry, entry
from llm_do.machine import pool

CALLS_OF_A_SESSION = 20
SIDE_BY_SIDE = 4
TOOLS = ("pause", "in_thread", "inner", "foreign")
PATIENCE = 60.0
"""Seconds after which a session that is not over hangs."""


@dataclass
class Counts:
    """What a storm did, and what it left behind."""

    calls: int = 0
    cancelled: int = 0
    limited: int = 0
    streamed: int = 0
    records: int = 0
    requests: int = 0
    open_records: int = 0
    wrong_usage: int = 0
    unexpected: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not (self.open_records or self.wrong_usage or self.unexpected or any(self.left.values()))

    def __str__(self) -> str:
        left = ", ".join(f"{name} {number}" for name, number in self.left.items())
        return (
            f"calls {self.calls} ({self.streamed} streamed), cancelled {self.cancelled}, limited {self.limited}, "
            f"records {self.records}, requests {self.requests}\n"
            f"left behind: open records {self.open_records}, sessions with wrong usage {self.wrong_usage}, {left}"
            + "".join(f"\n  unexpected: {text}" for text in self.unexpected[:10])
        )


@entry
async def pause(x: int = 0) -> int:
    await asyncio.sleep(0.001 if x else 0)
    return x


@entry
def in_thread(ctx: RunContext[Context]) -> int:
    return ctx.deps.call_sync(pause, 1)


async def foreign() -> str:
    """A tool of a toolset."""
    await asyncio.sleep(0)
    return "foreign"


class Model:
    """Answers with a few tool calls, then with text, and counts what it answered. The prompt decides which."""

    def __init__(self) -> None:
        self.answers = 0

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> list[str]:
        offered = [name for name in TOOLS if name in {tool.name for tool in info.function_tools}]
        if not offered or isinstance(messages[-1].parts[0], TextPart) or len(messages) % 4 != 1:
            return []
        rng = random.Random(repr(getattr(messages[-1].parts[-1], "content", "")))
        return rng.sample(offered, rng.randint(1, len(offered)))

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(0 if len(messages) % 3 else 0.001)
        names = self._next(messages, info)
        parts = [ToolCallPart(name, {"input": "x"} if name == "inner" else {}) for name in names]
        self.answers += 1
        return ModelResponse(parts=parts or [TextPart("ok")], usage=RequestUsage(input_tokens=1, output_tokens=1))

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        names = self._next(messages, info)
        self.answers += 1  # from its first part on, a stream is paid
        for index, name in enumerate(names):
            yield {index: DeltaToolCall(name, '{"input": "x"}' if name == "inner" else "{}")}
            await asyncio.sleep(0)
        if not names:
            yield "o"
            await asyncio.sleep(0)
            yield "k"


async def _strike(cancel: Any, rng: random.Random) -> None:
    """Cancel after some steps of the loop, once or several times."""
    for _ in range(rng.randint(0, 80)):
        await asyncio.sleep(0)
    for _ in range(rng.choice((1, 1, 2, 3))):
        cancel()
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)


async def _call(runtime: Runtime, worker: WorkerEntry[str], rng: random.Random) -> None:
    prompt = str(rng.random())
    if rng.random() < 0.3:
        async with worker.start(runtime) as scope:
            for _ in range(2):
                await scope.run_turn(prompt)
    else:
        await runtime.call(worker, prompt)


async def _call_in_scope(runtime: Runtime, worker: WorkerEntry[str], rng: random.Random) -> bool:
    """Make a call in a scope of AnyIO, which cancels again at every step. Return whether that ended it."""
    with anyio.CancelScope() as scope:
        striking = asyncio.create_task(_strike(scope.cancel, rng))
        try:
            await _call(runtime, worker, rng)
        finally:
            striking.cancel()
    return scope.cancelled_caught


async def _one(runtime: Runtime, worker: WorkerEntry[str], rng: random.Random, counts: Counts) -> None:
    kind = rng.choice(("leave", "cancel", "cancel", "cancel", "scope"))
    counts.calls += 1
    try:
        if kind == "scope":
            counts.cancelled += await _call_in_scope(runtime, worker, rng)
            return
        task = asyncio.create_task(_call(runtime, worker, rng))
        if kind == "cancel":
            await _strike(task.cancel, rng)
        await task
    except asyncio.CancelledError:
        counts.cancelled += 1
    except (LimitExceeded, CallCancelled, CallEnded):
        counts.limited += 1
    except Exception as exc:
        counts.unexpected.append(f"{type(exc).__name__}: {exc}")


async def _session(seed: str, number: int, counts: Counts, sessions: list[weakref.ref[Any]]) -> None:
    """Make the calls of one session. Its number decides its kind, so that a short storm has all of them."""
    rng, model = random.Random(f"{seed}/{number}"), Model()
    streams = number % 2 == 0
    toolset = lambda ctx: FunctionToolset([foreign])  # noqa: E731
    inner = WorkerEntry(name="inner", tools=[pause, in_thread], toolsets=[toolset])
    outer = WorkerEntry(name="outer", tools=[inner, pause, in_thread], toolsets=[toolset])
    kinds = Limits(max_requests=rng.randint(1, 10)), Limits(timeout=rng.uniform(0.005, 0.1)), Limits()
    limits = kinds[number % 3]
    runtime = Runtime(
        [outer, inner],
        model=FunctionModel(model.answer, stream_function=model.stream, model_name="m"),
        limits=limits,
        max_concurrency=rng.choice((1, 2, 32)),
        text_deltas=streams,
        message_callback=(lambda event: None) if streams else None,
    )
    sessions.append(weakref.ref(runtime))
    for _ in range(CALLS_OF_A_SESSION // SIDE_BY_SIDE):
        one_each = [random.Random(rng.random()) for _ in range(SIDE_BY_SIDE)]
        await asyncio.gather(*(_one(runtime, outer, each, counts) for each in one_each))
        counts.streamed += streams * SIDE_BY_SIDE
    used = runtime.usage.get("m")
    requests = used.requests if used is not None else 0
    if requests != model.answers:
        counts.wrong_usage += 1
        counts.unexpected.append(
            f"session {seed}/{number}: {requests} requests are counted, {model.answers} were answered"
        )
    counts.requests += requests
    counts.records += len(runtime.trace)
    counts.open_records += sum(record.duration is None for record in runtime.trace)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


@contextmanager
def noting_complaints(into: list[str]) -> Iterator[None]:
    """Note what asyncio, the garbage collector and `warnings` complain about."""
    loop, hook, of_generators = asyncio.get_running_loop(), sys.unraisablehook, sys.get_asyncgen_hooks()

    def note_open(generator: Any) -> None:
        # PydanticAI leaves iterators of events to the collector, which close in one step. A request must not be left.
        if generator.__name__ == "request_stream":
            into.append(f"an open request was left: {generator!r}")
        assert of_generators.finalizer is not None
        of_generators.finalizer(generator)

    sys.set_asyncgen_hooks(finalizer=note_open)
    loop.set_exception_handler(lambda _, context: into.append(" ".join(str(value) for value in context.values())))
    sys.unraisablehook = lambda told: into.append(repr(told.exc_value))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            sys.unraisablehook = hook
            sys.set_asyncgen_hooks(finalizer=of_generators.finalizer)
            loop.set_exception_handler(None)
    into += [str(each.message) for each in said]


async def _in_time(seed: str, number: int, counts: Counts, sessions: list[weakref.ref[Any]]) -> None:
    """Run a session. One that hangs is an error that shows where each of its tasks stands."""
    session = asyncio.create_task(_session(seed, number, counts, sessions))
    await asyncio.wait([session], timeout=PATIENCE)
    if not session.done():
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)
        faulthandler.dump_traceback()
        raise AssertionError(f"session {seed}/{number} hangs")
    await session


async def storm(calls: int, seed: int) -> Counts:
    """Make so many calls, and count what is left of them."""
    counts, sessions = Counts(), list[weakref.ref[Any]]()
    await _session(f"{seed}", 2, Counts(), [])  # what is made once is not left behind
    await asyncio.sleep(0)
    tasks, descriptors, threads = asyncio.all_tasks(), _descriptors(), set(threading.enumerate())
    idle, pool._SECONDS_IDLE = pool._SECONDS_IDLE, 0.1
    with noting_complaints(counts.unexpected):
        number = 0
        while counts.calls < calls:
            await _in_time(str(seed), number, counts, sessions)
            number += 1
        for _ in range(400):
            await asyncio.sleep(0.005)
            if asyncio.all_tasks() <= tasks and threads.issuperset(threading.enumerate()):
                break
        gc.collect()
        await asyncio.sleep(0.01)
    pool._SECONDS_IDLE = idle
    counts.unexpected += [f"left: {task!r}" for task in asyncio.all_tasks() - tasks]
    counts.left = {
        "tasks": len(asyncio.all_tasks() - tasks),
        "sessions": sum(session() is not None for session in sessions),
        "descriptors": max(0, _descriptors() - descriptors),
        "threads": len(set(threading.enumerate()) - threads),
    }
    return counts


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    print(f"{calls} calls, seed {seed}, PydanticAI {version('pydantic-ai-slim')}", flush=True)
    began = time.perf_counter()
    counts = asyncio.run(storm(calls, seed))
    print(f"{counts}\n{time.perf_counter() - began:.0f} s")
    return 0 if counts.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
