"""A script in place of a model, for a run without a key. It judges by name, and takes the steps of all stages."""

import json
import os
import sys
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

JUDGEMENTS = {
    "bakery": {"score": 9, "reason": "Twenty-nine villages signed, and the trial had more customers than it needs."},
    "Moon": {"score": 0, "reason": "There is not one fact in it."},
    "repair": {"score": 3, "reason": "Three friends are not 2,000 customers."},
}


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The next step of `evaluate` or `evaluate_all`, by the tools that there are and by what came back so far."""
    given = json.loads(str(messages[0].parts[-1].content))
    results = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    tools = {tool.name for tool in info.function_tools}
    if not tools:
        return answer(info, next(made for word, made in JUDGEMENTS.items() if word in given["text"]))
    if not results:
        return calls(("list_files", {"path": "documents"}) if "list_files" in tools else ("read_documents", {}))
    if "list_files" in tools:
        paths = results[0].split()
        if len(results) == 1:
            return calls(*(("read_file", {"path": path}) for path in paths))
        texts = {path.removeprefix("documents/"): text for path, text in zip(paths, results[1:], strict=False)}
    else:
        texts = results[0]
    judgements = [result for result in results if isinstance(result, dict) and "score" in result]
    if not judgements:
        return calls(*(("evaluate", {**given, "text": text}) for text in texts.values()))
    named = [{"name": name, **judgement} for name, judgement in zip(texts, judgements, strict=True)]
    if "rank" in tools:
        if "average" not in results[-1]:
            return calls(("rank", {"judgements": named}))
        return answer(info, {**given, **results[-1]})
    # What a model does in its head in the first stage.
    ordered = sorted(named, key=lambda one: -one["score"])
    average = round(sum(one["score"] for one in ordered) / len(ordered), 1)
    return answer(info, {**given, "documents": ordered, "average": average})


def calls(*wanted: tuple[str, dict[str, Any]]) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in wanted])


def answer(info: AgentInfo, value: dict[str, Any]) -> ModelResponse:
    return calls((info.output_tools[0].name, value))


def scripted_model() -> FunctionModel:
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # on a terminal it would push away what is printed here
    print("The model is scripted: scripted.py answers, and no language model is asked.", file=sys.stderr)
    return FunctionModel(script, model_name="scripted")
