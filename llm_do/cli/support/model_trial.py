"""The trial of a local model for `llm-do models test`: a line for each step."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter

import click
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRequest, TextPart, TextPartDelta, Tool, ToolCallPart
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from ...models.local.catalogue import format_size
from ...models.local.engine import get_engine
from ...models.local.files import ModelFile
from ...models.local.model import CONTEXT, LocalModel
from ...models.local.store import verify
from ...values.texts import shorten
from ..terminal.errors import describe_error, escape_controls

_MAX_TOKENS = 200


class Person(BaseModel):
    name: str
    age: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def send(to: str, text: str) -> str:
    """Send a message to a person."""
    return f"{to} has got it: {text}"


def run_trial(file: ModelFile) -> bool:
    """Check a model, load it, and use it in three ways. Return whether everything worked."""
    return asyncio.run(_Trial(file).run())


class _Trial:
    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._model = LocalModel(file.name, settings=ModelSettings(max_tokens=_MAX_TOKENS))

    async def run(self) -> bool:
        # Without a file that can be loaded, there is nothing more to try.
        if not await _run_step("file", self._check) or not await _run_step("load", self._load):
            return False
        try:
            results = [
                await _run_step("words", self._words),
                await _run_step("object", self._object),
                await _run_step("tool call", self._tool_call),
            ]
        finally:
            get_engine(await self._file.find(), CONTEXT).close()
        return await _run_step("memory", _memory) and all(results)

    async def _check(self) -> str:
        path = await self._file.find()
        if self._file.weights is None:
            return f"{path}, {format_size(path.stat().st_size)}"
        verify(path, self._file.weights)
        return f"{path}, {format_size(path.stat().st_size)}, SHA-256 as it should be"

    async def _load(self) -> str:
        start = perf_counter()
        await model_request(self._model, _prompt("Hi."), model_settings=ModelSettings(max_tokens=1))
        return f"{perf_counter() - start:.1f} s"

    async def _words(self) -> str:
        start = perf_counter()
        text, first = "", 0.0
        async with model_request_stream(self._model, _prompt("Write two sentences about tea.")) as stream:
            async for event in stream:
                match event:
                    case (
                        PartStartEvent(part=TextPart(content=new))
                        | PartDeltaEvent(delta=TextPartDelta(content_delta=new))
                    ):
                        first = first or perf_counter()
                        text += new
        if not text.strip():
            raise ValueError("the answer is empty")
        # The rate starts after the first token.
        rate = (stream.usage.output_tokens - 1) / (perf_counter() - first)
        return f"first token after {first - start:.2f} s, {rate:.0f} tokens/s: {shorten(text)}"

    async def _object(self) -> str:
        start = perf_counter()
        agent = Agent(self._model, output_type=Person, instructions="Who is this about?")
        result = await agent.run("My name is Ada. I am 36 years old.")
        return f"{perf_counter() - start:.1f} s: {result.output!r}"

    async def _tool_call(self) -> str:
        start = perf_counter()
        tools = {"add": Tool(add), "send": Tool(send)}
        parameters = ModelRequestParameters(
            function_tools=[tool.tool_def for tool in tools.values()], allow_text_output=False
        )
        answer = await model_request(self._model, _prompt("What is 20 plus 22?"), model_request_parameters=parameters)
        (call,) = (part for part in answer.parts if isinstance(part, ToolCallPart))
        values = tools[call.tool_name].function_schema.validator.validate_python(call.args_as_dict())
        seconds, arguments = perf_counter() - start, ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{seconds:.1f} s: {call.tool_name}({arguments})"


async def _run_step(what: str, work: Callable[[], Awaitable[str]]) -> bool:
    """Run a step, print a line about it, and return whether it worked."""
    try:
        text, state = escape_controls(await work()), "OK"
    except Exception as exc:  # any error is a result
        text, state = describe_error(exc), "failed"
    click.echo(f"{state:<6}  {what:<9}  {text}")
    return state == "OK"


def _prompt(text: str) -> list[ModelRequest]:
    return [ModelRequest.user_text_prompt(text)]


async def _memory() -> str:
    """Return the peak memory of the model's process, the largest child of this one, after its end."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return f"{format_size(most if sys.platform == 'darwin' else most * 1024)} at most"
