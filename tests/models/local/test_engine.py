"""One process with a model, and the requests of many event loops."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    Tool,
)
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from llm_do import (
    LocalModel,
    LocalModelError,
    Runtime,
    TextDelta,
    WorkerEntry,
)
from llm_do.models.local import engine as engine_module
from llm_do.models.local.engine import Chunk, End, Engine, get_engine

from .questions import QUESTION, STORY, add, answer_text, weather


async def test_two_runs_at_once_do_not_mix(model: LocalModel) -> None:
    questions = ["What is tea?", "Name a colour.", "Who are you?"]
    agent = Agent(model, model_settings={"max_tokens": 12})
    alone = [(await agent.run(question)).output for question in questions]
    together = await asyncio.gather(*(agent.run(question) for question in questions))
    assert [result.output for result in together] == alone


async def test_it_is_loaded_once(model: LocalModel, file: Path) -> None:
    engine = get_engine(file, 8192)
    await Agent(model).run("Hello!", model_settings={"max_tokens": 1})
    loaded = engine.process_id
    await Agent(LocalModel("smollm2-135m")).run("Hello!", model_settings={"max_tokens": 1})
    assert loaded is not None and engine.process_id == loaded


def test_one_model_serves_several_event_loops(model: LocalModel) -> None:
    agent = Agent(model, model_settings={"max_tokens": 8})
    heard: list[str] = []

    def ask() -> None:
        heard.append(asyncio.run(agent.run("Name a colour.")).output)

    ask()
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [heard[0]] * 4


async def test_the_event_loop_goes_on_while_it_loads_and_generates(file: Path) -> None:
    engine = Engine(file, 2048)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await answer_text(engine, {**QUESTION, "max_tokens": 60})
    ticking.cancel()
    engine.close()
    assert ticks > 10


async def test_cancelling_frees_the_engine(model: LocalModel, file: Path) -> None:
    agent = Agent(model, model_settings={"max_tokens": 2000, "extra_body": {"ignore_eos": True}})
    started = asyncio.Event()

    async def listen() -> None:
        async with agent.run_stream("Tell me a long story.") as stream:
            async for _ in stream.stream_text(delta=True, debounce_by=None):
                started.set()

    task = asyncio.create_task(listen())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # 2000 tokens take far longer than this test may: it was broken off.
    assert await answer_text(get_engine(file, 8192), QUESTION)


async def test_a_stream_can_be_cancelled(model: LocalModel) -> None:
    """While it is at an object, too: it is not tried again."""
    asked = ModelRequestParameters(function_tools=[Tool(add).tool_def, Tool(weather).tool_def])
    question: list[ModelMessage] = [ModelRequest.user_text_prompt("What is 2 plus 3?")]
    async with model.request_stream(question, None, asked) as stream:
        events = aiter(stream)
        first = asyncio.ensure_future(anext(events))
        while not stream.usage.output_tokens:
            await asyncio.sleep(0.01)
        await stream.cancel()
        with pytest.raises(StopAsyncIteration):
            await first
    assert stream.get().state == "interrupted" and stream.get().parts == []


async def test_what_a_cancelled_run_has_used_is_counted(model: LocalModel) -> None:
    worker = WorkerEntry(name="writer", instructions="", model_settings={"extra_body": {"ignore_eos": True}})
    heard = asyncio.Event()

    class Listener:
        def on_event(self, event: Any) -> None:
            if isinstance(event, TextDelta):
                heard.set()

    runtime = Runtime([worker], model=model, sinks=[Listener()], text_deltas=True)
    task = asyncio.create_task(runtime.call("writer", "Tell me a long story."))
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    usage = runtime.usage["smollm2-135m"]
    assert usage.input_tokens > 5 and usage.output_tokens >= 1


async def test_a_request_that_waits_can_be_cancelled(file: Path) -> None:
    engine = get_engine(file, 8192)
    running, waiting = engine.answer({**STORY, "ignore_eos": True}), engine.answer(QUESTION)
    first = await anext(running)
    assert isinstance(first, Chunk)
    waiting.close()
    running.close()
    assert await answer_text(engine, QUESTION)
    with pytest.raises(LocalModelError, match="broken off"):
        await anext(waiting)


async def test_a_process_that_dies_is_an_error_and_the_next_request_has_another(file: Path) -> None:
    engine = Engine(file, 2048)
    answer = engine.answer({**STORY, "ignore_eos": True})
    await anext(answer)
    assert engine.process_id is not None
    os.kill(engine.process_id, signal.SIGKILL)
    with pytest.raises(LocalModelError, match=r"ended \(code -9\).*memory runs out"):
        async for _ in answer:
            pass
    assert await answer_text(engine, QUESTION)
    engine.close()


async def test_usage_is_exact(file: Path) -> None:
    pieces = [piece async for piece in get_engine(file, 8192).answer(QUESTION)]
    end = pieces[-1]
    assert isinstance(end, End) and end.input_tokens > 10 and end.output_tokens == 8 and end.finish == "length"
    told = [piece.input_tokens for piece in pieces[:-1] if isinstance(piece, Chunk) and piece.input_tokens]
    assert told == [end.input_tokens]


async def test_a_conversation_that_is_too_long_is_an_error_with_numbers(model: LocalModel, file: Path) -> None:
    small = LocalModel(str(file), context=256)
    with pytest.raises(LocalModelError, match=r"has \d+ tokens.*room for 256.*context="):
        await Agent(small).run("tea " * 500)


async def test_cancelling_a_request_that_waits_touches_no_other(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it leaves no thread."""
    monkeypatch.setattr(engine_module, "_SECONDS_TO_STOP", 0.0)
    engine = get_engine(file, 8192)
    running = engine.answer({**STORY, "ignore_eos": True})
    await anext(running)
    before, process = threading.active_count(), engine.process_id
    for _ in range(20):
        engine.answer(QUESTION).close()
    pieces = [await anext(running) for _ in range(20)]
    assert all(isinstance(piece, Chunk) for piece in pieces)
    assert (threading.active_count(), engine.process_id) == (before, process)
    monkeypatch.undo()
    running.close()
    assert await answer_text(engine, QUESTION)
    assert engine.process_id == process


async def test_what_waits_behind_a_request_that_does_not_stop_is_answered(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, since the one that does not stop is killed."""
    engine = Engine(file, 2048)
    running, waiting = engine.answer({**STORY, "ignore_eos": True}), engine.answer(QUESTION)
    await anext(running)
    stuck = engine.process_id
    assert stuck is not None
    os.kill(stuck, signal.SIGSTOP)
    monkeypatch.setattr(engine_module, "_SECONDS_TO_STOP", 0.0)
    before = threading.active_count()
    running.close()
    assert threading.active_count() <= before
    pieces = [piece async for piece in waiting]
    assert isinstance(pieces[-1], End)
    assert engine.process_id != stuck
    engine.close()


async def test_a_fallback_model_moves_on_from_a_local_one(tmp_path: Path) -> None:
    """By default, with the words of the error kept."""
    broken = LocalModel(str(tmp_path / "none.gguf"))
    worker = WorkerEntry(name="w", model=FallbackModel(broken, TestModel(custom_output_text="from the other")))
    assert await Runtime([worker]).call("w", "go") == "from the other"
    with pytest.raises(LocalModelError, match=r"none\.gguf") as caught:
        await broken.request([ModelRequest.user_text_prompt("x")], None, ModelRequestParameters())
    assert isinstance(caught.value, ModelAPIError)
    assert caught.value.model_name == broken.model_name


async def test_a_fallback_model_moves_on_from_one_that_cannot_be_loaded_or_dies(file: Path, tmp_path: Path) -> None:
    other = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("from the other")]))
    hollow = tmp_path / "hollow.gguf"
    hollow.write_bytes(file.read_bytes()[:64])
    worker = WorkerEntry(name="w", model=FallbackModel(LocalModel(str(hollow)), other))
    assert await Runtime([worker]).call("w", "go") == "from the other"

    engine = get_engine(file, 1024)
    assert await answer_text(engine, QUESTION)
    assert engine.process_id is not None
    os.kill(engine.process_id, signal.SIGSTOP)
    worker = WorkerEntry(name="w", model=FallbackModel(LocalModel(str(file), context=1024), other))
    runtime = Runtime([worker])
    call = asyncio.create_task(runtime.call("w", "go"))
    while engine._host is None or engine._host._current is None:
        await asyncio.sleep(0.005)
    os.kill(engine.process_id, signal.SIGKILL)
    assert await call == "from the other"
    engine.close()
