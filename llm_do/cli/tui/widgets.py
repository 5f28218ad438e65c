"""The widgets of the screen: the conversation, the tree of calls beside it, and the prompt below."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from time import monotonic
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from pydantic_ai.messages import ModelResponse
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Markdown, Static, TextArea, Tree
from textual.widgets.tree import TreeNode

from ...core.events import CallClosed, CallOpened, Event
from ...privacy.display import visible
from ..support.conversation import describe_call
from ..terminal.errors import escape_controls
from ..terminal.tree import MIN_WAIT_SHOWN, CallTree, Node
from .approval import ApprovalPanel


class Question(Static):
    def __init__(self, text: str) -> None:
        super().__init__(Content(escape_controls(text)))


class Notice(Static):
    """A message of the program itself."""

    def __init__(self, text: str, kind: str = "info") -> None:
        super().__init__(Content(text), classes=f"-{kind}")


class CallLine(Static):
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
        """End the answer. Further text starts another one."""
        await self._draw()
        self._answer, self.has_text = None, False

    async def reset(self) -> None:
        await self.end_answer()
        self._calls.clear()
        await self.remove_children()


_MARKS = {
    "running": ("●", "yellow"),
    "asking": ("?", "bold yellow"),
    "done": ("✓", "green"),
    "refused": ("⊘", "red"),
    "failed": ("✗", "red"),
    "cancelled": ("–", "dim"),
}


class Calls(Tree[int]):
    def __init__(self) -> None:
        super().__init__("calls", id="calls")
        self.show_root = False
        self.guide_depth = 2
        self.border_title = "Calls"
        self._calls = CallTree()
        self._call_nodes: dict[int, TreeNode[int]] = {}

    def on_mount(self) -> None:
        self.root.expand()
        self.set_interval(0.5, self._tick)

    def follow(self, event: Event) -> None:
        self._calls.on_event(event)
        call_id: Any = getattr(event, "call_id", None)
        if (call := self._calls.nodes.get(call_id)) is None:
            return
        if event.type == "call_opened":
            self._open(event)
        elif event.type == "message" and isinstance(event.message, ModelResponse):
            # A running sum, until the call closes with the exact one.
            used = event.message.usage
            call.tokens += used.total_tokens
            call.cost = (call.cost or Decimal(0)) + used.cost if used.cost is not None else call.cost
        self._call_nodes[call_id].set_label(_label(call))

    def _open(self, event: CallOpened) -> None:
        parent = self._call_nodes.get(event.parent_id) if event.parent_id is not None else None
        if parent is None:
            for turn in self.root.children:
                turn.collapse()
            parent = self.root
        parent.allow_expand = True
        parent.expand()
        self._call_nodes[event.call_id] = parent.add("", event.call_id, expand=True, allow_expand=False)
        self.call_after_refresh(self.scroll_end, animate=False)

    def _tick(self) -> None:
        for call_id, node in self._call_nodes.items():
            call = self._calls.nodes[call_id]
            if call.state in ("running", "asking"):
                node.set_label(_label(call))

    def clear_calls(self) -> None:
        self._calls, self._call_nodes = CallTree(), {}
        self.clear()


def _label(call: Node) -> Text:
    mark, style = _MARKS.get(call.state, ("·", ""))
    text = Text(no_wrap=True)
    text.append(f"{mark} ", style=style)
    text.append(visible(call.name), style="bold" if call.kind == "worker" else "none")
    facts = ["waits for you"] if call.state == "asking" else []
    facts += [f"{call.elapsed(monotonic()):.1f}s"]
    facts += ["cut off"] if call.cut_off else []
    facts += [f"+{call.waited:.1f}s waiting"] if call.waited >= MIN_WAIT_SHOWN else []
    facts += [format_tokens(call.tokens)] if call.tokens else []
    facts += [f"${call.cost:.4f}"] if call.cost else []
    text.append(f" {' '.join(facts)}", style="dim")
    return text


def format_tokens(tokens: int) -> str:
    return f"{tokens} tok" if tokens < 1000 else f"{tokens / 1000:.1f}k tok"


class Prompt(TextArea):
    """A text area in which Enter sends, and up and down at the edges go through the history."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "app.page(-1)", show=False),
        Binding("pagedown", "app.page(1)", show=False),
        Binding("ctrl+d", "end_or_delete", show=False),
    ]

    @dataclass
    class Sent(Message):
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
