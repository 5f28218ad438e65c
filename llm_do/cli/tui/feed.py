"""Events and questions of a session, as messages to the app, in their order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from textual.app import App
from textual.message import Message

from ...core.events import Event, TextDelta
from ...policy.requests import ApprovalDecision, ApprovalRequest


@dataclass
class TextArrived(Message):
    """A worker wrote text. Further text is collected here until the app handles the message."""

    call_id: int
    thinking: bool
    pieces: list[str] = field(default_factory=list)


@dataclass
class SessionEvent(Message):
    """An event other than text."""

    event: Event


@dataclass
class ApprovalAsked(Message):
    request: ApprovalRequest
    answer: asyncio.Future[ApprovalDecision]


class Feed:
    """A sink and an approver that post messages to the app, and never wait for it to draw."""

    one_at_a_time = True

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._open: TextArrived | None = None
        """The message that further text of the same worker is added to."""

    def on_event(self, event: Event) -> None:
        if not isinstance(event, TextDelta):
            self._open = None
            self._app.post_message(SessionEvent(event))
            return
        message = self._open
        if message is None or (message.call_id, message.thinking) != (event.call_id, event.thinking):
            message = self._open = TextArrived(event.call_id, event.thinking)
            self._app.post_message(message)
        message.pieces.append(event.text)

    def take(self, message: TextArrived) -> str:
        """Return the text of a message. Further text goes into another one."""
        if self._open is message:
            self._open = None
        return "".join(message.pieces)

    async def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self._open = None
        answer: asyncio.Future[ApprovalDecision] = asyncio.get_running_loop().create_future()
        self._app.post_message(ApprovalAsked(request, answer))
        return await answer
