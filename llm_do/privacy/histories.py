"""Message histories without secrets, for models."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from pydantic_ai.messages import (
    BaseToolReturnPart,
    ModelMessage,
    ModelRequest,
    SystemPromptPart,
    UserPromptPart,
    is_multi_modal_content,
    tool_return_ta,
)

from .secrets import Values

_parts_of, _content_of, _instructions_of = map(attrgetter, ("parts", "content", "instructions"))

_UNSETTLED = object()
"""Stands for a content that must be searched each time."""


class SentHistory:
    """Removes secrets from the requests of one conversation: a tool's result reaches the model in no other way.

    A part is searched once, and sent as it was then: a list that a tool returned, and still writes to, may have a
    secret in it later. Whether the conversation begins as it did the last time is compared in C, so that a turn costs
    about the same however long it is.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._messages: list[ModelMessage] = []
        self._output: list[ModelMessage] = []
        self._requests: list[ModelRequest] = []
        self._instructions: list[str | None] = []
        self._parts: list[Any] = []
        self._contents: list[Any] = []
        self._clean: list[Any] = []
        """The parts of all requests; their contents when they were searched; and their replacements."""
        self._is_settled = True
        """Whether no part must be searched each time."""

    def without_secrets(self, messages: list[ModelMessage], secrets: Values) -> list[ModelMessage]:
        """Return the messages without secrets. Those of the user stay as they are."""
        cache: dict[int, tuple[Any, Any, Any]] = {}
        if not self._is_settled or not self._begins(messages):
            parts = zip(self._parts, self._contents, self._clean, strict=True)
            cache = {id(each[0]): each for each in parts}
            self._forget()
        for message in messages[len(self._messages) :]:
            self._messages.append(message)
            self._output.append(self._search(message, secrets, cache) if isinstance(message, ModelRequest) else message)
        return list(self._output)

    def _begins(self, messages: list[ModelMessage]) -> bool:
        """Return whether messages begin with those that were searched, and these are unchanged."""
        parts = list(chain.from_iterable(map(_parts_of, self._requests)))
        return (
            len(messages) >= len(self._messages)
            and len(parts) == len(self._parts)
            and all(map(is_, messages, self._messages))
            and all(map(is_, map(_instructions_of, self._requests), self._instructions))
            and all(map(is_, parts, self._parts))
            and all(map(is_, map(_content_of, parts), self._contents))
        )

    def _search(self, request: ModelRequest, secrets: Values, cache: dict[int, tuple[Any, Any, Any]]) -> ModelRequest:
        self._requests.append(request)
        self._instructions.append(request.instructions)
        clean = [self._search_part(part, secrets, cache) for part in request.parts]
        self._clean += clean
        return request if all(map(is_, clean, request.parts)) else replace(request, parts=clean)

    def _search_part(self, part: Any, secrets: Values, cache: dict[int, tuple[Any, Any, Any]]) -> Any:
        content = getattr(part, "content", None)
        self._parts.append(part)
        self._contents.append(content)
        if isinstance(part, UserPromptPart | SystemPromptPart):
            return part
        before = cache.get(id(part))
        if before is not None and before[0] is part and before[1] is content:
            return before[2]
        frozen = part
        if not isinstance(content, str):
            try:
                clean = secrets.redact(content)
                clean = _as_data(clean) if isinstance(part, BaseToolReturnPart) else deepcopy(clean)
                frozen = replace(part, content=clean)
            except Exception:  # it has no content, or one that cannot be copied
                self._is_settled, self._contents[-1] = False, _UNSETTLED
        return secrets.redact(frozen)


def _as_data(content: Any) -> Any:
    """Return the result of a tool as data for a model, so that the serialized form of an object is searched too.

    Files stay files.
    """
    if is_multi_modal_content(content):
        return deepcopy(content)
    if isinstance(content, list):
        return [_as_data(each) for each in content]
    return tool_return_ta.dump_python(content, mode="json")
