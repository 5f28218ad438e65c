"""A script in place of a model, for a run without a key: the architect's part, and that of the worker it makes."""

import os
import sys

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

COUNTER = {
    "name": "counter",
    "description": "Counts the words of a text.",
    "instructions": "Count the words of the text that you are given, with your tool. Answer with the number.",
    "tools": ["count_words"],
    "force": True,  # it may be there from the last time
}


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    given = messages[0].parts[-1].content
    results = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if "worker_create" not in {tool.name for tool in info.function_tools}:  # the worker that was made
        if not results:
            return ModelResponse(parts=[ToolCallPart("count_words", {"text": given})])
        return ModelResponse(parts=[TextPart(f"{results[0]} words.")])
    if not results:
        return ModelResponse(parts=[ToolCallPart("worker_create", COUNTER)])
    if len(results) == 1:
        return ModelResponse(parts=[ToolCallPart("worker_call", {"worker": "counter", "input_data": given})])
    return ModelResponse(parts=[TextPart(f"The counter says: {results[1]}")])


def scripted_model() -> FunctionModel:
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # on a terminal it would push away what is printed here
    print("The model is scripted: scripted.py answers, and no language model is asked.", file=sys.stderr)
    return FunctionModel(script, model_name="scripted")
