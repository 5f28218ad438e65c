"""Random trees of workers and functions, which read what to do from the plan that is their argument.

A plan is a list of steps: `["tool", n]`, `["fail", n]`, `["pay", n]`, `["wrong"]`, `["unknown"]`, `["worker", plan]` or
`["glue", plan]`.
"""

import asyncio
import json
import random
from typing import Any

from hypothesis import strategies as st
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from llm_do import Context, WorkerEntry, entry

from ..scripted import tool_results

STEPS = st.one_of(
    st.tuples(st.just("tool"), st.integers(0, 2)),
    st.tuples(st.just("fail"), st.integers(0, 1)),
    st.tuples(st.just("pay"), st.integers(0, 2)),
    st.tuples(st.just("wrong")),
    st.tuples(st.just("unknown")),
).map(list)
PLANS = st.recursive(
    st.lists(STEPS, max_size=3),
    lambda plans: st.lists(STEPS | st.tuples(st.sampled_from(["worker", "glue"]), plans).map(list), max_size=3),
    max_leaves=8,
)


class World:
    """The entries of a tree, and what they did."""

    def __init__(self, seed: int = 0) -> None:
        self.ran: list[str] = []
        self._random = random.Random(seed)
        self.entries = [self._tool(), self._fail(), self._pay(), self._glue()]
        self.worker = WorkerEntry(name="worker", tools=self.entries, model=self._model(), retries=3)
        self.entries.append(self.worker)

    async def pause(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    def _tool(self) -> Any:
        @entry(effects=[])
        async def tool(n: int) -> int:
            await self.pause()
            self.ran.append(f"tool {n}")
            return n * 10

        return tool

    def _fail(self) -> Any:
        @entry
        async def fail(n: int) -> int:
            self.ran.append(f"fail {n}")
            raise ValueError(f"{n} is no good")

        return fail

    def _pay(self) -> Any:
        @entry(effects=["network"])
        async def pay(amount: int) -> str:
            await self.pause()
            self.ran.append(f"pay {amount}")
            return f"paid {amount}"

        return pay

    def _glue(self) -> Any:
        world = self

        @entry
        async def glue(ctx: RunContext[Context], plan: str) -> str:
            """Run the steps of a plan side by side, each in a branch of its own."""
            steps = json.loads(plan)
            branches = [ctx.deps.branch(f"b{number}") for number in range(len(steps))]
            results = await asyncio.gather(
                *(world.step(branch, step) for branch, step in zip(branches, steps, strict=True)),
                return_exceptions=True,
            )
            return json.dumps([str(result) for result in results])

        return glue

    async def step(self, ctx: Context, step: list[Any]) -> Any:
        await self.pause()
        name, arguments = call_of(step)
        return await ctx.call(name, **arguments)

    def _model(self) -> FunctionModel:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            await self.pause()
            self.ran.append("request")
            usage = RequestUsage(input_tokens=10, output_tokens=5)
            plan = json.loads(str(messages[0].parts[-1].content).strip())  # type: ignore[union-attr]
            asked = sum(isinstance(part, ToolCallPart) for message in messages for part in message.parts)
            if asked or not plan:
                return ModelResponse(parts=[TextPart(f"done: {tool_results(messages)}")], usage=usage)
            steps = [call_of(step) for step in plan if step[0] != "fail"]
            if not steps:
                return ModelResponse(parts=[TextPart("nothing")], usage=usage)
            # Like some providers, it numbers the calls of each response.
            return ModelResponse(
                parts=[ToolCallPart(name, args, tool_call_id=f"id{at}") for at, (name, args) in enumerate(steps)],
                usage=usage,
            )

        return FunctionModel(answer, model_name="tree")


def call_of(step: list[Any]) -> tuple[str, dict[str, Any]]:
    match step:
        case ["tool", n]:
            return "tool", {"n": n}
        case ["fail", n]:
            return "fail", {"n": n}
        case ["pay", n]:
            return "pay", {"amount": n}
        case ["wrong"]:
            return "tool", {"n": "no number"}
        case ["unknown"]:
            return "nothing_has_this_name", {"x": 1}
        case ["worker", plan]:
            return "worker", {"input": json.dumps(plan)}
        case ["glue", plan]:
            return "glue", {"plan": json.dumps(plan)}
    raise AssertionError(step)
