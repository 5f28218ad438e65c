"""The tree of calls on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ...privacy.display import visible
from .tree import CallTree, Node, waiting

if TYPE_CHECKING:
    from ...core.events import Event

_LINES = 200
"""How many calls are kept on the screen's list; of more, the first are counted."""
_SPOKEN = 3
"""How many lines of what a worker is saying are shown."""

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
    facts = [f"{node.elapsed(time.monotonic()):.1f} s{waiting(node.waited)}"]
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
    """The tree, a line for each call."""
    return [_line(node, before) for before, node in tree.walk()]


class LiveTree:
    """The tree on a terminal, redrawn while the run goes, and gone when it is over."""

    def __init__(self, console: Console) -> None:
        self.tree = CallTree()
        self._console = console
        self._live = Live(console=console, get_renderable=self._render, transient=True, refresh_per_second=8)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        """Take it off the screen. It can be started again."""
        self._live.stop()
        self._live = Live(console=self._console, get_renderable=self._render, transient=True, refresh_per_second=8)

    def print_above(self, text: str) -> None:
        """Print a line that stays, above the tree. Printed otherwise, it would be drawn into it."""
        self._console.print(text, markup=False, soft_wrap=True)

    def on_event(self, event: Event) -> None:
        self.tree.on_event(event)

    def _render(self) -> RenderableType:
        room = max(3, self._console.size.height - _SPOKEN - 2)
        lines = tree_lines(self.tree)[-_LINES:]
        if len(lines) > room:
            lines = [Text(f"… {len(lines) - room + 1} more calls", style="dim"), *lines[-room + 1 :]]
        spoken = [line for line in self.tree.spoken.splitlines() if line.strip()][-_SPOKEN:]
        said = [Text(visible(line), style="italic", no_wrap=True, overflow="ellipsis") for line in spoken]
        return Group(*lines, *said)


def stderr_console() -> Console:
    """Where everything but the answer goes."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=False)
