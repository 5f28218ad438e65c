"""Message histories without secrets, for models."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from operator import is_
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


class SentHistory:
    """Removes secrets from the requests of one conversation. A tool's result reaches the model in no other way.

    A part is searched once, and sent as it was then: a list that a tool returned, and still writes to, may have a
    secret in it later.
    """

    def __init__(self) -> None:
        self._searched: dict[int, tuple[Any, Any, Any]] = {}
        """Each part of the last request, its content when it was searched, and its replacement."""

    def without_secrets(self, messages: list[ModelMessage], secrets: Values) -> list[ModelMessage]:
        """Return the messages without secrets. Those of the user stay as they are."""
        before, self._searched = self._searched, {}
        return [self._search(each, secrets, before) if isinstance(each, ModelRequest) else each for each in messages]

    def _search(self, request: ModelRequest, secrets: Values, before: dict[int, tuple[Any, Any, Any]]) -> ModelRequest:
        clean = [self._search_part(part, secrets, before) for part in request.parts]
        return request if all(map(is_, clean, request.parts)) else replace(request, parts=clean)

    def _search_part(self, part: Any, secrets: Values, before: dict[int, tuple[Any, Any, Any]]) -> Any:
        if isinstance(part, UserPromptPart | SystemPromptPart):
            return part
        content = getattr(part, "content", None)
        searched = before.get(id(part))
        if searched is None or searched[0] is not part or searched[1] is not content:
            try:
                searched = part, content, secrets.redact(_frozen(part, content, secrets))
            except Exception:  # it has no content, or one that cannot be copied, and is searched each time
                return secrets.redact(part)
        self._searched[id(part)] = searched
        return searched[2]


def _frozen(part: Any, content: Any, secrets: Values) -> Any:
    """Return a part with a copy of its content, which no tool writes to."""
    if isinstance(content, str):
        return part
    clean = secrets.redact(content)
    return replace(part, content=_as_data(clean) if isinstance(part, BaseToolReturnPart) else deepcopy(clean))


def _as_data(content: Any) -> Any:
    """Return the result of a tool as data, so that the serialized form of objects is searched. Files stay files."""
    if is_multi_modal_content(content):
        return deepcopy(content)
    if isinstance(content, list):
        return [_as_data(each) for each in content]
    return tool_return_ta.dump_python(content, mode="json")
