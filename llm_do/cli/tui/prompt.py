"""The prompt: several lines, with a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea


class Prompt(TextArea):
    """A text area in which Enter sends, and up and down at the edges go through the history."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
        Binding("ctrl+d", "end_or_delete", show=False),
    ]

    @dataclass
    class Sent(Message):
        """The person has sent a text."""

        text: str

    def __init__(self) -> None:
        super().__init__(id="prompt", soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False)
        self._history: list[str] = []
        self._at = 0
        """The position in the history; one past its end is the draft."""
        self._draft = ""

    def remember(self, text: str) -> None:
        """Add a text to the history, and clear the prompt."""
        if not self._history or self._history[-1] != text:
            self._history.append(text)
        self._at, self._draft = len(self._history), ""
        self.clear()

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            self.post_message(self.Sent(self.text))
        elif event.key in ("ctrl+j", "shift+enter", "alt+enter"):
            self.replace("\n", *self.selection)
        else:
            return
        event.stop()
        event.prevent_default()

    def action_cursor_up(self, select: bool = False) -> None:
        if select or not self.navigator.is_first_wrapped_line(self.cursor_location):
            super().action_cursor_up(select)
        elif self._at > 0:
            if self._at == len(self._history):
                self._draft = self.text
            self._go_to(self._at - 1)

    def action_cursor_down(self, select: bool = False) -> None:
        if select or not self.navigator.is_last_wrapped_line(self.cursor_location):
            super().action_cursor_down(select)
        elif self._at < len(self._history):
            self._go_to(self._at + 1)

    def _go_to(self, at: int) -> None:
        self._at = at
        self.text = self._history[at] if at < len(self._history) else self._draft
        self.move_cursor(self.document.end)

    async def action_end_or_delete(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            await self.run_action("app.quit")
