"""Models that do what a test says."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

Step = ModelResponse | Callable[[list[ModelMessage], AgentInfo], ModelResponse]


def says(text: str, **usage: Any) -> ModelResponse:
    """A final answer."""
    return ModelResponse(parts=[TextPart(text)], usage=RequestUsage(**usage))


def calls(*tools: tuple[str, dict[str, Any]]) -> ModelResponse:
    """One response that calls tools, side by side."""
    return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in tools])


def answers(value: dict[str, Any]) -> Callable[[list[ModelMessage], AgentInfo], ModelResponse]:
    """A structured output."""
    return lambda messages, info: ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, value)])


def scripted(*steps: Step, name: str = "scripted") -> FunctionModel:
    """A model that takes the steps one after the other, and repeats the last one."""
    taken = iter(steps)
    last: list[Step] = []

    def take(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = next(taken, None) or last[-1]
        last.append(step)
        return step(messages, info) if callable(step) else ModelResponse(parts=list(step.parts), usage=step.usage)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for index, part in enumerate(take(messages, info).parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield word + " "
            elif isinstance(part, ToolCallPart):
                yield {index: DeltaToolCall(name=part.tool_name, json_args=part.args_as_json_str())}

    return FunctionModel(take, stream_function=stream, model_name=name)


def by_tools(rules: dict[str, Step]) -> FunctionModel:
    """A model for a whole tree of workers: it calls the tool that a worker has, and then says what came back."""

    def take(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        results = tool_results(messages)
        if results:
            return says(" ".join(map(str, results)))
        for tool in info.function_tools:
            if tool.name in rules:
                step = rules[tool.name]
                return step(messages, info) if callable(step) else step
        return says("done")

    return FunctionModel(take, model_name="by_tools")


def tool_results(messages: list[ModelMessage]) -> list[Any]:
    """What the tools returned so far."""
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
