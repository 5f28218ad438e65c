"""A script in place of a model, for a run without a key: it knows one meeting, and takes three steps."""

import os
import sys

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

MINUTES = """\
# Garden club

Present: Ada, Grace, Linus.

- A new shed is too expensive, and is not bought.
- The plant sale is on 3 May. Grace makes posters, and Linus borrows tables.
"""
STEPS = (
    ToolCallPart("read_file", {"path": "notes/garden-club.txt"}),
    ToolCallPart("write_file", {"path": "minutes/garden-club.md", "content": MINUTES}),
    ToolCallPart("publish", {"path": "minutes/garden-club.md"}),
)


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart) and last.outcome == "denied":
        return ModelResponse(parts=[TextPart(f"I stop here. {last.content}")])
    taken = sum(isinstance(message, ModelResponse) for message in messages)
    if taken < len(STEPS):
        return ModelResponse(parts=[STEPS[taken]])
    return ModelResponse(parts=[TextPart("The minutes are written and published.")])


def scripted_model() -> FunctionModel:
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # on a terminal it would push away what is printed here
    print("The model is scripted: scripted.py answers, and no language model is asked.", file=sys.stderr)
    return FunctionModel(script, model_name="scripted")
