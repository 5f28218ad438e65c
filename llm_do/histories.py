"""The messages of a conversation as a model is sent them: without secrets."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart, UserPromptPart

from .secrets import Values


class _SearchedPart(NamedTuple):
    part: Any
    content: Any
    """Its content when it was searched."""
    clean: Any


class SentHistory:
    """Takes secrets out of the requests of one conversation: a tool's result goes past everything else to the model.

    A part is searched once, so that a turn costs the same however long the conversation is, and it is sent as it was
    then: a list that a tool returned, and goes on writing to, may have a secret in it later.
    """

    def __init__(self) -> None:
        self._searched: dict[int, _SearchedPart] = {}
        """By the identity of the part."""

    def without_secrets(self, messages: list[ModelMessage], secrets: Values) -> list[ModelMessage]:
        """Return the messages without secrets. What the user wrote is sent as it is."""
        before, self._searched = self._searched, {}
        sent: list[ModelMessage] = []
        for message in messages:
            if isinstance(message, ModelRequest):
                parts = [self._clean(part, secrets, before) for part in message.parts]
                if not all(map(is_, parts, message.parts)):
                    message = replace(message, parts=parts)
            sent.append(message)
        return sent

    def _clean(self, part: Any, secrets: Values, before: dict[int, _SearchedPart]) -> Any:
        if isinstance(part, UserPromptPart | SystemPromptPart):
            return part
        content = getattr(part, "content", None)
        found = before.get(id(part))
        if found is None or found.part is not part or found.content is not content:
            frozen = part
            if not isinstance(content, str):
                try:
                    frozen = replace(part, content=deepcopy(content))
                except Exception:  # it has no content, or one that cannot be copied
                    return secrets.redact(part)
            found = _SearchedPart(part, content, secrets.redact(frozen))
        self._searched[id(part)] = found
        return found.clean
