"""Short storms, and one run that is cancelled at every step."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from llm_do import Runtime, WorkerEntry

from .storm import noting_complaints, storm


def test_a_storm_of_cancelled_calls_leaves_nothing_behind() -> None:
    """No open record, task, thread, descriptor or session; and the usage is what the models counted."""
    counts = asyncio.run(storm(calls=40, seed=12))
    assert counts.is_clean, str(counts)
    assert counts.cancelled and counts.limited and counts.streamed and counts.calls >= 40


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    yield "o"
    await asyncio.sleep(0)
    yield "k"


async def _cancel_twice(steps: int, then: int) -> tuple[bool, weakref.ref[Any]]:
    """Cancel a streamed call after some steps, and again. Return whether it was over before, and its session."""
    worker = WorkerEntry(name="w")
    model = FunctionModel(stream_function=_stream, model_name="m")
    runtime = Runtime([worker], model=model, text_deltas=True, message_callback=lambda event: None)
    before = asyncio.all_tasks()
    call = asyncio.create_task(runtime.call(worker, "x"))
    for _ in range(steps):
        await asyncio.sleep(0)
    was_over = call.done()
    for wait in (then, 0):
        call.cancel()
        for _ in range(wait):
            await asyncio.sleep(0)
    await asyncio.wait([call])
    assert call.cancelled() or was_over
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before, f"{steps}, {then}: tasks are left"
    assert all(record.duration is not None for record in runtime.trace)
    assert runtime.loop.requests_in_flight == 0, f"{steps}, {then}: a request is left open"
    return was_over, weakref.ref(runtime)


def test_a_stream_that_is_cancelled_twice_leaves_nothing_at_any_step() -> None:
    """No task, open request, complaint or session is left, wherever the two cancellations hit the run."""

    async def main() -> list[weakref.ref[Any]]:
        sessions = []
        for steps in range(200):
            was_over, session = await _cancel_twice(steps, then=2)  # while PydanticAI closes the stream
            sessions.append(session)
            if was_over:
                break
        else:
            raise AssertionError("the call is never over")
        gc.collect()
        await asyncio.sleep(0)
        return sessions

    async def observed() -> None:
        complaints: list[str] = []
        with noting_complaints(complaints):
            sessions = await main()
        assert not complaints
        assert not [session for session in sessions if session() is not None]

    asyncio.run(observed())
