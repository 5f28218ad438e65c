"""A storm: `python -m tests.soak.storm [calls]` (`make soak`). Counts decide; times are only printed.

Trees of workers, tools, threads, turns and streams are cancelled once or several times, time out, or pass a limit, at
random. In the end nothing may be left: no open record, task, thread, descriptor or session, and the usage of every
session is what its model counted.
"""

import asyncio
import gc
import os
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RequestUsage

from llm_do import CallCancelled, CallEnded, Context, LimitExceeded, Limits, Runtime, WorkerEntry, entry

CALLS_OF_A_SESSION = 20
SIDE_BY_SIDE = 4
TOOLS = ("pause", "in_thread", "inner", "foreign")


@dataclass
class Counts:
    """What a storm did, and what it left behind."""

    calls: int = 0
    cancelled: int = 0
    limited: int = 0
    records: int = 0
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
            f"calls {self.calls}, cancelled {self.cancelled}, limited {self.limited}, records {self.records}; "
            f"left behind: open records {self.open_records}, sessions with wrong usage {self.wrong_usage}, {left}"
            + "".join(f"\n  unexpected: {text}" for text in self.unexpected[:10])
        )


@entry
async def pause(x: int = 0) -> int:
    await asyncio.sleep(random.choice((0, 0, 0.001)))
    return x


@entry
def in_thread(ctx: RunContext[Context]) -> int:
    return ctx.deps.call_sync(pause, 1)


async def foreign() -> str:
    """A tool of a toolset."""
    await asyncio.sleep(0)
    return "foreign"


class Model:
    """Answers with a few tool calls, then with text, and counts what it answered."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.answers = rng, 0

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> list[str]:
        offered = [name for name in TOOLS if name in {tool.name for tool in info.function_tools}]
        return [] if len(messages) > 1 or not offered else self.rng.sample(offered, self.rng.randint(1, len(offered)))

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(self.rng.choice((0, 0, 0.001)))
        names = self._next(messages, info)
        parts = [ToolCallPart(name, {"input": "x"} if name == "inner" else {}) for name in names]
        self.answers += 1
        return ModelResponse(parts=parts or [TextPart("ok")], usage=RequestUsage(input_tokens=1, output_tokens=1))

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for index, name in enumerate(self._next(messages, info)):
            await asyncio.sleep(0)
            yield {index: DeltaToolCall(name, '{"input": "x"}' if name == "inner" else "{}")}
        if len(messages) > 1:
            yield "o"
            await asyncio.sleep(0)
            yield "k"


async def _strike(task: asyncio.Task[Any], rng: random.Random) -> None:
    """Cancel a task after some steps of the loop, once or several times."""
    for _ in range(rng.randint(0, 60)):
        await asyncio.sleep(0)
    for _ in range(rng.choice((1, 1, 2, 3))):
        task.cancel()
        await asyncio.sleep(0)


async def _call(runtime: Runtime, worker: WorkerEntry[str], rng: random.Random) -> None:
    if rng.random() < 0.3:
        async with worker.start(runtime) as scope:
            for _ in range(2):
                await scope.run_turn("x")
    else:
        await runtime.call(worker, "x")


async def _one(runtime: Runtime, worker: WorkerEntry[str], rng: random.Random, counts: Counts) -> None:
    kind = rng.choice(("leave", "cancel", "cancel", "cancel", "scope"))
    counts.calls += 1
    try:
        if kind == "scope":  # anyio cancels again and again
            with anyio.move_on_after(rng.uniform(0, 0.02)) as scope:
                await _call(runtime, worker, rng)
            counts.cancelled += scope.cancelled_caught
            return
        task = asyncio.create_task(_call(runtime, worker, rng))
        if kind == "cancel":
            await _strike(task, rng)
        await task
    except asyncio.CancelledError:
        counts.cancelled += 1
    except (LimitExceeded, CallCancelled, CallEnded):
        counts.limited += 1
    except Exception as exc:
        counts.unexpected.append(f"{type(exc).__name__}: {exc}")


async def _session(rng: random.Random, counts: Counts, sessions: list[weakref.ref[Any]], streams: bool) -> None:
    model, streams = Model(rng), streams and rng.random() < 0.3
    toolset = lambda ctx: FunctionToolset([foreign])  # noqa: E731
    inner = WorkerEntry(name="inner", tools=[pause, in_thread], toolsets=[toolset])
    outer = WorkerEntry(name="outer", tools=[inner, pause, in_thread], toolsets=[toolset])
    limits = rng.choice((Limits(), Limits(timeout=rng.uniform(0.005, 0.1)), Limits(max_requests=rng.randint(1, 30))))
    runtime = Runtime(
        [outer, inner],
        model=FunctionModel(model.answer, stream_function=model.stream, model_name="m"),
        limits=limits,
        max_concurrency=rng.choice((1, 2, 32)),
        text_deltas=streams,
        message_callback=(lambda event: None) if streams else None,
    )
    sessions.append(weakref.ref(runtime.context().session))
    for _ in range(CALLS_OF_A_SESSION // SIDE_BY_SIDE):
        await asyncio.gather(*(_one(runtime, outer, rng, counts) for _ in range(SIDE_BY_SIDE)))
    used = runtime.usage.get("m")
    if not streams and (used.requests if used is not None else 0) != model.answers:
        counts.wrong_usage += 1
    counts.records += len(runtime.trace)
    counts.open_records += sum(record.duration is None for record in runtime.trace)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


async def storm(calls: int, seed: int, *, streams: bool = True) -> Counts:
    """Make so many calls, and count what is left of them."""
    counts, sessions = Counts(), list[weakref.ref[Any]]()
    rng = random.Random(seed)
    await _session(rng, Counts(), [], streams)  # what is made once is not left behind
    tasks, descriptors = asyncio.all_tasks(), _descriptors()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        complaints: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: complaints.append(" ".join(str(value) for value in context.values()))
        )
        hook, sys.unraisablehook = sys.unraisablehook, lambda told: complaints.append(repr(told.exc_value))
        try:
            while counts.calls < calls:
                await _session(rng, counts, sessions, streams)
            for _ in range(200):
                await asyncio.sleep(0.005)
                if not asyncio.all_tasks() - tasks:
                    break
            gc.collect()
            gc.collect()
            await asyncio.sleep(0)
        finally:
            sys.unraisablehook = hook
            loop.set_exception_handler(None)
    counts.unexpected += complaints + [str(each.message) for each in said]
    counts.left = {
        "tasks": len(asyncio.all_tasks() - tasks),
        "sessions": sum(session() is not None for session in sessions),
        "descriptors": max(0, _descriptors() - descriptors),
        # Idle threads of anyio end with the loop; there are never more than calls side by side had.
        "threads": max(0, threading.active_count() - 1 - 8 * SIDE_BY_SIDE),
    }
    return counts


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    print(f"{calls} calls, seed {seed}", flush=True)
    began = time.perf_counter()
    counts = asyncio.run(storm(calls, seed))
    print(f"{counts}\nthreads after the loop: {threading.active_count()}; {time.perf_counter() - began:.0f} s")
    return 0 if counts.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
