"""The view of a call that waits for approval (a diff, a command or the arguments), and the possible answers."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap
from typing import Any, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from ...policy.requests import ApprovalDecision, ApprovalRequest
from ...privacy.display import abridge, format_arguments, visible

_WIDTH = 50
"""About how many characters of a long value fit on a line."""
_MIN_LINES = 3
"""The screen lines that one line, or one argument, may always take."""
_NOTE = 60
"""About how many characters a note about left-out text has."""
_MOST_OFFERS = 9
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")
Line = tuple[str, str, str]
"""A mark, a text and a style."""


@dataclass
class WrappedLines:
    """Lines that wrap behind a broken bar, so that no part of a line looks like a line of its own."""

    lines: Sequence[Line]
    room: int | None
    """The number of screen lines they may take. The rest is left out, with a note."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - 2, 8)
        for mark, line, style in _fit(self.lines, self.room, width):
            for number, piece in enumerate(_wrap(mark, line, width)):
                yield Text(f"{'┆' if number else mark} {piece}", style=style, no_wrap=True, overflow="crop")


@dataclass
class ArgumentLines:
    """Arguments, laid out for the width of the screen: each value abridged to `room` lines, and all to `most`."""

    payload: dict[str, Any]
    room: int | None
    most: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = _lay_out(self.payload, self.room, self.most, options.max_width)
        yield Text("\n".join(lines), overflow="fold")


def _wrap(mark: str, line: str, width: int) -> list[str]:
    pieces = wrap(line, width) if mark == "!" else chop_cells(line, width)  # notes are ours, and may break at words
    return pieces or [""]


def _fair_share(heights: Sequence[int], room: int) -> int:
    """Return the most screen lines that each may take so that all fit, but at least a few."""
    shares = range(room, _MIN_LINES, -1) if len(heights) <= room else ()
    return next((share for share in shares if sum(min(height, share) for height in heights) <= room), _MIN_LINES)


def _fit(lines: Sequence[Line], room: int | None, width: int) -> list[Line]:
    """Return what fits of the lines: long ones without their middle, and only the first if there are too many."""
    heights = [len(_wrap(mark, text, width)) for mark, text, _ in lines]
    if room is None or sum(heights) <= room:
        return list(lines)
    share = _fair_share(heights, room)
    # A wide character takes two columns, and the note about left-out text takes room as well.
    shortened = [
        (mark, abridge(text, max(share * width * len(text) // cell_len(text) - _NOTE, width)), style)
        if height > share
        else (mark, text, style)
        for (mark, text, style), height in zip(lines, heights, strict=True)
    ]
    heights = [len(_wrap(mark, text, width)) for mark, text, _ in shortened]
    if sum(heights) <= room:
        return shortened
    kept = sum(1 for reached in accumulate(heights) if reached < room)
    left = len(shortened) - kept
    return [
        *shortened[:kept],
        ("…", f"{left:,} more {'line is' if left == 1 else 'lines are'} not shown", "bold yellow"),
    ]


def _lay_out(payload: dict[str, Any], room: int | None, most: int | None, width: int) -> list[str]:
    """Return the lines of arguments. If there are more than `most`, each argument gets its share."""
    limit, inner, blocks = (room or 0) * _WIDTH, max(width - 6, 10), []
    for name, value in payload.items():
        laid = format_arguments({name: value}, full=room is None, limit=limit, width=inner).split("\n")
        blocks.append([piece for line in laid for piece in _wrap_argument(line, width)])
    if most is None or sum(map(len, blocks)) <= most:
        return [line for block in blocks for line in block]
    share, lines = _fair_share([len(block) for block in blocks], most), list[str]()
    for block in blocks:
        # The note has no number, since the value may be abridged already. If possible, both ends are shown.
        end = block[-1:] if share > _MIN_LINES else []
        lines += block if len(block) <= share else [*block[: share - 1 - len(end)], "  … not all of it is shown", *end]
    return lines if len(lines) <= most else [*lines[: most - 1], "… not all arguments are shown"]


def _wrap_argument(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    first, *rest = chop_cells(line, max(width - 4, 4))
    return [first, *(f"  ┆ {piece}" for piece in rest)]


@dataclass(frozen=True)
class ApprovalView:
    content: RenderableType
    is_cut: bool
    """Whether some of it is left out."""


def view_request(request: ApprovalRequest, *, room: int | None, width: int = _WIDTH) -> ApprovalView:
    """Return the view of a request in about `room` screen lines, or all of it if `room` is `None`.

    The expected `width` decides what is cut. If it is too small, `is_cut` may be true although all is visible.
    """
    rest = dict(request.payload)
    lines: list[Line] = []
    if request.tool_name == "shell" and isinstance(command := rest.pop("command", None), str):
        lines = [("$" if not number else "│", visible(line), "bold") for number, line in enumerate(command.split("\n"))]
    elif request.tool_name == "sandbox.write" and isinstance(rest.get("path"), str):
        lines = _change(rest, request.before)
    cut = False
    # What fits in the given width is shown whole: on a narrower screen, no key would show the rest.
    most = room_left = None
    if room is not None:
        laid = _lay_out(rest, room, None, width)
        cut = laid != _lay_out(rest, None, None, width)
        allowed = max(room // 2, _MIN_LINES) if lines else room
        if len(laid) > allowed:
            cut, most = True, allowed
        left = max(room - max(min(len(laid), allowed) - 1, 0), _MIN_LINES)
        if _fit(lines, left, max(width - 2, 8)) != lines:
            cut, room_left = True, left
    parts: list[RenderableType] = [WrappedLines(lines, room_left)] if lines else []
    if rest:
        # A command speaks for itself, so it comes first; a diff means nothing without the path.
        parts.insert(len(parts) if request.tool_name == "shell" else 0, ArgumentLines(rest, room, most))
    return ApprovalView(Group(*parts), cut)


def _change(rest: dict[str, Any], before: Mapping[str, str | None]) -> list[Line]:
    """Return the diff of the file to write, and remove the arguments that it shows from `rest`."""
    path, (content, old, new) = rest["path"], (rest.get(name) for name in ("content", "old", "new"))
    if not isinstance(content, str) and not (isinstance(old, str) and isinstance(new, str)):
        return []
    if path not in before:
        return _note("the present file cannot be compared: it is not text, or too large")
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
    diff: list[Line] = []
    styles = {"+": "green", "-": "red", "@": "cyan", " ": "dim"}
    for line in list(difflib.unified_diff(_split_lines(before), _split_lines(after), lineterm="", n=3))[2:]:
        mark = line[0]
        text = line.strip("@ ") if mark == "@" else visible(line[1:].replace("\t", "→   "))
        diff.append((mark, text, styles.get(mark, "")))
    if diff and before and before.endswith("\n") != after.endswith("\n"):
        diff += _note(f"the last line {'ends now' if after.endswith(chr(10)) else 'no longer ends'} with a line end")
    return diff


def _split_lines(text: str) -> list[str]:
    """Split a text at newlines only: other characters that may end a line are shown."""
    return text.removesuffix("\n").split("\n") if text else []


def headline(request: ApprovalRequest) -> str:
    if request.question is not None:
        return visible(request.question)
    name = visible(request.entry)
    return f"{name} wants to run" if request.count == 1 else f"{request.count:,} identical calls of {name} wait"


class Answer(NamedTuple):
    text: str
    decision: ApprovalDecision | None = None
    """`None` if the person is asked for more: a note or other arguments."""


def possible_answers(
    request: ApprovalRequest, *, session: str, only_offer: str, end: str, show_all: str | None
) -> dict[str, Answer]:
    """Return the answers to a request, by their keys.

    `session` and `end` are texts: of a yes for the session, and of a no that ends more than the call. `only_offer` and
    `show_all` are keys: for an offer, if it is the only one, and to show what is left out, or `None` if nothing is.
    """
    yes, no = ApprovalDecision(approved=True), ApprovalDecision(approved=False)
    if request.question is not None:
        return {"y": Answer("yes", yes), "n": Answer("no", no)}
    count, offers = request.count, request.offers[:_MOST_OFFERS]
    keys = [only_offer] if len(offers) == 1 else [str(number) for number in range(1, len(offers) + 1)]
    answers = {"y": Answer("yes, this once" if count == 1 else "yes, to one of them", yes)}
    if count > 1:
        answers["a"] = Answer(f"yes, to all {count:,}", ApprovalDecision(approved=True, all_calls=True))
    answers["s"] = Answer(session, ApprovalDecision(approved=True, approve_for_session=True))
    for key, offer in zip(keys, offers, strict=True):
        decision = ApprovalDecision(approved=True, grant=offer)
        answers[key] = Answer(f"yes, in this session: {visible(offer.text)}", decision)
    answers["e"] = Answer("edit the arguments" if count == 1 else "edit the arguments of one")
    answers["n"] = Answer("no, with a note" if count == 1 else f"no, to all {count:,}, with a note")
    if show_all is not None:
        answers[show_all] = Answer("show all of it")
    return answers | {"q": Answer(end, ApprovalDecision(approved=False, end_run=True))}


def editable_json(payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the arguments that can be edited, as JSON with every character visible, and those that cannot."""
    editable: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for name, value in payload.items():
        try:
            json.dumps(value, allow_nan=False)
            editable[name] = value
        except (TypeError, ValueError, RecursionError):
            fixed[name] = value
    text = json.dumps(editable, indent=2, ensure_ascii=False)
    return _UNPRINTABLE.sub(_escape_invisible, text), fixed


def _escape_invisible(found: re.Match[str]) -> str:
    return found[0] if visible(found[0]) == found[0] else json.dumps(found[0])[1:-1]
