"""What somebody sees who is asked whether a call may run: a diff, a command, or the arguments."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from ...policy.requests import ApprovalRequest
from ...privacy.display import abridge, format_arguments, visible

_WIDTH = 50
"""About how many characters of a long value go into a line."""
_FEW = 3
"""How many lines of a screen one line, or one argument, can take in any case."""
_NOTE = 60
"""About how many characters say that something is left out."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")
Line = tuple[str, str, str]
"""A mark, a text and a style."""


class Barred:
    """Lines that go on after a broken bar where the screen ends, so that none can pose as the next one."""

    def __init__(self, lines: Sequence[Line], room: int | None = None) -> None:
        """`room` is how many lines of a screen they may take. What does not fit is left out, with a note."""
        self._lines = lines
        self._room = room

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - 2, 8)
        for mark, line, style in _fitted(self._lines, self._room, width):
            for number, piece in enumerate(_pieces(mark, line, width)):
                yield Text(f"{'┆' if number else mark} {piece}", style=style, no_wrap=True, overflow="crop")


class LaidOut:
    """Arguments, as wide as the screen is."""

    def __init__(self, payload: dict[str, Any], room: int | None, most: int | None = None) -> None:
        """Values are abridged to about `room` lines each, and all of them take `most` lines of a screen."""
        self._payload = payload
        self._room = room
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = _laid_out(self._payload, self._room, self._most, options.max_width)
        yield Text("\n".join(lines), overflow="fold")


def _pieces(mark: str, line: str, width: int) -> list[str]:
    """A line as a screen of that width shows it."""
    pieces = wrap(line, width) if mark == "!" else chop_cells(line, width)  # a note is ours, and no evidence
    return pieces or [""]


def _height(line: Line, width: int) -> int:
    return len(_pieces(line[0], line[1], width))


def _share(heights: Sequence[int], room: int) -> int:
    """How many lines of a screen each may take, so that all fit: as many as can be, and at least a few."""
    shares = range(room, _FEW, -1) if len(heights) <= room else ()
    return next((share for share in shares if sum(min(height, share) for height in heights) <= room), _FEW)


def _fitted(lines: Sequence[Line], room: int | None, width: int) -> list[Line]:
    """As much of some lines as fits: long ones without their middle, and the first ones if these are too many."""
    heights = [_height(line, width) for line in lines]
    if room is None or sum(heights) <= room:
        return list(lines)
    share = _share(heights, room)
    # A wide character takes two columns, and the note of what is left out takes room as well.
    shown = [
        (mark, abridge(text, max(share * width * len(text) // cell_len(text) - _NOTE, width)), style)
        if height > share
        else (mark, text, style)
        for (mark, text, style), height in zip(lines, heights, strict=True)
    ]
    heights = [_height(line, width) for line in shown]
    if sum(heights) <= room:
        return shown
    kept = sum(1 for reached in accumulate(heights) if reached < room)
    left = len(shown) - kept
    return [*shown[:kept], ("…", f"{left:,} more {'line is' if left == 1 else 'lines are'} not shown", "bold yellow")]


def _laid_out(payload: dict[str, Any], room: int | None, most: int | None, width: int) -> list[str]:
    """The lines of arguments. If they are more than `most`, each argument gets its share of them."""
    limit, inner, blocks = (room or 0) * _WIDTH, max(width - 6, 10), []
    for name, value in payload.items():
        laid = format_arguments({name: value}, full=room is None, limit=limit, width=inner).split("\n")
        blocks.append([piece for line in laid for piece in _broken(line, width)])
    if most is None or sum(map(len, blocks)) <= most:
        return [line for block in blocks for line in block]
    share, lines = _share([len(block) for block in blocks], most), list[str]()
    for block in blocks:
        # How much is left out is not said: the value may have been abridged before. Both ends are seen, if that can be.
        end = block[-1:] if share > _FEW else []
        lines += block if len(block) <= share else [*block[: share - 1 - len(end)], "  … not all of it is shown", *end]
    return lines if len(lines) <= most else [*lines[: most - 1], "… not all arguments are shown"]


def _broken(line: str, width: int) -> list[str]:
    """A line that is as wide as a screen, or as several lines. A long name is enough to need that."""
    if cell_len(line) <= width:
        return [line]
    first, *rest = chop_cells(line, max(width - 4, 4))
    return [first, *(f"  ┆ {piece}" for piece in rest)]


@dataclass(frozen=True)
class Evidence:
    """What there is to see about a request."""

    shown: RenderableType
    cut: bool
    """Whether there is more than that."""


def gather(request: ApprovalRequest, *, room: int | None, width: int = _WIDTH) -> Evidence:
    """What to show about a request, in about so many lines of a screen, or all of it if `room` is `None`.

    `width` is how wide the lines will be: it decides what counts as cut, and one that is too small only offers to show
    more where all of it is seen.
    """
    rest = dict(request.payload)
    lines: list[Line] = []
    if request.tool_name == "shell" and isinstance(command := rest.pop("command", None), str):
        lines = [("$" if not number else "│", visible(line), "bold") for number, line in enumerate(command.split("\n"))]
    elif request.tool_name == "sandbox.write" and isinstance(rest.get("path"), str):
        lines = _change(rest, request.before)
    cut = False
    # Nothing is left out of what fits as wide as we were told: a narrower screen has no key to show it.
    most = room_left = None
    if room is not None:
        laid = _laid_out(rest, room, None, width)
        cut = laid != _laid_out(rest, None, None, width)
        allowed = max(room // 2, _FEW) if lines else room
        if len(laid) > allowed:
            cut, most = True, allowed
        left = max(room - max(min(len(laid), allowed) - 1, 0), _FEW)
        if _fitted(lines, left, max(width - 2, 8)) != lines:
            cut, room_left = True, left
    parts: list[RenderableType] = [Barred(lines, room_left)] if lines else []
    if rest:
        # A command says most by itself; a diff says nothing without the path.
        parts.insert(len(parts) if request.tool_name == "shell" else 0, LaidOut(rest, room, most))
    return Evidence(Group(*parts), cut)


def _change(rest: dict[str, Any], before: Mapping[str, str | None]) -> list[Line]:
    """What writing would change in the file that it is held to. Arguments that it shows are taken out of `rest`."""
    path, (content, old, new) = rest["path"], (rest.get(name) for name in ("content", "old", "new"))
    if not isinstance(content, str) and not (isinstance(old, str) and isinstance(new, str)):
        return []
    if path not in before:
        return _note("what is there cannot be compared: it is no text, or too large")
    now = before[path]
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


def headline(request: ApprovalRequest) -> str:
    """Return what is asked, in one line: one call wants to run, or several identical ones wait."""
    if request.question is not None:
        return visible(request.question)
    name = visible(request.entry)
    return f"{name} wants to run" if request.count == 1 else f"{request.count:,} identical calls of {name} wait"


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
