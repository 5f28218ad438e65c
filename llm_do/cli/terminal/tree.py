"""The calls of a run as a tree, kept up to date by its events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from ...core.events import Event

MIN_WAIT_SHOWN = 0.05
"""The seconds of the shortest wait for a person that is shown."""


@dataclass(slots=True)
class Node:
    name: str
    kind: str
    started: float
    state: str = "running"
    seconds: float = 0.0
    tokens: int = 0
    cost: Decimal | None = None
    children: list[int] = field(default_factory=list)
    error: str | None = None
    parent: int | None = None
    waited: float = 0.0
    """Seconds of waiting for a person, about this call or a nested one."""
    cut_off: bool = False
    progress: str = ""
    """The progress that a tool of a server reports."""
    open_questions: int = 0
    asked_at: float = 0.0

    def elapsed(self, now: float) -> float:
        """Return the seconds that the call has taken, without waits for a person."""
        if self.state not in ("running", "asking"):
            return self.seconds
        return (self.asked_at if self.open_questions else now) - self.started - self.waited


class CallTree:
    """A sink that builds the tree from the events of a session."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.roots: list[int] = []
        self.text = ""
        """The text that the speaker is writing."""
        self.speaker = ""

    def on_event(self, event: Event) -> None:
        match event.type:
            case "call_opened":
                node = Node(event.name, event.kind, time.monotonic(), parent=event.parent_id)
                self.nodes[event.call_id] = node
                parent = self.nodes.get(event.parent_id) if event.parent_id is not None else None
                (self.roots if parent is None else parent.children).append(event.call_id)
            case "approval_requested":
                self._set(event.call_id, "asking")
                self._count_question(event.call_id, 1)
            case "approval_decided":
                if (asking := self.nodes.get(event.call_id)) is not None and asking.state == "asking":
                    self._count_question(event.call_id, -1)
                self._set(event.call_id, "running" if event.outcome.approved else "refused")
            case "text_delta" if not event.thinking:
                if event.worker != self.speaker:
                    self.speaker, self.text = event.worker or "", ""
                self.text = (self.text + event.text)[-2000:]
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
        """Stop the clocks of a call and its callers at the first open question, and restart them after the last one."""
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
        if node.state == "asking":  # cancelled before the answer
            self._count_question(event.call_id, -1)
        node.seconds, node.error, node.waited = event.duration, event.error or event.failure, event.waited
        node.cut_off = event.cut_off is not None
        if node.state != "refused":
            is_cancelled = event.error is not None and event.error.startswith("cancelled")
            node.state = "cancelled" if is_cancelled else "done" if node.error is None else "failed"
        if event.usage is not None:
            node.tokens, node.cost = event.usage.total_tokens, event.usage.cost
        if event.name == self.speaker:
            self.text = ""

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Yield each call, with the branches to draw before it."""
        stack = [(root, "", "") for root in reversed(self.roots)]
        while stack:
            number, first, rest = stack.pop()
            node = self.nodes[number]
            yield first, node
            for child in reversed(node.children):
                last = child == node.children[-1]
                stack.append((child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"))
