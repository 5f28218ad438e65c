"""The conversation on the screen."""

from __future__ import annotations

from time import monotonic

from markdown_it import MarkdownIt
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown, Static

from ...core.events import CallClosed
from ..support.conversation import call_in_words, readable
from .approval import ApprovalPanel


def _parser() -> MarkdownIt:
    # A model's HTML is shown as it is written: the default would leave it out, and with it what it says.
    return MarkdownIt("gfm-like", {"html": False})


class Said(Static):
    """What the person said."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(readable(text)))


class Notice(Static):
    """A word of the program itself."""

    def __init__(self, text: str, kind: str = "info") -> None:
        super().__init__(Content(text), classes=f"-{kind}")


class CallLine(Static):
    """A call that the worker made, in one line."""

    def __init__(self, name: str, arguments: object) -> None:
        self._text = call_in_words(name, arguments)
        super().__init__(Content(f"· {self._text}"))

    def close(self, event: CallClosed, *, refused: bool) -> None:
        problem = event.error or event.failure
        mark = "⊘" if refused else "✗" if problem else "✓"
        self.update(Content(f"{mark} {self._text}"))
        self.set_class(refused or bool(problem), "-failed")


class Answer(Markdown):
    """What the worker says, as it comes."""

    def __init__(self) -> None:
        super().__init__(parser_factory=_parser, open_links=False)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link goes, rather than go there: its text may say something else."""
        event.stop()
        self.app.copy_to_clipboard(event.href)
        self.notify(readable(event.href), title="Copied the link", markup=False)


class Log(VerticalScroll, can_focus=True):
    """The conversation. It follows what is written, unless somebody looks at what was before."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self._answer: Answer | None = None
        """The text that the worker is writing."""
        self._pending = ""
        """What is not drawn yet."""
        self._draw_at = 0.0
        self._calls: dict[int, CallLine] = {}
        self.spoke = False
        """Whether the worker said something since its last call."""

    def on_mount(self) -> None:
        self.anchor()

    def on_resize(self) -> None:
        for panel in self.query(ApprovalPanel):
            panel.fit()

    async def add(self, widget: Widget) -> None:
        """Put something at the end, unless the screen is gone."""
        if self.is_attached:
            await self.mount(widget)

    async def add_question(self, text: str) -> None:
        await self.end_answer()
        await self.add(Said(text))
        self.anchor()

    async def add_notice(self, text: str, kind: str = "info") -> None:
        await self.end_answer()
        await self.add(Notice(text, kind))

    async def add_text(self, text: str) -> None:
        """More of the answer."""
        if not text.strip() and self._answer is None:
            return
        if self._answer is None:
            self._answer = Answer()
            await self.add(self._answer)
        self.spoke = True
        waits = bool(self._pending)
        self._pending += readable(text)
        if (early := self._draw_at - monotonic()) <= 0:
            await self._draw()
        elif not waits:
            self.set_timer(early, self._draw)

    async def _draw(self) -> None:
        """Draw what came. Most of the time is left for other things: a long text takes ever longer to draw."""
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
        """What is said next is something else."""
        await self._draw()
        self._answer, self.spoke = None, False

    async def forget(self) -> None:
        """Be empty."""
        await self.end_answer()
        self._calls.clear()
        await self.remove_children()
