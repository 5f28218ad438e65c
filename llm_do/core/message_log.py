"""The message log: messages between workers and their models, and which of them are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest

from .frame import RequestFrame

_UNLIKE_IN_EACH_RUN = frozenset({"timestamp", "run_id", "conversation_id", "provider_response_id", "metadata"})
"""Fields of messages that differ from run to run, or that no model is sent."""


class MessageLog(list[ModelMessage]):
    """The messages of a session, in the order in which they were exchanged. With `most`, the last of them."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self._most = most
        self.left_out = 0
        """How many messages before these were dropped."""

    def add(self, message: ModelMessage) -> None:
        """Add a message. Old ones go in batches, so that this takes no longer in a long session."""
        self.append(message)
        if self._most is not None and len(self) > 2 * self._most + 16:
            self.trim()

    def trim(self) -> None:
        """Drop all but the last ones."""
        if self._most is not None and (excess := len(self) - self._most) > 0:
            del self[:excess]
            self.left_out += excess

    def __repr__(self) -> str:
        left_out = f", {self.left_out} earlier ones left out" if self.left_out else ""
        return f"<MessageLog of {len(self)} messages{left_out}>" if left_out else super().__repr__()


def find_new_parts(frame: RequestFrame, request: ModelRequest) -> ModelRequest | None:
    """Return what a request has that the one before it did not have; `None` if that is nothing.

    PydanticAI merges the end of one turn with the prompt of the next.
    """
    before, frame.conversation.logged_parts = frame.conversation.logged_parts, list(request.parts)
    if not before:
        return request
    new = [part for part in request.parts if not any(part is other for other in before)]
    if len(new) == len(request.parts):
        return request
    return replace(request, parts=new) if new else None


def comparable_messages(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return messages as data, without what differs from run to run: times, and ids, in whose place are numbers."""
    ids: dict[Any, int] = {}
    # The lowest supported pydantic warns of the members of a union that it tries first.
    return [
        {**_comparable(message), "parts": [_comparable(part, ids) for part in message["parts"]]}
        for message in ModelMessagesTypeAdapter.dump_python(
            list(messages), mode="json", warnings="none", fallback=lambda value: type(value).__qualname__
        )
    ]


def _comparable(data: dict[str, Any], ids: dict[Any, int] | None = None) -> dict[str, Any]:
    """Return a message or a part of one with its tool call numbered. What a tool got and returned is left as it is."""
    alike = {key: item for key, item in data.items() if key not in _UNLIKE_IN_EACH_RUN}
    if ids is not None and "tool_call_id" in alike:
        alike["tool_call_id"] = ids.setdefault(alike["tool_call_id"], len(ids))
    return alike


def messages_after_last_response(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the results of tools that no model was sent."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ModelRequest):
        end -= 1
    return messages[end:]
