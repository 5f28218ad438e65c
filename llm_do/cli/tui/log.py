"""The conversation on the screen."""

from __future__ import annotations

from time import monotonic

from markdown_it import MarkdownIt
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown, Static

from ...core.events import CallClosed
from ..support.conversation import describe_call
from ..terminal.error_text import escape_controls
from .approval import ApprovalPanel


class Question(Static):
    """A text of the person."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(escape_controls(text)))


class Notice(Static):
    """A message of the program itself."""

    def __init__(self, text: str, kind: str = "info") -> None:
        super().__init__(Content(text), classes=f"-{kind}")


class CallLine(Static):
    """A call of the worker, in one line."""

    def __init__(self, name: str, arguments: object) -> None:
        self._text = describe_call(name, arguments)
        super().__init__(Content(f"· {self._text}"))

    def close(self, event: CallClosed, *, refused: bool) -> None:
        problem = event.error or event.failure
        mark = "⊘" if refused else "✗" if problem else "✓"
        self.update(Content(f"{mark} {self._text}"))
        self.set_class(refused or bool(problem), "-failed")


class Answer(Markdown):
    """The text of the worker, as it arrives."""

    def __init__(self) -> None:
        # HTML is shown as text: by default it would be left out.
        super().__init__(parser_factory=lambda: MarkdownIt("gfm-like", {"html": False}), open_links=False)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show the address of a link instead of opening it: its text may be misleading."""
        event.stop()
        self.app.copy_to_clipboard(event.href)
        self.notify(escape_controls(event.href), title="Link copied", markup=False)


class Log(VerticalScroll, can_focus=True):
    """The conversation. It follows new text, unless the person has scrolled up."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self._answer: Answer | None = None
        """The answer that the worker is writing."""
        self._pending = ""
        """Text that is not drawn yet."""
        self._draw_at = 0.0
        self._calls: dict[int, CallLine] = {}
        self.has_text = False
        """Whether the worker wrote text since its last call."""

    def on_mount(self) -> None:
        self.anchor()

    def on_resize(self) -> None:
        for panel in self.query(ApprovalPanel):
            panel.fit()

    async def add(self, widget: Widget) -> None:
        """Add a widget at the end, unless the screen is closed."""
        if self.is_attached:
            await self.mount(widget)

    async def add_question(self, text: str) -> None:
        await self.end_answer()
        await self.add(Question(text))
        self.anchor()

    async def add_notice(self, text: str, kind: str = "info") -> None:
        await self.end_answer()
        await self.add(Notice(text, kind))

    async def add_text(self, text: str) -> None:
        """Add text to the answer."""
        if not text.strip() and self._answer is None:
            return
        if self._answer is None:
            self._answer = Answer()
            await self.add(self._answer)
        self.has_text = True
        is_scheduled = bool(self._pending)
        self._pending += escape_controls(text)
        if (early := self._draw_at - monotonic()) <= 0:
            await self._draw()
        elif not is_scheduled:
            self.set_timer(early, self._draw)

    async def _draw(self) -> None:
        """Draw the pending text. The pauses grow with the time it takes, since long texts are slow to draw."""
        text, self._pending = self._pending, ""
        if not text or self._answer is None or not self._answer.is_attached:
            return
        before = monotonic()
        await self._answer.append(text)
        self._draw_at = monotonic() + max(4 * (monotonic() - before), 0.03)

    async def add_call(self, call_id: int, name: str, arguments: object) -> None:
        await self.end_answer()
        line = self._calls[call_id] = CallLine(name, arguments)
        await self.add(line)

    def close_call(self, event: CallClosed, *, refused: bool) -> None:
        if (line := self._calls.pop(event.call_id, None)) is not None:
            line.close(event, refused=refused)

    async def end_answer(self) -> None:
        """End the answer: text after this is another one."""
        await self._draw()
        self._answer, self.has_text = None, False

    async def reset(self) -> None:
        """Remove everything."""
        await self.end_answer()
        self._calls.clear()
        await self.remove_children()
