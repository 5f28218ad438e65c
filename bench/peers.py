"""The same two trees in other frameworks: `python bench/run.py --peers`, after `uv pip install -r bench/peers.txt`.

Each fake model does what ours does: it calls the tool it was made for, then answers. Numbers say what a framework
costs around a model that takes no time; what it does for that (trace, approvals, usage per model) differs.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from agents import Agent as OpenAIAgent
from agents import Model as OpenAIModel
from agents import ModelResponse as OpenAIResponse
from agents import Runner, Usage, function_tool, set_tracing_disabled
from agno.agent import Agent as AgnoAgent
from agno.models.base import Model as AgnoModel
from agno.models.response import ModelResponse as AgnoResponse
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from timing import interleave, repeated
from variants import INSTRUCTIONS, leaf, raw_runs, raw_tree, worker_runs, worker_tree

Ask = Callable[[str], Awaitable[str]]
IDS = map("call{}".format, count())


@dataclass
class AgnoFake(AgnoModel):
    tool: str = "leaf"

    async def ainvoke(self, messages: list[Any], *args: Any, **kwargs: Any) -> AgnoResponse:
        if messages[-1].role == "tool":
            return AgnoResponse(role="assistant", content="done")
        call = {"id": next(IDS), "type": "function", "function": {"name": self.tool, "arguments": '{"text": "x"}'}}
        return AgnoResponse(role="assistant", tool_calls=[call])

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    invoke = invoke_stream = ainvoke_stream = _unused
    _parse_provider_response = _parse_provider_response_delta = _unused


def agno(tool: Ask) -> Ask:
    model = AgnoFake("fake", tool=tool.__name__)
    agent = AgnoAgent(model=model, instructions=INSTRUCTIONS, tools=[tool], telemetry=False)

    async def ask(text: str) -> str:
        """Ask another agent."""
        return (await agent.arun(text)).content

    return ask


class OpenAIFake(OpenAIModel):
    def __init__(self, tool: str) -> None:
        self.tool = tool

    async def get_response(self, *args: Any, **kwargs: Any) -> OpenAIResponse:
        items = kwargs["input"]
        if isinstance(items, list) and items[-1].get("type") == "function_call_output":
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            output: Any = ResponseOutputMessage(
                id="message", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            output = ResponseFunctionToolCall(
                arguments='{"text": "x"}', call_id=next(IDS), name=self.tool, type="function_call"
            )
        return OpenAIResponse(output=[output], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def openai_agents(tool: Ask) -> Ask:
    model = OpenAIFake(tool.__name__)
    agent = OpenAIAgent(name="agent", instructions=INSTRUCTIONS, model=model, tools=[function_tool(tool)])

    async def ask(text: str) -> str:
        """Ask another agent."""
        return (await Runner.run(agent, text)).final_output

    return ask


class LangChainFake(BaseChatModel):
    tool: str

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            message = AIMessage("done")
        else:
            message = AIMessage("", tool_calls=[{"name": self.tool, "args": {"text": "x"}, "id": next(IDS)}])
        return ChatResult(generations=[ChatGeneration(message=message)])


def langchain(tool: Ask) -> Ask:
    tools = [StructuredTool.from_function(coroutine=tool)]
    agent = create_agent(LangChainFake(tool=tool.__name__), tools, system_prompt=INSTRUCTIONS)

    async def ask(text: str) -> str:
        """Ask another agent."""
        return (await agent.ainvoke({"messages": [("user", text)]}))["messages"][-1].content

    return ask


async def measure(levels: int, rounds: int) -> dict[str, float]:
    works = {"raw pydantic-ai": raw_runs(raw_tree(levels), 8), "llm-do": worker_runs(worker_tree(levels), 8)}
    for peer in (agno, openai_agents, langchain):
        ask = peer(leaf) if levels == 1 else peer(peer(leaf))
        works[peer.__name__] = repeated(lambda ask=ask: ask, 8)
    return await interleave(works, rounds)


async def main(rounds: int) -> None:
    set_tracing_disabled(True)  # it would send what it traces over the network
    one, two = await measure(1, rounds), await measure(2, rounds)
    base = "raw pydantic-ai"
    print(f"{'':<20} {'tool round trip':>20} {'agent > agent > tool':>24}")
    for name in one:
        print(
            f"{name:<20} {one[name]:>10.0f} us  {one[name] / one[base]:>5.2f} "
            f"{two[name]:>14.0f} us  {two[name] / two[base]:>5.2f}"
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
