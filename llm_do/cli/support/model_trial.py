"""What `llm-do models test` does with a model: real requests, with a line for each that says how it went."""

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
from ..terminal.error_text import in_words, readable

_MOST = 200
"""Tokens of an answer."""


class Person(BaseModel):
    name: str
    age: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def send(to: str, text: str) -> str:
    """Send a message to somebody."""
    return f"{to} has got it: {text}"


def try_model(file: ModelFile) -> bool:
    """Check a model, load it, and use it in three ways. Whether all of it went well."""
    return asyncio.run(_Trial(file).run())


class _Trial:
    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._model = LocalModel(file.name, settings=ModelSettings(max_tokens=_MOST))

    async def run(self) -> bool:
        # Without its file, or if it cannot be loaded, there is nothing more to try.
        if not await _tell("file", self._check) or not await _tell("load", self._load):
            return False
        try:
            went = [
                await _tell("words", self._words),
                await _tell("object", self._object),
                await _tell("tool call", self._tool_call),
            ]
        finally:
            get_engine(await self._file.find(), CONTEXT).close()
        return await _tell("memory", _memory) and all(went)

    async def _check(self) -> str:
        path = await self._file.find()
        if self._file.weights is None:
            return f"{path}, {format_size(path.stat().st_size)}"
        verify(path, self._file.weights)
        return f"{path}, {format_size(path.stat().st_size)}, SHA-256 as it should be"

    async def _load(self) -> str:
        start = perf_counter()
        await model_request(self._model, _said("Hi."), model_settings=ModelSettings(max_tokens=1))
        return f"{perf_counter() - start:.1f} s"

    async def _words(self) -> str:
        start = perf_counter()
        text, first = "", 0.0
        async with model_request_stream(self._model, _said("Write two sentences about tea.")) as stream:
            async for event in stream:
                match event:
                    case (
                        PartStartEvent(part=TextPart(content=new))
                        | PartDeltaEvent(delta=TextPartDelta(content_delta=new))
                    ):
                        first = first or perf_counter()
                        text += new
        if not text.strip():
            raise ValueError("it says nothing")
        # The first one is what the rate starts from.
        rate = (stream.usage.output_tokens - 1) / (perf_counter() - first)
        return f"first token after {first - start:.2f} s, {rate:.0f} tokens/s: {shorten(text)}"

    async def _object(self) -> str:
        start = perf_counter()
        agent = Agent(self._model, output_type=Person, instructions="Who is this about?")
        found = await agent.run("My name is Ada. I am 36 years old.")
        return f"{perf_counter() - start:.1f} s: {found.output!r}"

    async def _tool_call(self) -> str:
        start = perf_counter()
        tools = {"add": Tool(add), "send": Tool(send)}
        asked = ModelRequestParameters(
            function_tools=[tool.tool_def for tool in tools.values()], allow_text_output=False
        )
        answer = await model_request(self._model, _said("What is 20 plus 22?"), model_request_parameters=asked)
        (call,) = (part for part in answer.parts if isinstance(part, ToolCallPart))
        given = tools[call.tool_name].function_schema.validator.validate_python(call.args_as_dict())
        seconds, arguments = perf_counter() - start, ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"{seconds:.1f} s: {call.tool_name}({arguments})"


async def _tell(what: str, work: Callable[[], Awaitable[str]]) -> bool:
    """Do something, and print a line about it."""
    try:
        said, state = readable(await work()), "OK"
    except Exception as exc:  # whatever goes wrong is what somebody wants to know
        said, state = in_words(exc), "failed"
    click.echo(f"{state:<6}  {what:<9}  {said}")
    return state == "OK"


def _said(text: str) -> list[ModelRequest]:
    return [ModelRequest.user_text_prompt(text)]


async def _memory() -> str:
    """What the process of the model had at most, now that it is over. No other child of this one is as big."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return f"{format_size(most if sys.platform == 'darwin' else most * 1024)} at most"
