"""The calls of a run as a tree: what is known of each, while it goes and when it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...core.events import Event

WORTH_TELLING = 0.05
"""From how many seconds on the wait for a person is shown."""


@dataclass(slots=True)
class Node:
    """One call."""

    name: str
    kind: str
    depth: int
    started: float
    state: str = "running"
    seconds: float = 0.0
    tokens: int = 0
    cost: Decimal | None = None
    children: list[int] = field(default_factory=list)
    error: str | None = None
    parent: int | None = None
    waited: float = 0.0
    """Seconds for which a person was asked, about this call or one below it."""
    cut_off: bool = False
    progress: str = ""
    """How far a tool of a server says it is."""
    open_questions: int = 0
    asked_at: float = 0.0

    def elapsed(self, now: float) -> float:
        """Return the seconds that a call took so far, without those for which a person was asked."""
        if self.state not in ("running", "asking"):
            return self.seconds
        return (self.asked_at if self.open_questions else now) - self.started - self.waited


def waiting(seconds: float) -> str:
    """Say for how long a person was asked, where that is worth a word."""
    return f" (+{seconds:.1f} s waiting for you)" if seconds >= WORTH_TELLING else ""


class CallTree:
    """Follows the events of a session."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.roots: list[int] = []
        self.spoken = ""
        self.speaker = ""

    def on_event(self, event: Event) -> None:
        match event.type:
            case "call_opened":
                node = Node(event.name, event.kind, event.depth, time.monotonic(), parent=event.parent_id)
                self.nodes[event.call_id] = node
                parent = self.nodes.get(event.parent_id) if event.parent_id is not None else None
                (self.roots if parent is None else parent.children).append(event.call_id)
            case "approval_requested":
                self._set(event.call_id, "asking")
                self._count_question(event.call_id, 1)
            case "approval_decided":
                asked = self.nodes.get(event.call_id)
                if asked is not None and asked.state == "asking":
                    self._count_question(event.call_id, -1)
                self._set(event.call_id, "running" if event.outcome.approved else "refused")
            case "text_delta" if not event.thinking:
                if event.worker != self.speaker:
                    self.speaker, self.spoken = event.worker or "", ""
                self.spoken = (self.spoken + event.text)[-2000:]
            case "progress":
                if (working := self.nodes.get(event.call_id)) is not None:
                    of = f"/{event.total:g}" if event.total is not None else ""
                    working.progress = f"{event.progress:g}{of}{f' {event.message}' if event.message else ''}"
            case "call_closed":
                self._close(event)

    def _set(self, call_id: int, state: str) -> None:
        if (node := self.nodes.get(call_id)) is not None:
            node.state = state

    def _count_question(self, call_id: int | None, change: int) -> None:
        """Stop the clocks of a call and of those above it with the first open question; start them after the last."""
        now = time.monotonic()
        while call_id is not None and (node := self.nodes.get(call_id)) is not None:
            if not node.open_questions:
                node.asked_at = now
            node.open_questions += change
            if not node.open_questions:
                node.waited += now - node.asked_at
            call_id = node.parent

    def _close(self, event: Event) -> None:
        assert event.type == "call_closed"
        node = self.nodes.get(event.call_id)
        if node is None:
            return
        if node.state == "asking":  # it was cancelled meanwhile
            self._count_question(event.call_id, -1)
        node.seconds, node.error, node.waited = event.duration, event.error or event.failure, event.waited
        node.cut_off = event.cut_off is not None
        if event.error is None and event.failure is not None and node.state != "refused":
            node.state = "failed"
        elif event.error is not None and node.state != "refused":
            node.state = "cancelled" if event.error.startswith("cancelled") else "failed"
        elif node.state != "refused":
            node.state = "done"
        if event.usage is not None:
            node.tokens, node.cost = event.usage.total_tokens, event.usage.cost
        if event.name == self.speaker:
            self.spoken = ""

    def walk(self) -> Iterator[tuple[str, Node]]:
        """All calls, each with what stands before it on its line."""
        stack = [(root, "", "") for root in reversed(self.roots)]
        while stack:
            number, first, rest = stack.pop()
            node = self.nodes[number]
            yield first, node
            for child in reversed(node.children):
                last = child == node.children[-1]
                stack.append((child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"))
