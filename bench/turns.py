"""A turn in a long conversation, with and without secrets to look for: `python bench/turns.py`.

A turn calls a tool and answers, after so many turns before it. CPU milliseconds, the lower quartile, interleaved.
PydanticAI goes over the whole conversation in every turn; looking for secrets must not add to that.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from statistics import quantiles
from time import process_time

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from llm_do import CallScope, Runtime, WorkerEntry, entry

BEFORE = (10, 100, 400)
TURNS = 9
PAGE = {"title": "a page", "lines": ["a line of a page"] * 20, "text": "a line of a page\n" * 50}
USAGE = RequestUsage(input_tokens=1, output_tokens=1)  # PydanticAI would count all words, if none were told


@entry
async def fetch() -> dict[str, object]:
    return dict(PAGE)


def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    is_answer = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
    return ModelResponse(parts=[TextPart("ok") if is_answer else ToolCallPart("fetch", {})], usage=USAGE)


def turns(count: int) -> list[ModelMessage]:
    """Return a conversation of so many turns."""
    made: list[ModelMessage] = []
    for number in range(count):
        made += [
            ModelRequest(parts=[UserPromptPart("more")]),
            ModelResponse(parts=[ToolCallPart("fetch", {}, tool_call_id=str(number))], usage=USAGE),
            ModelRequest(parts=[ToolReturnPart("fetch", dict(PAGE), tool_call_id=str(number))]),
            ModelResponse(parts=[TextPart("ok")], usage=USAGE),
        ]
    return made


async def measure(scopes: dict[str, CallScope[str]]) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in scopes}
    for _ in range(TURNS + 1):
        for name, scope in scopes.items():
            start = process_time()
            await scope.run_turn("more")
            took[name].append((process_time() - start) * 1e3)
    return {name: quantiles(times[1:], n=4)[0] for name, times in took.items()}  # the first turn searches all of it


async def main() -> None:
    os.environ["BENCH_TOKEN"] = "a-secret-that-is-nowhere"
    worker = WorkerEntry(name="w", tools=[fetch])
    for before in BEFORE:
        async with AsyncExitStack() as stack:
            scopes = {}
            for name, secrets in (("without", []), ("with", ["BENCH_TOKEN"])):
                runtime = Runtime(model=FunctionModel(step), secrets=secrets)
                scopes[name] = await stack.enter_async_context(worker.start(runtime, message_history=turns(before)))
            took = await measure(scopes)
        more = took["with"] - took["without"]
        print(
            f"turn {before:>4}  without secrets {took['without']:6.1f} ms  with {took['with']:6.1f} ms  {more:+.1f} ms"
        )


if __name__ == "__main__":
    asyncio.run(main())
