"""A script in place of a model, for a run without a key. It understands `Add X`, `X is done`, and takes the rest for a
wish to see the list."""

import os
import re
import sys

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"The list: {', '.join(last.content) or 'nothing'}.")])
    text = str(last.content).rstrip(".")
    if found := re.fullmatch("Add (.+)", text):
        return ModelResponse(parts=[ToolCallPart("add", {"item": found[1]})])
    if found := re.fullmatch("(.+) is done", text):
        return ModelResponse(parts=[ToolCallPart("done", {"item": found[1]})])
    return ModelResponse(parts=[ToolCallPart("show", {})])


def scripted_model() -> FunctionModel:
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # on a terminal it would push away what is printed here
    print("The model is scripted: scripted.py answers, and no language model is asked.", file=sys.stderr)
    return FunctionModel(script, model_name="scripted")
