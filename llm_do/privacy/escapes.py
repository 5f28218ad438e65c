r"""Texts behind escapes: of URLs (`%2B`), JSON and Python (`\u002b`, `\/`) and HTML (`&#43;`), also one in another."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import unescape

DEEPEST = 3  # nested escapes that are decoded: `%252B` has two
LONGEST = 64  # characters of a reading that the beginning of an escape can have, also a nested one

_URL = r"(?:%[0-9A-Fa-f]{2})+"
_BACKSLASH = r"(?:\\u[0-9A-Fa-f]{4})+|\\U[0-9A-Fa-f]{8}|\\x[0-9A-Fa-f]{2}|\\[^uUx]"
_HTML = r"&#[0-9]{1,7};|&#[xX][0-9A-Fa-f]{1,6};|&[A-Za-z][A-Za-z0-9]{1,30};"
_ALL = re.compile(f"{_URL}|{_BACKSLASH}|{_HTML}")
_EACH = (re.compile(_URL), re.compile(_BACKSLASH), re.compile(_HTML))
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def has_escapes(text: str) -> bool:
    return "%" in text or "\\" in text or "&" in text


@dataclass(frozen=True, slots=True)
class Reading:
    """A text behind escapes."""

    text: str
    above: Reading | None = None
    """The text with the escapes."""
    escapes: re.Pattern[str] = _ALL
    """The escapes that were decoded."""

    def places(self, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the positions of parts of the text, in their order, in the text with all escapes."""
        if self.above is None:
            return list(parts)
        return self.above.places(_places(self.above.text, self.escapes, parts))


def readings(text: str, *, spaces: bool = False, mixed: bool = False) -> Iterator[Reading]:
    r"""Yield a text, and the texts behind its escapes.

    Args:
        text: Any text.
        spaces: Read `+` as a space too, as in the query of a URL.
        mixed: Decode the escapes of one language at a time too: for values with a `%`, `\` or `&` of their own.
    """
    yield Reading(text)
    if not has_escapes(text) and not (spaces and "+" in text):
        return
    for escapes in (_ALL, *_EACH) if mixed else (_ALL,):
        for plus_at in (None, *range(DEEPEST)) if spaces else (None,):
            yield from _below(text, escapes, plus_at)


def _below(text: str, escapes: re.Pattern[str], plus_at: int | None) -> Iterator[Reading]:
    reading = Reading(text)
    for depth in range(DEEPEST + 1):
        if depth == plus_at:
            reading = replace(reading, text=reading.text.replace("+", " "))
            yield reading
        if not has_escapes(reading.text):
            return
        below = escapes.sub(_meaning, reading.text)
        if below == reading.text:
            return
        reading = Reading(below, reading, escapes)
        yield reading


def _meaning(escape: re.Match[str]) -> str:
    text = escape[0]
    if text[0] == "%":
        data = bytes.fromhex(text.replace("%", ""))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.decode("latin-1")
    if text[0] == "&":
        return unescape(text)
    if text[1] == "u":  # characters beyond the first 65,536 are two escapes
        codes = "".join(chr(int(code, 16)) for code in text[2:].split("\\u"))
        return codes.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if text[1] in "Ux":
        return chr(min(int.from_bytes(bytes.fromhex(text[2:])), 0x10FFFF))
    return _SIMPLE.get(text[1], text[1])


def _pieces(text: str, escapes: re.Pattern[str]) -> Iterator[tuple[int, int, int]]:
    """Yield start and end of each escape, and the length of its meaning; in a row of escapes, of each character."""
    for escape in escapes.finditer(text):
        meaning, start, end = _meaning(escape), escape.start(), escape.end()
        if text[start] == "%" or text.startswith("\\u", start):
            is_url = text[start] == "%"
            unit = 3 if is_url else 6
            is_one_each = len(meaning) * unit == end - start
            for char in meaning:
                width = 1 if is_one_each else len(char.encode()) if is_url else 1 + (ord(char) > 0xFFFF)
                yield start, start + unit * width, 1
                start += unit * width
        else:
            yield start, end, len(meaning)


def _places(text: str, escapes: re.Pattern[str], parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the positions in a text of parts of the text behind its escapes."""
    pieces = [(0, 0, 0), *_pieces(text, escapes)]
    begins, shift = list[int](), 0
    for start, end, length in pieces:
        begins.append(start - shift)
        shift += end - start - length

    def place(position: int) -> tuple[int, int]:
        """Return the start and the end of one character, or of the escape that it is behind."""
        at = bisect_right(begins, position) - 1
        start, end, length = pieces[at]
        after = position - begins[at] - length
        return (start, end) if after < 0 else (end + after, end + after + 1)

    for first, behind in parts:
        yield place(first)[0], place(behind - 1)[1]
