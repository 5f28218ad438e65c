"""Conversations of PydanticAI as prompts for a chat template: alternating roles, and only text.

A small model cannot make tool calls, and copies any example of one in its prompt. So it is asked two plain questions:
which option (only one of their names can be generated), and then which arguments (an object of the tool's schema). A
reply in words is not constrained, and is streamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

Messages = list[dict[str, str]]

# Templates recognise these markers inside of content too, so a document could end its turn and impersonate another
# role. A marker with a space in it is plain text.
_TEMPLATE_MARKER = re.compile(r"<(?=[|｜]|/?s>|(?:start|end)_of_turn>|[be]os>|\w+\|>)|\[(?=/?(?:INST|[A-Z]+_[A-Z]+)\])")
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")

_Turn = tuple[str, str]  # role and text


@dataclass(frozen=True)
class Option:
    """A tool that the model may call, or a kind of reply."""

    name: str
    schema: Mapping[str, Any] | None = None
    """The schema of the arguments, or of the reply; `None` for a reply in words."""
    tool: ToolDefinition | None = None
    """`None` for a reply."""

    @property
    def is_final(self) -> bool:
        """Whether this is the output of the worker, which ends its run."""
        return self.tool is None or self.tool.kind == "output"

    @property
    def example_question(self) -> str:
        if self.tool is None:
            return "Hi, how are you?"
        description = (self.tool.description or "").strip()
        return description.splitlines()[0] if description else self.name.replace("_", " ")


def list_options(settings: ModelSettings, parameters: ModelRequestParameters) -> list[Option]:
    """Return the options that the request and its `tool_choice` allow."""
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


class Conversation:
    """The messages so far, and the prompts for the next step.

    All chat templates know the roles system, user and assistant; some require user and assistant to alternate.
    """

    def __init__(self, messages: Sequence[ModelMessage], instructions: Sequence[str]) -> None:
        turns = list(_turns(messages))
        self._system = [*instructions, *(text for role, text in turns if role == "system")]
        self._turns = [turn for turn in turns if turn[0] != "system"]
        self.last_call = _last_call(messages)

    def choice_prompt(self, options: Sequence[Option]) -> Messages:
        """Return the prompt for a choice. Each option is an example of a turn, since small models ignore lists."""
        examples: list[_Turn] = []
        for option in options:
            examples += [("user", option.example_question), ("assistant", to_json(option.name).decode())]
        system = [*self._system, "Choose the function for the user's message."]
        return _merge_turns(system, [*examples, *self._turns])

    def answer_prompt(self, option: Option) -> Messages:
        """Return the prompt for the arguments of an option, or for a reply. A reply in words needs no question."""
        what = "record" if option.is_final else f"arguments of {option.name}"
        fields = ", ".join((option.schema or {}).get("properties") or ())
        question = [("user", f"Fill in the {what}: {fields}.")] if fields else []
        return _merge_turns(self._system, [*self._turns, *question])


def _merge_turns(system: Sequence[str], turns: Sequence[_Turn]) -> Messages:
    merged: list[tuple[str, list[str]]] = []
    for role, text in turns:
        if merged and merged[-1][0] == role:
            merged[-1][1].append(text)
        else:
            merged.append((role, [text]))
    if head := "\n\n".join(text for text in system if text):
        merged.insert(0, ("system", [head]))
    return [{"role": role, "content": _escape_markers("\n\n".join(texts))} for role, texts in merged]


def _escape_markers(text: str) -> str:
    """Return a text without template markers, and without characters that UTF-8 cannot encode."""
    return _TEMPLATE_MARKER.sub(r"\g<0> ", text.encode("utf-8", "replace").decode())


def _turns(messages: Sequence[ModelMessage]) -> Iterator[_Turn]:
    arguments: dict[str, str] = {}
    for number, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            for answer in message.parts:
                if isinstance(answer, TextPart) and answer.content:
                    yield "assistant", answer.content
                elif isinstance(answer, ToolCallPart):
                    arguments[answer.tool_call_id] = answer.args_as_json_str()
                    yield "assistant", to_json(answer.tool_name).decode()
            continue
        for part in message.parts:
            if isinstance(part, SystemPromptPart):
                yield "user" if number else "system", part.content
            elif isinstance(part, UserPromptPart):
                yield "user", _text(part.content)
            elif isinstance(part, ToolReturnPart):
                text, files = part.model_response_str_and_user_content()
                yield "user", f"Result of {part.tool_name}({arguments.get(part.tool_call_id, '')}): {text}"
                if files:
                    yield "user", _text(files)
            else:
                raise UserError(f"A local model cannot be sent a {part.part_kind} part: call it through an agent.")


def _last_call(messages: Sequence[ModelMessage]) -> tuple[str, dict[str, Any]] | None:
    """Return name and arguments of the last call, if the last message is only its successful result."""
    last = messages[-1] if messages else None
    before = messages[-2] if len(messages) > 1 else None
    if not isinstance(last, ModelRequest) or not isinstance(before, ModelResponse):
        return None
    if any(not isinstance(part, ToolReturnPart) or part.outcome != "success" for part in last.parts):
        return None
    calls = [part for part in before.parts if isinstance(part, ToolCallPart)]
    return (calls[0].tool_name, calls[0].args_as_dict()) if len(calls) == 1 else None


def _text(content: str | Sequence[UserContent]) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(_item_text(item) for item in content if not isinstance(item, CachePoint))


def _item_text(item: UserContent) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, TextContent):
        return item.content
    if isinstance(item, BinaryContent) and (item.media_type.startswith("text/") or item.media_type in _TEXT_TYPES):
        return item.data.decode(errors="replace")
    kind = getattr(item, "media_type", None) or type(item).__name__
    raise UserError(f"Local models read text, and cannot be sent {kind}. Use a model that can, or send the text of it.")
