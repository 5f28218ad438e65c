"""The tree of calls on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ...privacy.display import visible
from .tree import MIN_WAIT_SHOWN, CallTree, Node

_MAX_CALLS = 200
_MAX_TEXT_LINES = 3

_MARKS = {
    "running": ("…", "yellow"),
    "asking": ("?", "magenta"),
    "done": ("✓", "green"),
    "refused": ("⊘", "red"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "dim"),
}


def _line(node: Node, before: str) -> Text:
    mark, colour = _MARKS[node.state]
    text = Text(before, style="dim", no_wrap=True, overflow="ellipsis")
    text.append(f"{mark} ", style=colour)
    text.append(visible(node.name), style="bold" if node.kind == "worker" else "")
    wait = f" (+{node.waited:.1f} s waiting for you)" if node.waited >= MIN_WAIT_SHOWN else ""
    facts = [f"{node.elapsed(time.monotonic()):.1f} s{wait}"]
    facts += [f"{node.tokens} tokens"] if node.tokens else []
    facts += [f"${node.cost:.4f}"] if node.cost else []
    facts += [visible(node.progress)] if node.progress and node.state == "running" else []
    facts += ["waits for you"] if node.state == "asking" else []
    facts += ["cut off"] if node.cut_off else []
    text.append(f"  {', '.join(facts)}", style="dim")
    if node.error is not None and node.state in ("failed", "refused"):
        text.append(f"  {visible(node.error.partition(chr(10))[0])}", style=colour)
    return text


def tree_lines(tree: CallTree) -> list[Text]:
    return [_line(node, before) for before, node in tree.walk()]


class LiveTree:
    """The tree on a terminal, redrawn during the run and removed after it."""

    def __init__(self, tree: CallTree) -> None:
        self._console = stderr_console()
        self._tree = tree
        self._live: Live | None = None

    def start(self) -> None:
        self._live = Live(console=self._console, get_renderable=self._render, transient=True, refresh_per_second=8)
        self._live.start()

    def stop(self) -> None:
        """Remove the tree from the screen. It can be started again."""
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def print_above(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        room = max(3, self._console.size.height - _MAX_TEXT_LINES - 2)
        lines = tree_lines(self._tree)[-_MAX_CALLS:]
        if len(lines) > room:
            lines = [Text(f"… {len(lines) - room + 1} more calls", style="dim"), *lines[-room + 1 :]]
        texts = [line for line in self._tree.text.splitlines() if line.strip()][-_MAX_TEXT_LINES:]
        return Group(
            *lines, *(Text(visible(line), style="italic", no_wrap=True, overflow="ellipsis") for line in texts)
        )


def stderr_console() -> Console:
    """Return the console for everything but the answer."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=False)
