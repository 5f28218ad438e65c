"""The application: the conversation, the calls beside it, and the prompt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

from ...core.runtime import Runtime
from ...core.worker import WorkerEntry
from ...privacy.display import visible
from ...projects.registry import WorkerRegistry
from ..support.conversation import Conversation
from ..support.options import SessionOptions
from ..support.sessions import notifying_model_chooser, open_session
from ..terminal.errors import Exit, describe_notice, escape_controls
from .approval import ApprovalPanel
from .feed import ApprovalAsked, Feed, SessionEvent, TextArrived
from .widgets import Calls, Log, Prompt, format_tokens

SMALLEST = (36, 10)
"""The columns and rows that the screen needs."""
WIDE = 80
_SECONDS_TO_QUIT = 3.0


@dataclass
class TurnOver(Message):
    """A turn has ended. This comes after all events of the turn."""

    turn: asyncio.Task[str]


def run_screen_chat(
    registry: WorkerRegistry, worker: WorkerEntry[Any], options: SessionOptions, files: Sequence[MultiModalContent] = ()
) -> int:
    """Talk on the full screen until the person quits, and return the exit code."""

    def open_runtime(feed: Feed) -> Runtime:
        return open_session(
            registry,
            options,
            approver=feed,
            sinks=[feed],
            text_deltas=True,
            asks_for_more=True,
            choose_model=notifying_model_chooser(registry, options),
        )

    async def talk() -> int:
        app = ChatApp(worker, open_runtime, attachments=files)
        try:
            code = await app.run_async()
        finally:
            await app.close()
        return app.return_code or code or Exit.OK

    return asyncio.run(talk())


class ChatApp(App[int]):
    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (SMALLEST[0], "-narrow"), (WIDE, "-wide")]  # noqa: RUF012 - as App has it
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
        """`open_runtime` opens the session with the feed as its approver and sink."""
        super().__init__()
        self._feed = Feed(self)
        self.conversation = Conversation(worker, open_runtime(self._feed), attachments)
        self._grace = grace
        """The seconds for which a new question ignores keys."""
        # Held here, not queried: events may still arrive while the screen is closed.
        self._top, self._log_view, self._calls, self._prompt = Static(id="top"), Log(), Calls(), Prompt()
        self._turn: asyncio.Task[str] | None = None
        self._turn_call: int | None = None
        """The call of the running turn, of which the conversation shows direct calls and text."""
        self._refused: set[int] = set()
        self._started = 0.0
        self._interrupted = float("-inf")
        self._show_calls: bool | None = None
        """The person's choice, instead of the default for the width."""

    def compose(self) -> ComposeResult:
        with Vertical(id="all"):
            yield self._top
            with Horizontal(id="middle"):
                yield self._log_view
                yield self._calls
            yield self._prompt
            yield Footer()
        yield Static(id="too-small")

    async def on_mount(self) -> None:
        worker = self.conversation.worker
        about = f": {escape_controls(worker.description)}" if worker.description else ""
        await self._log_view.add_notice(f"Talking to {worker.name}{about}\n/help lists the commands.")
        self._prompt.focus()
        self._tick()
        self.set_interval(0.5, self._tick)
        self._warnings = _Warnings(self)
        logging.getLogger("llm_do").addHandler(self._warnings)

    def on_unmount(self) -> None:
        logging.getLogger("llm_do").removeHandler(self._warnings)

    def on_resize(self, event: Resize) -> None:
        needed, has = (f"{width} x {height}" for width, height in (SMALLEST, event.size))
        text = f"Too small: {has}.\nAt least {needed} is needed."
        self.query_one("#too-small", Static).update(Content(text))
        self.call_after_refresh(self._resized)

    def _resized(self) -> None:
        if self.focused is None:  # the focused widget did not fit
            self._focus_next()

    @property
    def busy(self) -> bool:
        return self._turn is not None

    # -- turns ---------------------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        text = event.text.strip()
        if not text or self._waiting:
            self._focus_next()
            return
        if self.busy:
            self.notify("The worker is still busy. Escape cancels the turn.", severity="warning")
            return
        self._prompt.remember(event.text)
        if text.startswith("/") and not text.startswith("//"):
            await self._command(text)
            return
        text = text.removeprefix("/") if text.startswith("//") else event.text
        await self._log_view.add_question(text)
        self._started, self._turn_call = monotonic(), None
        turn = self._turn = asyncio.create_task(self.conversation.take_turn(text), name="a turn of a chat")
        turn.add_done_callback(lambda turn: self.post_message(TurnOver(turn)))
        self._tick()

    @on(TurnOver)
    async def _turn_over(self, event: TurnOver) -> None:
        turn, self._turn = event.turn, None
        if turn.cancelled():
            await self._log_view.add_notice(self.conversation.describe_cancelled(), "warning")
        elif (exc := turn.exception()) is not None:
            text = f"{self.conversation.describe_error(exc)}\nThe worker does not remember this turn; you can go on."
            await self._log_view.add_notice(text, "error")
        elif not self._log_view.has_text or turn.result().startswith("```json"):
            await self._log_view.add_text(turn.result() or "*The answer is empty.*")
        await self._log_view.end_answer()
        self._tick()
        self._focus_next()

    async def _command(self, line: str) -> None:
        reply = await self.conversation.command(line)
        if reply.quit:
            await self.action_quit()
            return
        if reply.clear:
            await self._log_view.reset()
            self._calls.clear_calls()
        await self._log_view.add_notice(reply.text, "error" if reply.failed else "info")
        self._log_view.anchor()
        self._tick()

    # -- events of the session -----------------------------------------------------------------------

    @on(SessionEvent)
    async def _handle_event(self, message: SessionEvent) -> None:
        event = message.event
        self._calls.follow(event)
        match event.type:
            case "call_opened" if event.parent_id is None:
                self._turn_call = event.call_id
            case "call_opened" if event.parent_id == self._turn_call and event.kind != "server":  # reported as a notice
                await self._log_view.add_call(event.call_id, event.name, event.arguments)
            case "request_ended" | "notice" if (text := describe_notice(event)) is not None:
                await self._log_view.add_notice(text, "warning")
            case "approval_decided" if not event.outcome.approved:
                self._refused.add(event.call_id)
            case "call_closed":
                self._log_view.close_call(event, refused=event.call_id in self._refused)

    @on(TextArrived)
    async def _text_arrived(self, message: TextArrived) -> None:
        text = self._feed.take(message)
        if message.call_id == self._turn_call and not message.thinking:
            await self._log_view.add_text(text)

    @on(ApprovalAsked)
    async def _approval_asked(self, message: ApprovalAsked) -> None:
        if message.answer.done():
            return
        panel = ApprovalPanel(message.request, message.answer, grace=self._grace)
        await self._log_view.add(panel)
        self._log_view.anchor()
        if not (self._prompt.has_focus and self._prompt.text):  # a person who is writing must not answer by accident
            panel.focus_choices()
        self.bell()
        self._tick()

    @on(ApprovalPanel.Decided)
    def _decided(self) -> None:
        self._log_view.anchor()
        self._focus_next()
        self._tick()

    def _focus_next(self) -> None:
        if waiting := self._waiting:
            waiting[0].focus_choices()
        else:
            self._prompt.focus()

    @property
    def _waiting(self) -> list[ApprovalPanel]:
        return [panel for panel in self._log_view.query(ApprovalPanel) if panel.waits]

    # -- status --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        chat = self.conversation
        usage = chat.runtime.usage.values()
        tokens, cost = sum(used.total_tokens for used in usage), sum(used.cost or 0 for used in usage)
        facts = [visible(chat.worker.name), visible(chat.model)]
        facts += [format_tokens(tokens)] if tokens else []
        facts += [f"${cost:.4f}"] if cost else []
        self._top.update(Content(" · ".join(facts)))
        prompt = self._prompt
        if prompt.has_class("-busy") != self.busy:
            prompt.set_class(self.busy, "-busy")
            self.refresh_bindings()
        if self._waiting:
            prompt.border_title = "A question above waits: Enter goes to it"
        elif self.busy:
            prompt.border_title = f"Working for {monotonic() - self._started:.0f} s, Escape cancels"
        else:
            prompt.border_title = None
        prompt.border_subtitle = "Enter sends, Ctrl+J starts a new line"

    # -- keys ----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return None if action == "cancel" and not self.busy else True  # `None` shows it as disabled

    def action_cancel(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    async def action_interrupt(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
        elif selected := self._prompt.selected_text or self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
        elif monotonic() - self._interrupted < _SECONDS_TO_QUIT:
            await self.action_quit()
        else:
            self._interrupted = monotonic()
            self.notify("Press Ctrl+C again to quit.", timeout=_SECONDS_TO_QUIT)

    def action_toggle_calls(self) -> None:
        is_shown = self._show_calls if self._show_calls is not None else self.size.width >= WIDE
        self._show_calls = not is_shown
        self.screen.set_class(self._show_calls, "calls-on")
        self.screen.set_class(not self._show_calls, "calls-off")

    def action_page(self, direction: int) -> None:
        log = self._log_view
        (log.scroll_page_up if direction < 0 else log.scroll_page_down)()

    async def action_help(self) -> None:
        await self._command("/help")

    async def action_quit(self) -> None:
        self.action_cancel()
        self.exit(0)

    async def close(self) -> None:
        """Cancel a running turn, and close the toolsets of the worker, after the screen is closed."""
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.wait([self._turn])
        await self.conversation.close()


class _Warnings(logging.Handler):
    """Shows log messages of llm-do as notifications: printed, they would overwrite the screen."""

    def __init__(self, app: ChatApp) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.notify(escape_controls(record.getMessage()), severity="warning", markup=False, timeout=10)
