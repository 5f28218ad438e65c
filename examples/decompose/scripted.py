"""A script in place of a model, for a run without a key: it knows the parts of one party."""

import json
import os
import sys
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

PARTS = {
    "Give a garden party for twenty people": ["Invite the guests", "Make the food", "Prepare the garden"],
    "Make the food": ["Buy what is needed", "Cook"],
}
MINUTES = {"Invite the guests": 25, "Buy what is needed": 40, "Cook": 55, "Prepare the garden": 30}


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    given = json.loads(str(messages[0].parts[-1].content))
    plans = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    task, levels = given["task"], given["levels"]
    parts = PARTS.get(task, []) if levels else []
    if parts and not plans:
        return calls(*(("plan", {"task": part, "levels": levels - 1}) for part in parts))
    minutes = sum(plan.minutes for plan in plans) if plans else MINUTES.get(task, 90)
    steps = [line for plan in plans for line in (plan.task, *(f"  {step}" for step in plan.steps))]
    return calls((info.output_tools[0].name, {"task": task, "minutes": minutes, "steps": steps}))


def calls(*wanted: tuple[str, dict[str, Any]]) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in wanted])


def scripted_model() -> FunctionModel:
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # on a terminal it would push away what is printed here
    print("The model is scripted: scripted.py answers, and no language model is asked.", file=sys.stderr)
    return FunctionModel(script, model_name="scripted")
