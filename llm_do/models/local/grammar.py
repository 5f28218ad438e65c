"""The options of a model for its next step, and the JSON Schemas that constrain its answer.

A small model knows nothing of tool calls, and copies any example of one in its prompt. So it answers two plain
questions: which option (only one of the names can be generated), and then with which arguments (an object of the
tool's schema). A reply in words is not constrained, and is streamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition

_PERIOD, _REPEATED = 32, 160


@dataclass(frozen=True)
class Option:
    """A tool that the model may call, or a kind of reply."""

    name: str
    schema: Mapping[str, Any] | None = None
    """The schema of the arguments, or of the reply. `None` for a reply in words."""
    tool: ToolDefinition | None = None
    """`None` for a reply."""

    @property
    def is_final(self) -> bool:
        """Whether this is the output of the worker, which ends its run."""
        return self.tool is None or self.tool.kind == "output"

    @property
    def summary(self) -> str:
        words = (self.tool.description or "").strip() if self.tool is not None else ""
        return words.splitlines()[0] if words else self.name.replace("_", " ")

    @property
    def fields(self) -> str:
        return ", ".join((self.schema or {}).get("properties") or ())


def list_options(settings: ModelSettings, parameters: ModelRequestParameters) -> list[Option]:
    """Return the options that PydanticAI and the `tool_choice` of the settings allow."""
    functions = [Option(tool.name, tool.parameters_json_schema, tool) for tool in parameters.declared_function_tools]
    endings = [Option(tool.name, tool.parameters_json_schema, tool) for tool in parameters.output_tools]
    reply = "reply"
    while reply in (option.name for option in (*functions, *endings)):
        reply += "_"
    if parameters.output_mode in ("native", "prompted") and parameters.output_object is not None:
        endings.append(Option(reply, parameters.output_object.json_schema))
    elif parameters.allow_text_output:
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
        raise UserError(f"With tool_choice={choice!r} the model has no way to answer. Choose another one.")
    return [*functions, *endings]


def is_repeating(text: str) -> bool:
    """Return whether a model repeats itself in a string that it does not close, as small ones do."""
    end = text[-_REPEATED:]
    if len(end) < _REPEATED or not any(end[period:] == end[:-period] for period in range(1, _PERIOD + 1)):
        return False
    return text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1
