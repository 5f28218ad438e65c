"""The application: a conversation, the calls beside it, and a place to write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, ClassVar

from pydantic_ai.messages import MultiModalContent
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.widgets import Footer, Static

from ...core.entries import WorkerEntry
from ...core.runtime import Runtime
from ...privacy.display import visible
from ..support.conversation import Conversation, readable
from ..terminal.error_text import cut_off_line
from .approval import ApprovalPanel
from .calls import Calls, compact
from .feed import Asked, Feed, Happened, Spoken
from .log import Log
from .prompt import Prompt

SMALLEST = (36, 10)
"""Columns and rows that are needed."""
WIDE = 80
_TWICE = 3.0
"""Seconds within which a second Ctrl-C quits."""


class TurnOver(Message):
    """A turn ended, one way or another. It comes after everything that happened in it."""

    def __init__(self, turn: asyncio.Task[str]) -> None:
        super().__init__()
        self.turn = turn


class ChatApp(App[int]):
    """Turns with a worker, full screen.

    Args:
        worker: Whom to talk with.
        open_runtime: Makes the session. It is given the app's own place for questions and events.
        attachments: Files that go with the first turn.
        grace: Seconds for which a question that has just come up is deaf to keys.
    """

    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as the class above declares it
        (0, "-tiny"),
        (SMALLEST[0], "-narrow"),
        (WIDE, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SMALLEST[1], "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Cancel or quit", priority=True, show=False),
        Binding("escape", "cancel", "Cancel the turn"),
        Binding("ctrl+t", "toggle_calls", "Calls"),
        Binding("f1", "help", "Help"),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(
        self,
        worker: WorkerEntry[Any],
        open_runtime: Callable[[Feed], Runtime],
        *,
        attachments: Sequence[MultiModalContent] = (),
        grace: float = 0.5,
    ) -> None:
        super().__init__()
        self._feed = Feed(self)
        self.conversation = Conversation(worker, open_runtime(self._feed), attachments)
        self._grace = grace
        # Held here, and not looked up: something may still happen while the screen is being taken down.
        self._top, self._talk, self._calls, self._prompt = Static(id="top"), Log(), Calls(), Prompt()
        self._turn: asyncio.Task[str] | None = None
        self._turn_call: int | None = None
        """The call that the running turn is. Its own calls and words are in the conversation."""
        self._refused: set[int] = set()
        self._started = 0.0
        self._interrupted = float("-inf")
        self._show_calls: bool | None = None
        """What somebody chose, in place of what the width of the screen says."""

    def compose(self) -> ComposeResult:
        with Vertical(id="all"):
            yield self._top
            with Horizontal(id="middle"):
                yield self._talk
                yield self._calls
            yield self._prompt
            yield Footer()
        yield Static(id="too-small")

    async def on_mount(self) -> None:
        worker = self.conversation.worker
        about = f": {readable(worker.description)}" if worker.description else ""
        await self._talk.add_notice(f"You talk with {worker.name}{about}\n/help tells what can be typed here.")
        self._prompt.focus()
        self._tick()
        self.set_interval(0.5, self._tick)
        self._warnings = _Warnings(self)
        logging.getLogger("llm_do").addHandler(self._warnings)

    def on_unmount(self) -> None:
        logging.getLogger("llm_do").removeHandler(self._warnings)

    def on_resize(self, event: Resize) -> None:
        needed, has = (f"{width} x {height}" for width, height in (SMALLEST, event.size))
        said = f"Too small: {has}.\nIt has to be {needed}."
        self.query_one("#too-small", Static).update(Content(said))
        self.call_after_refresh(self._resized)

    def _resized(self) -> None:
        if self.focused is None:  # it was too small for what had the focus
            self._focus_next()

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""
        return self._turn is not None

    # -- turns ---------------------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        text = event.text.strip()
        if not text:
            self._focus_next()
            return
        if self._waiting:  # the text stays, for later
            self._focus_next()
            return
        if self.busy:
            self.notify("The worker is still at it. Escape cancels the turn.", severity="warning")
            return
        self._prompt.remember(event.text)
        if text.startswith("/") and not text.startswith("//"):
            await self._command(text)
            return
        text = text.removeprefix("/") if text.startswith("//") else event.text
        await self._talk.add_question(text)
        self._started, self._turn_call = monotonic(), None
        turn = self._turn = asyncio.create_task(self.conversation.take(text), name="a turn of a chat")
        turn.add_done_callback(lambda turn: self.post_message(TurnOver(turn)))
        self._tick()

    @on(TurnOver)
    async def _over(self, event: TurnOver) -> None:
        turn, self._turn = event.turn, None
        if turn.cancelled():
            await self._talk.add_notice(self.conversation.cancelled_in_words(), "warning")
        elif (exc := turn.exception()) is not None:
            told = f"{self.conversation.in_words(exc)}\nThe worker does not remember this turn; you can go on."
            await self._talk.add_notice(told, "error")
        elif not self._talk.spoke or turn.result().startswith("```json"):
            await self._talk.add_text(turn.result() or "*It said nothing.*")
        await self._talk.end_answer()
        self._tick()
        self._focus_next()

    async def _command(self, line: str) -> None:
        reply = await self.conversation.command(line)
        if reply.quit:
            await self.action_quit()
            return
        if reply.clear:
            await self._talk.forget()
            self._calls.forget()
        await self._talk.add_notice(reply.text, "error" if reply.failed else "info")
        self._talk.anchor()
        self._tick()

    # -- what happens in the session -----------------------------------------------------------------

    @on(Happened)
    async def _happened(self, happened: Happened) -> None:
        event = happened.event
        self._calls.follow(event)
        match event.type:
            case "call_opened" if event.parent_id is None:
                self._turn_call = event.call_id
            case "call_opened" if event.parent_id == self._turn_call and event.kind != "server":  # a notice tells it
                await self._talk.add_call(event.call_id, event.name, event.arguments)
            case "notice":
                await self._talk.add_notice(readable(event.text), "warning")
            case "request_ended" if event.cut_off is not None and event.error is None:
                await self._talk.add_notice(cut_off_line(event), "warning")
            case "approval_decided" if not event.outcome.approved:
                self._refused.add(event.call_id)
            case "call_closed":
                self._talk.close_call(event, refused=event.call_id in self._refused)

    @on(Spoken)
    async def _spoken(self, spoken: Spoken) -> None:
        text = self._feed.take(spoken)
        if spoken.call_id == self._turn_call and not spoken.thinking:
            await self._talk.add_text(text)

    @on(Asked)
    async def _asked(self, asked: Asked) -> None:
        if asked.answer.done():
            return
        panel = ApprovalPanel(asked.request, asked.answer, grace=self._grace)
        await self._talk.add(panel)
        self._talk.anchor()
        if not (self._prompt.has_focus and self._prompt.text):  # what somebody is writing is no answer
            panel.focus_choices()
        self.bell()
        self._tick()

    @on(ApprovalPanel.Settled)
    def _settled(self) -> None:
        self._talk.anchor()
        self._focus_next()
        self._tick()

    def _focus_next(self) -> None:
        """Go where something is to be done: the next question, or the prompt."""
        if waiting := self._waiting:
            waiting[0].focus_choices()
        else:
            self._prompt.focus()

    @property
    def _waiting(self) -> list[ApprovalPanel]:
        """The questions without an answer."""
        return [panel for panel in self._talk.query(ApprovalPanel) if panel.waits]

    # -- the frame -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        talk = self.conversation
        facts = [visible(talk.worker.name), visible(talk.model)]
        facts += [compact(talk.tokens)] if talk.tokens else []
        facts += [f"${talk.cost:.4f}"] if talk.cost else []
        self._top.update(Content(" · ".join(facts)))
        prompt = self._prompt
        if prompt.has_class("-busy") != self.busy:
            prompt.set_class(self.busy, "-busy")
            self.refresh_bindings()
        if self._waiting:
            prompt.border_title = "a question waits above: Enter goes to it"
        elif self.busy:
            prompt.border_title = f"at work for {monotonic() - self._started:.0f} s, Escape cancels"
        else:
            prompt.border_title = None
        prompt.border_subtitle = "Enter sends, Ctrl+J is a new line"

    # -- keys ----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if action == "cancel" and not self.busy else True  # `None` shows it as something for later

    def action_cancel(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    async def action_interrupt(self) -> None:
        """Cancel the turn; copy what is selected; or, at the second time, quit."""
        if self._turn is not None:
            self._turn.cancel()
        elif selected := self._prompt.selected_text or self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
        elif monotonic() - self._interrupted < _TWICE:
            await self.action_quit()
        else:
            self._interrupted = monotonic()
            self.notify("Ctrl+C again quits.", timeout=_TWICE)

    def action_toggle_calls(self) -> None:
        shown = self._show_calls if self._show_calls is not None else self.size.width >= WIDE
        self._show_calls = not shown
        self.screen.set_class(self._show_calls, "calls-on")
        self.screen.set_class(not self._show_calls, "calls-off")

    def action_page(self, direction: int) -> None:
        if direction < 0:
            self._talk.scroll_page_up()
        else:
            self._talk.scroll_page_down()

    async def action_help(self) -> None:
        await self._command("/help")

    async def action_quit(self) -> None:
        self.action_cancel()
        self.exit(0)

    async def close(self) -> None:
        """End a turn that still runs, and close what the worker had open. After the screen is gone."""
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.wait([self._turn])
        await self.conversation.close()


class _Warnings(logging.Handler):
    """Brings what llm-do logs into the conversation, where it would otherwise write over the screen."""

    def __init__(self, app: ChatApp) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.notify(readable(record.getMessage()), severity="warning", markup=False, timeout=10)
