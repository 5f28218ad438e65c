"""What a model may do next, and the JSON Schemas that llama.cpp holds it to.

A small model knows nothing of tool calls, and it copies whatever example of one it is shown. So it is asked two plain
questions: which of these (a name, and nothing but a name, can be generated), and then with which arguments (an object
of the tool's schema). A reply in words is not constrained at all, and is streamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition

_PERIOD, _REPEATED = 32, 160


@dataclass(frozen=True)
class Option:
    """One thing that the model may do."""

    name: str
    schema: Mapping[str, Any] | None = None
    """Of the arguments of a call, or of a reply. `None` for a reply in words."""
    tool: ToolDefinition | None = None
    """`None` for a reply."""

    @property
    def ends(self) -> bool:
        """Whether this is the answer that a worker was asked for."""
        return self.tool is None or self.tool.kind == "output"

    @property
    def about(self) -> str:
        words = (self.tool.description or "").strip() if self.tool is not None else ""
        return words.splitlines()[0] if words else self.name.replace("_", " ")

    @property
    def fields(self) -> str:
        return ", ".join((self.schema or {}).get("properties") or ())


def options(settings: ModelSettings, asked: ModelRequestParameters) -> list[Option]:
    """What PydanticAI lets the model do, with the `tool_choice` of the settings."""
    functions = [Option(tool.name, tool.parameters_json_schema, tool) for tool in asked.declared_function_tools]
    endings = [Option(tool.name, tool.parameters_json_schema, tool) for tool in asked.output_tools]
    reply = "reply"
    while reply in (option.name for option in (*functions, *endings)):
        reply += "_"
    if asked.output_mode in ("native", "prompted") and asked.output_object is not None:
        endings.append(Option(reply, asked.output_object.json_schema))
    elif asked.allow_text_output:
        endings.append(Option(reply))
    choice = settings.get("tool_choice")
    if choice == "required":
        endings = []
    elif choice == "none" or choice == []:
        functions = []
    elif isinstance(choice, ToolOrOutput):
        functions = [option for option in functions if option.name in choice.function_tools]
    elif isinstance(choice, list):
        functions = [option for option in functions if option.name in choice]
        endings = [option for option in endings if option.name in choice and option.tool is not None]
    if not functions and not endings:
        raise UserError(f"With tool_choice={choice!r} there is nothing that the model may answer.")
    return [*functions, *endings]


def name_schema(choices: Sequence[Option]) -> dict[str, Any]:
    """The schema of one of these names."""
    return {"enum": [option.name for option in choices]}


def is_repeating(said: str) -> bool:
    """Whether a model repeats itself in a string that it does not close, as small ones do."""
    end = said[-_REPEATED:]
    if len(end) < _REPEATED or not any(end[period:] == end[:-period] for period in range(1, _PERIOD + 1)):
        return False
    return said.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1
