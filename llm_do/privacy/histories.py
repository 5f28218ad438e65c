"""The messages of a conversation as a model is sent them: without secrets."""

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
"""Stands for a content that has to be searched each time."""


class SentHistory:
    """Takes secrets out of the requests of one conversation: a tool's result goes past everything else to the model.

    A part is searched once, and it is sent as it was then: a list that a tool returned, and goes on writing to, may
    have a secret in it later. Whether the conversation begins as it did the last time is asked in C, so that a turn
    costs about the same however long it is.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._messages: list[ModelMessage] = []
        self._sent: list[ModelMessage] = []
        self._requests: list[ModelRequest] = []
        self._instructions: list[str | None] = []
        self._parts: list[Any] = []
        self._contents: list[Any] = []
        self._clean: list[Any] = []
        """The parts of all requests; their contents when they were searched; and what is sent in their place."""
        self._is_settled = True
        """Whether no part has to be searched each time."""

    def without_secrets(self, messages: list[ModelMessage], secrets: Values) -> list[ModelMessage]:
        """Return the messages without secrets. What the user wrote is sent as it is."""
        known: dict[int, tuple[Any, Any, Any]] = {}
        if not self._is_settled or not self._begins(messages):
            searched = zip(self._parts, self._contents, self._clean, strict=True)
            known = {id(each[0]): each for each in searched}
            self._forget()
        for message in messages[len(self._messages) :]:
            self._messages.append(message)
            self._sent.append(self._search(message, secrets, known) if isinstance(message, ModelRequest) else message)
        return list(self._sent)

    def _begins(self, messages: list[ModelMessage]) -> bool:
        """Tell whether messages begin with those that were searched, and these are as they were."""
        parts = list(chain.from_iterable(map(_parts_of, self._requests)))
        return (
            len(messages) >= len(self._messages)
            and len(parts) == len(self._parts)
            and all(map(is_, messages, self._messages))
            and all(map(is_, map(_instructions_of, self._requests), self._instructions))
            and all(map(is_, parts, self._parts))
            and all(map(is_, map(_content_of, parts), self._contents))
        )

    def _search(self, request: ModelRequest, secrets: Values, known: dict[int, tuple[Any, Any, Any]]) -> ModelRequest:
        self._requests.append(request)
        self._instructions.append(request.instructions)
        clean = [self._search_part(part, secrets, known) for part in request.parts]
        self._clean += clean
        return request if all(map(is_, clean, request.parts)) else replace(request, parts=clean)

    def _search_part(self, part: Any, secrets: Values, known: dict[int, tuple[Any, Any, Any]]) -> Any:
        content = getattr(part, "content", None)
        self._parts.append(part)
        self._contents.append(content)
        if isinstance(part, UserPromptPart | SystemPromptPart):
            return part
        found = known.get(id(part))
        if found is not None and found[0] is part and found[1] is content:
            return found[2]
        frozen = part
        if not isinstance(content, str):
            try:
                sent = secrets.redact(content)
                sent = _as_sent(sent) if isinstance(part, BaseToolReturnPart) else deepcopy(sent)
                frozen = replace(part, content=sent)
            except Exception:  # it has no content, or one that cannot be copied
                self._is_settled, self._contents[-1] = False, _UNSETTLED
        return secrets.redact(frozen)


def _as_sent(content: Any) -> Any:
    """Return the result of a tool as the data that a model is sent: what an object makes of itself is searched too.

    Files stay files.
    """
    if is_multi_modal_content(content):
        return deepcopy(content)
    if isinstance(content, list):
        return [_as_sent(each) for each in content]
    return tool_return_ta.dump_python(content, mode="json")
