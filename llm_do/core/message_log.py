"""The message log: messages between workers and their models, and which of them are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage, ModelRequest

from .frame import RequestFrame


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


def messages_after_last_response(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the results of tools that no model was sent."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ModelRequest):
        end -= 1
    return messages[end:]
