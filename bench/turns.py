"""What a turn costs in a long conversation, with and without secrets to look for: `python bench/turns.py`.

A turn calls a tool and answers. CPU milliseconds, the median of some turns around each number; both conversations take
turns, so that a busy machine is busy for both. What a turn costs with secrets beyond what it costs without them stays
the same, however long the conversation is.
"""

import asyncio
import os
from statistics import median
from time import process_time

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from llm_do import Runtime, WorkerEntry, entry

AT = (10, 100, 400)
AROUND = 5
PAGE = "a line of a page\n" * 50


@entry
async def fetch() -> dict[str, object]:
    return {"title": "a page", "lines": PAGE.splitlines()[:20], "text": PAGE}


def step(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    is_answer = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
    # PydanticAI would count the words of the whole conversation, if no usage were told.
    usage = RequestUsage(input_tokens=1, output_tokens=1)
    return ModelResponse(parts=[TextPart("ok") if is_answer else ToolCallPart("fetch", {})], usage=usage)


async def main() -> None:
    os.environ["BENCH_TOKEN"] = "a-secret-that-is-nowhere"
    runtimes = {
        "without": Runtime(model=FunctionModel(step)),
        "secrets": Runtime(model=FunctionModel(step), secrets=["BENCH_TOKEN"]),
    }
    took: dict[str, list[float]] = {name: [] for name in runtimes}
    worker = WorkerEntry(name="w", tools=[fetch])
    async with worker.start(runtimes["without"]) as without, worker.start(runtimes["secrets"]) as secrets:
        for _ in range(AT[-1] + AROUND):
            for name, scope in (("without", without), ("secrets", secrets)):
                start = process_time()
                await scope.run_turn("more")
                took[name].append((process_time() - start) * 1e3)
    for at in AT:
        plain, searched = (median(took[name][at - AROUND : at + AROUND]) for name in ("without", "secrets"))
        print(
            f"turn {at:>4}  without secrets {plain:7.2f} ms  with {searched:7.2f} ms  more by {searched - plain:6.2f} ms"
        )


if __name__ == "__main__":
    asyncio.run(main())
