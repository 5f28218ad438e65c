"""The tree of calls beside the conversation."""

from __future__ import annotations

import time
from decimal import Decimal

from pydantic_ai.messages import ModelResponse
from rich.text import Text
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from ...core.events import CallOpened, CallRejected, Event, ScopeClosed, ScopeOpened, TextDelta
from ...privacy.display import visible
from ..terminal.tree import MIN_WAIT_SHOWN, CallTree, Node

_MARKS = {
    "running": ("●", "yellow"),
    "asking": ("?", "bold yellow"),
    "done": ("✓", "green"),
    "refused": ("⊘", "red"),
    "failed": ("✗", "red"),
    "cancelled": ("–", "dim"),
}


class Calls(Tree[int]):
    """The tree of calls, with the state, time, tokens and cost of each."""

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
        """Update the tree by an event."""
        if isinstance(event, CallRejected | ScopeClosed | ScopeOpened | TextDelta):
            return
        self._calls.on_event(event)
        call = self._calls.nodes.get(event.call_id)
        if call is None:
            return
        if event.type == "call_opened":
            self._open(event)
        elif event.type == "message" and isinstance(event.message, ModelResponse):
            # A running sum, until the call closes with the exact one.
            used = event.message.usage
            call.tokens += used.total_tokens
            call.cost = (call.cost or Decimal(0)) + used.cost if used.cost is not None else call.cost
        if (node := self._call_nodes.get(event.call_id)) is not None:
            node.set_label(_label(call))

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
        """Remove all calls."""
        self._calls, self._call_nodes = CallTree(), {}
        self.clear()


def _label(call: Node) -> Text:
    mark, style = _MARKS.get(call.state, ("·", ""))
    text = Text(no_wrap=True)
    text.append(f"{mark} ", style=style)
    text.append(visible(call.name), style="bold" if call.kind == "worker" else "none")
    facts = ["waits for you"] if call.state == "asking" else []
    facts += [f"{call.elapsed(time.monotonic()):.1f}s"]
    facts += ["cut off"] if call.cut_off else []
    facts += [f"+{call.waited:.1f}s waiting"] if call.waited >= MIN_WAIT_SHOWN else []
    facts += [format_tokens(call.tokens)] if call.tokens else []
    facts += [f"${call.cost:.4f}"] if call.cost else []
    text.append(f" {' '.join(facts)}", style="dim")
    return text


def format_tokens(tokens: int) -> str:
    """Return a number of tokens in a few characters."""
    return f"{tokens} tok" if tokens < 1000 else f"{tokens / 1000:.1f}k tok"
