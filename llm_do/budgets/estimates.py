"""Upper bounds of the input tokens of a model request, known before it is sent.

A token stands for at least one byte of text with every tokenizer in use, so a text has at most as many tokens as bytes.
Constants cover roles, separators and what providers write around tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import (
    BaseToolCallPart,
    BaseToolReturnPart,
    BinaryContent,
    CachePoint,
    FilePart,
    FileUrl,
    ModelMessage,
    ModelRequest,
    TextContent,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

PER_REQUEST = 64
PER_MESSAGE = 16
WITH_TOOLS = 600
"""The text with which providers explain tools to a model."""
PER_IMAGE = 50_000
"""The most tokens that a provider counts for one image of any size, sent as bytes."""
_KEPT_BY_PROVIDER = ("previous_response_id", "conversation_id", "cached_content")
"""Suffixes of settings that refer to texts which the provider adds to the request."""
_RUN_BY_PROVIDER = frozenset({"tools", "plugins"})
"""Settings, at any depth, that give the model tools without PydanticAI."""
_THINKING = frozenset({"budget_tokens", "thinking_budget"})
"""Settings, at any depth, with the most tokens of thinking."""
_ANSWERS = frozenset({"n", "best_of"})
"""Settings, at any depth, with the number of answers to one request."""


class InputBound:
    """The most input tokens that a request can have."""

    def __init__(
        self,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        settings: ModelSettings | None = None,
    ) -> None:
        self.tokens = PER_REQUEST
        self.unbounded: str | None = None
        """A part of the request that can have any number of tokens; `None` without one."""
        self._add_parameters(parameters)
        self._look_at(settings)
        instructions = 0
        for message in messages:
            self.tokens += PER_MESSAGE
            if isinstance(message, ModelRequest) and message.instructions:
                instructions = max(instructions, _bytes(message.instructions))
            for part in message.parts:
                self._add_part(part)
        self.tokens += instructions

    def _add_parameters(self, parameters: ModelRequestParameters) -> None:
        self.tokens += sum(_bytes(part.content) for part in parameters.instruction_parts or ())
        tools = [*parameters.function_tools, *parameters.output_tools]
        if tools:
            self.tokens += WITH_TOOLS + sum(map(_tool_bytes, tools))
        if parameters.output_object is not None:
            self.tokens += _json_bytes(parameters.output_object) + _bytes(parameters.prompted_output_instructions or "")
        if parameters.native_tools:
            self.unbounded = f"the provider's own tool {parameters.native_tools[0].kind!r}"
        if parameters.allow_image_output:
            self.unbounded = "an image as output"

    def _look_at(self, settings: ModelSettings | None) -> None:
        for name, value in _settings(settings or {}):
            if name.endswith(_KEPT_BY_PROVIDER) and value and value != "auto":  # "auto": a text among these messages
                self.unbounded = f"a text that the provider keeps ({name})"
            if name in _RUN_BY_PROVIDER and value:
                self.unbounded = f"what the provider runs ({name})"
            if name in _ANSWERS and isinstance(value, int) and value > 1:
                self.unbounded = f"several answers to one request ({name}={value})"

    def _add_part(self, part: Any) -> None:
        self.tokens += PER_MESSAGE
        match part:
            case UserPromptPart():
                self._add_content([part.content] if isinstance(part.content, str) else part.content)
            case BaseToolReturnPart():
                self.tokens += _bytes(part.model_response_str())
                self._add_content(part.files)
            case BaseToolCallPart():
                self.tokens += _bytes(part.tool_name) + _bytes(part.args_as_json_str())
            case FilePart():
                self._add_content([part.content])
            case _ if callable(response := getattr(part, "model_response", None)):
                self.tokens += _bytes(response())
            case _:
                self.tokens += _json_bytes(part)

    def _add_content(self, content: Iterable[Any]) -> None:
        for item in content:
            match item:
                case str():
                    self.tokens += _bytes(item)
                case TextContent():
                    self.tokens += _bytes(item.content)
                case CachePoint():
                    pass
                case BinaryContent():
                    self._add_file(item)
                case FileUrl() | UploadedFile():
                    self.unbounded = f"a file that the provider fetches ({type(item).__name__})"
                case _:
                    self.tokens += _json_bytes(item)

    def _add_file(self, file: BinaryContent) -> None:
        if file.is_image:
            self.tokens += PER_IMAGE
            return
        self.tokens += len(file.data)
        if file.is_audio or file.is_video:  # silence and still pictures take almost no bytes
            self.unbounded = f"a recording ({file.media_type}), which may be of any length"
        elif file.is_document and not file.media_type.startswith("text/"):
            self.unbounded = f"a document ({file.media_type}), whose pages may hold any amount of text"


def thinking_tokens(settings: ModelSettings | None) -> int:
    """Return the most tokens that settings let a model think. Providers count them as output."""
    if not settings:
        return 0
    level = settings.get("thinking")
    counts = [value for name, value in _settings(settings) if name in _THINKING and isinstance(value, int)]
    return max([ANTHROPIC_THINKING_BUDGET_MAP.get(level, 0) if level else 0, *counts])


def _settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings at any depth, such as those in `extra_body`."""
    for name, value in settings.items():
        yield str(name), value
        if isinstance(value, Mapping):
            yield from _settings(value)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _json_bytes(value: Any) -> int:
    return len(to_json(value, serialize_unknown=True, bytes_mode="base64"))


def _tool_bytes(tool: ToolDefinition) -> int:
    return PER_MESSAGE + _bytes(tool.name) + _bytes(tool.description or "") + _json_bytes(tool.parameters_json_schema)
