"""What is compared: the same trees of agents, in raw PydanticAI and as workers, under one fake model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, time
from typing import Any

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from timing import Work, repeated

from llm_do import Limits, Runtime, ToolEntry, WorkerEntry, approve_all_callback

INSTRUCTIONS = "Use your tool, then answer."


async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the one tool there is, then answer. It takes no time, so that what is measured is the rest."""
    if not info.function_tools or isinstance(messages[-1].parts[0], ToolReturnPart):
        return ModelResponse(parts=[TextPart("done")])
    tool = info.function_tools[0]
    (parameter,) = tool.parameters_json_schema["properties"]
    return ModelResponse(parts=[ToolCallPart(tool.name, {parameter: "x"})])


async def reply_later(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """`reply`, after the least that a network does: give way to others."""
    await asyncio.sleep(0.001)
    return await reply(messages, info)


MODEL = FunctionModel(reply, model_name="fake")
SLOW_MODEL = FunctionModel(reply_later, model_name="fake")


async def leaf(text: str) -> str:
    """Give the text back."""
    return text


TOOL: Tool[Any] = Tool(leaf)
TOOLSET: FunctionToolset[Any] = FunctionToolset([TOOL])
LEAF = ToolEntry(TOOL)


def session(entries: Sequence[ToolEntry[Any]] = (LEAF,)) -> Runtime:
    """A session with everything on: trace, usage, message log, and somebody to ask."""
    limits = Limits(max_calls=None, max_requests=None)
    return Runtime(entries, model=MODEL, approval_callback=approve_all_callback, limits=limits)


def raw_tree(depth: int) -> Agent[None, str]:
    """Agents that call agents, the PydanticAI way; the innermost has the tool."""
    tool = TOOL
    for level in range(depth):
        agent = Agent(MODEL, name=f"agent{level}", instructions=INSTRUCTIONS, tools=[tool])
        tool = _delegation(agent)
    return agent


def _delegation(inner: Agent[None, str]) -> Tool[None]:
    async def ask(ctx: RunContext[None], task: str) -> str:
        """Ask another agent."""
        return (await inner.run(task, usage=ctx.usage)).output

    return Tool(ask, name=inner.name)


def worker_tree(depth: int) -> WorkerEntry:
    """The same tree as workers."""
    tool: Any = LEAF
    for level in range(depth):
        tool = WorkerEntry(name=f"agent{level}", description="Ask.", instructions=INSTRUCTIONS, tools=[tool])
    return tool


def raw_runs(agent: Agent[None, str], times: int, **options: Any) -> tuple[Work, int]:
    return repeated(lambda: partial(agent.run, infer_name=False, **options), times)


def worker_runs(worker: WorkerEntry, times: int) -> tuple[Work, int]:
    # A session keeps what happened in it, so each sample has its own, and pays for it.
    return repeated(lambda: partial(session(()).call, worker), times)


@dataclass(slots=True)
class Record:
    name: str
    kind: str
    depth: int
    arguments: dict[str, Any]
    started_at: float
    output: Any = None
    error: str | None = None
    duration: float | None = None


class Floor:
    """The least that an honest dispatcher of Python functions does, in one coroutine and nothing around it."""

    def __init__(self) -> None:
        function: Callable[..., Awaitable[Any]] = leaf
        self.entries = {"leaf": (function, ("text",), TOOL.function_schema.validator.validate_python, False)}
        self.records: list[Record] = []

    async def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        function, parameters, validate, requires_approval = self.entries[name]
        arguments = validate({**dict(zip(parameters, args, strict=False)), **kwargs})
        record = Record(name, "tool", 0, arguments, time())
        clock = perf_counter()
        self.records.append(record)
        if requires_approval:
            raise PermissionError(name)
        try:
            output = await function(**arguments)
        except BaseException as exc:
            record.error = str(exc)
            raise
        record.output = output
        record.duration = perf_counter() - clock
        return output
