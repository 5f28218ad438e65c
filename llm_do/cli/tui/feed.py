"""What happens in a session, brought to the app in the order in which it happened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.message import Message

from ...core.events import Event, TextDelta
from ...policy.requests import ApprovalDecision, ApprovalRequest

if TYPE_CHECKING:
    from textual.app import App


class Spoken(Message):
    """A worker said something. Text that comes while nobody looks is gathered here, so that no flood builds up."""

    def __init__(self, call_id: int, thinking: bool) -> None:
        super().__init__()
        self.call_id = call_id
        self.thinking = thinking
        self.pieces: list[str] = []


class Happened(Message):
    """Anything else that sinks are told."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class Asked(Message):
    """Somebody has to decide."""

    def __init__(self, request: ApprovalRequest, answer: asyncio.Future[ApprovalDecision]) -> None:
        super().__init__()
        self.request = request
        self.answer = answer


class Feed:
    """A sink and an approver that hand everything on to the app, and never wait for it to draw."""

    one_at_a_time = True

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._open: Spoken | None = None
        """The message that more text of the same worker can still go into."""

    def on_event(self, event: Event) -> None:
        if not isinstance(event, TextDelta):
            self._open = None
            self._app.post_message(Happened(event))
            return
        spoken = self._open
        if spoken is None or (spoken.call_id, spoken.thinking) != (event.call_id, event.thinking):
            spoken = self._open = Spoken(event.call_id, event.thinking)
            self._app.post_message(spoken)
        spoken.pieces.append(event.text)

    def take(self, spoken: Spoken) -> str:
        """The text of a message. What comes after this goes into another one."""
        if self._open is spoken:
            self._open = None
        return "".join(spoken.pieces)

    async def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        self._open = None
        answer: asyncio.Future[ApprovalDecision] = asyncio.get_running_loop().create_future()
        self._app.post_message(Asked(request, answer))
        return await answer
