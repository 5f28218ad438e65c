"""What somebody sees who is asked whether a call may run: a diff, a command, or the arguments."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from ..approval import ApprovalRequest
from ..display import layout, visible
from ..errors import LlmDoError, PathMissing
from ..protocols import EntryBase
from ..runtime import Runtime

_WIDTH = 50
"""About how many characters of a long value go into a line."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")
Line = tuple[str, str, str]
"""A mark, a text and a style."""


class Barred:
    """Lines that go on after a broken bar where the screen ends, so that none can pose as the next one."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.max_width - 2, 8)
        for mark, line, style in self._lines:
            pieces = wrap(line, room) if mark == "!" else chop_cells(line, room)  # a note is ours, and no evidence
            for number, piece in enumerate(pieces or [""]):
                yield Text(f"{'┆' if number else mark} {piece}", style=style, no_wrap=True, overflow="crop")


class LaidOut:
    """Arguments, as wide as the screen is."""

    def __init__(self, payload: dict[str, Any], room: int | None) -> None:
        self._payload = payload
        self._room = room

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, limit = max(options.max_width - 6, 10), (self._room or 0) * _WIDTH
        yield Text(layout(self._payload, full=self._room is None, limit=limit, width=width))


@dataclass(frozen=True)
class Evidence:
    """What there is to see about a request."""

    shown: RenderableType
    cut: bool
    """Whether there is more than that."""


def gather(request: ApprovalRequest, present: Callable[[str], str | None], *, room: int | None) -> Evidence:
    """What to show about a request, in about so many lines, or all of it if `room` is `None`.

    `present` reads a file as it is now; `None` says that nothing is there.
    """
    rest = dict(request.payload)
    cut = False
    lines: list[Line] = []
    if request.tool_name == "shell" and isinstance(command := rest.pop("command", None), str):
        lines = [("$" if not number else "│", visible(line), "bold") for number, line in enumerate(command.split("\n"))]
    elif request.tool_name == "sandbox.write" and isinstance(rest.get("path"), str):
        lines = _change(rest, present)
    if room is not None and len(lines) > room:
        cut, left = True, len(lines) - room + 1
        lines = [*lines[: room - 1], ("…", f"{left:,} more lines are not shown", "bold yellow")]
    parts: list[RenderableType] = [Barred(lines)] if lines else []
    if rest:
        # A command says most by itself; a diff says nothing without the path.
        parts.insert(len(parts) if request.tool_name == "shell" else 0, LaidOut(rest, room))
        cut = cut or (room is not None and layout(rest, limit=room * _WIDTH) != layout(rest, full=True))
    return Evidence(Group(*parts), cut)


def _change(rest: dict[str, Any], present: Callable[[str], str | None]) -> list[Line]:
    """What writing would change in a file. Arguments that it shows are taken out of `rest`."""
    path, content, old, new = (rest.get(name) for name in ("path", "content", "old", "new"))
    if not isinstance(content, str) and not (isinstance(old, str) and isinstance(new, str)):
        return []
    try:
        now = present(str(path))
    except LlmDoError as exc:
        return [("!", visible(f"The file cannot be compared: {exc}"), "yellow")]
    if isinstance(content, str):
        del rest["content"]
        note = "a new file" if now is None else "no change" if now == content else ""
        return [*_note(note), *_diff(now or "", content)]
    assert isinstance(old, str) and isinstance(new, str)
    del rest["old"], rest["new"]
    if now is None or now.count(old) != 1:
        return [*_note("the text to replace is not there exactly once: this will fail"), *_diff(old, new)]
    return _diff(now, now.replace(old, new))


def _note(text: str) -> list[Line]:
    return [("!", text, "yellow")] if text else []


def _diff(before: str, after: str) -> list[Line]:
    made: list[Line] = []
    styles = {"+": "green", "-": "red", "@": "cyan", " ": "dim"}
    for line in list(difflib.unified_diff(_lines(before), _lines(after), lineterm="", n=3))[2:]:
        mark = line[0]
        text = line.strip("@ ") if mark == "@" else visible(line[1:].replace("\t", "→   "))
        made.append((mark, text, styles.get(mark, "")))
    if made and before and before.endswith("\n") != after.endswith("\n"):
        made += _note(f"the last line {'ends now' if after.endswith(chr(10)) else 'no longer ends'} with a line end")
    return made


def _lines(text: str) -> list[str]:
    """The lines of a text. Only a newline ends one: anything else that some editor takes for an end is shown."""
    return text.removesuffix("\n").split("\n") if text else []


def reader(runtime: Runtime, worker: str | None) -> Callable[[str], str | None]:
    """Reads files through the sandbox of the worker that asks, without its secrets."""

    def read(path: str) -> str | None:
        session = runtime.context().session
        entry = session.entries[worker] if worker is not None else None
        sandbox = entry.open_sandbox() if isinstance(entry, EntryBase) else None
        if sandbox is None:
            return None
        try:
            root, rest = sandbox.manager.parse(path)
            text: str = session.recorder.secrets.redact(sandbox.read_text(root.name, rest))
            return text
        except PathMissing:
            return None
        finally:
            sandbox.manager.close()

    return read


def as_json(payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The arguments that can be edited, as JSON in which every character is seen, and those that cannot."""
    editable: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for name, value in payload.items():
        try:
            json.dumps(value, allow_nan=False)
            editable[name] = value
        except (TypeError, ValueError, RecursionError):
            fixed[name] = value
    text = json.dumps(editable, indent=2, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0]), text), fixed


def _escaped(char: str) -> str:
    return char if visible(char) == char else json.dumps(char)[1:-1]
