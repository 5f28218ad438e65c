"""Text that is safe to show to a person who decides.

A person who approves a call reads what a model wrote. Characters that move the cursor, change the direction of writing
or have no width could make a screen show something else than what will run. Here they are escaped.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from ..values.fields import EXTRA, Fields, parts_of

LIMIT = 2_000  # characters of one value, unless `full`
_MOST_ITEMS = 200
_MOST_NODES = 2_000

# Printable according to Python, but invisible, or they change the character before them: variation selectors, joiners
# and fillers.
_HAS_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

# A backslash is doubled where it could be taken for the start of an escape: before x, u and U, before another
# backslash, and before anything that may be escaped itself.
_Rules = tuple[re.Pattern[str], re.Pattern[str]]
_KEEPING: dict[str, _Rules] = {
    keep: (re.compile(rf"\\(?=[\\xuU]|[^ -~{keep}])"), re.compile(f"[^ -~{keep}]+"))
    for keep in ("", "\n", "\t", "\n\t")
}
_QUOTED: _Rules = (re.compile(r'\\(?=[\\xuU"]|[^ -~]|\Z)'), re.compile(r'[^ -~]+|"'))


def visible(text: str, *, keep: str = "") -> str:
    r"""Return a text with each character that could mislead on a screen as an escape: `\x1b`, `\u202e`, `\U000e0041`.

    Escaped are control characters, those that set the direction of writing, those without width or ink, separators
    other than the space, and unassigned, private and surrogate characters. A newline and a tab in `keep` stay as they
    are.

    No two texts look the same: a backslash that stands in the text is doubled wherever it could be read as the start
    of an escape (before `x`, `u`, `U`, another backslash, or a character outside ASCII). `C:\new` stays `C:\new`; the
    six characters `\u202e` become `\\u202e`.
    """
    return _escape_text(text, _KEEPING["".join(char for char in "\n\t" if char in keep)])


def _escape_text(text: str, rules: _Rules) -> str:
    ambiguous, escaped = rules
    return escaped.sub(_escape, ambiguous.sub(r"\\\\", text))


def _escape(found: re.Match[str]) -> str:
    """Return a run of characters that are not ASCII, or a quotation mark, with escapes for those that could mislead."""
    run = found[0]
    return run if _is_clear(run) else "".join(char if _is_clear(char) else _code(ord(char)) for char in run)


def _is_clear(text: str) -> bool:
    return text != '"' and text.isprintable() and not _HAS_UNSEEN.search(text)


def _code(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def abridge(text: str, limit: int) -> str:
    """Return a text of about `limit` characters, with a note in place of the middle.

    The note has the number of characters left out, and of all. A text that would not get shorter stays whole.
    """
    limit = max(limit, 2)
    tail = limit // 2
    excess = len(text) - limit
    if excess <= 0:
        return text
    short = f"{text[: limit - tail]} … [{excess:,} of {len(text):,} characters not shown] … {text[-tail:]}"
    return short if len(short) < len(text) else text


def format_arguments(payload: Mapping[str, Any], *, full: bool = False, limit: int = LIMIT, width: int = 100) -> str:
    """Return arguments as text for a person: one in a line, `name: value`, and longer texts as a block below the name.

    Lines of a block start with a bar, and continue after a broken one where a line is longer than `width`, so that no
    text can pose as another argument. Nested data is written like JSON, bytes as their size and kind. Everything is
    made visible, names as well. Unless `full`, long values are abridged to about `limit` characters, and of many only
    the first ones are there.
    """
    shorten: Callable[[str], str] = (lambda text: text) if full else (lambda text: abridge(text, limit))
    lines: list[str] = []
    try:
        items = list(payload.items() if full else islice(payload.items(), _MOST_ITEMS))
        count = len(payload)
    except Exception:  # a mapping of some class that cannot be read
        return _visible_repr(payload)
    for name, value in items:
        label = _name(name, shorten)
        if isinstance(value, str):
            text = shorten(str.__str__(value))
            if "\n" in text or len(text) > width:
                lines += [f"{label}:", *_block(visible(text, keep="\n\t"), width)]
                continue
            text = _quoted(text) if _MISLEADING.match(text) else visible(text)
        else:
            text = shorten(_compact(value, shorten, full))
        lines += [f"{label}: {text}"] if len(text) <= width else [f"{label}:", *_block(text, width)]
    if count > len(items):
        lines.append(f"[{count - len(items):,} of {count:,} arguments not shown]")
    return "\n".join(lines)


_MISLEADING = re.compile(r'\Z|\s|[\w.]*[\[{<("]|-?[0-9]|(?:true|false|null|-?Infinity|NaN)\Z|.*\s\Z', re.DOTALL)
"""Texts that could be mistaken for other values, or for shorter texts. They get quotes."""
_PLAIN_NAME = re.compile(r"[\w.-]+\Z")


def _name(name: object, shorten: Callable[[str], str]) -> str:
    text = shorten(str.__str__(name) if isinstance(name, str) else _visible_repr(name))
    return visible(text) if _PLAIN_NAME.match(text) else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{_escape_text(text, _QUOTED)}"'


def _block(text: str, width: int) -> Iterable[str]:
    for line in text.split("\n"):
        # Other scripts may take two columns for a character, and a terminal must never break a line by itself.
        room = max(width if line.replace("…", "").isascii() else width // 2, 10)
        yield f"  │ {line[:room]}"
        for start in range(room, len(line), room):
            yield f"  ┆ {line[start : start + room]}"


class _Raw(str):
    """Punctuation between values."""

    __slots__ = ()


@dataclasses.dataclass(slots=True)
class _Leave:
    """The end of a container. It keeps the container, so that no other one has its identity meanwhile."""

    container: Any


def _compact(value: Any, shorten: Callable[[str], str], full: bool) -> str:
    """Return nested data in one line, like JSON. It goes as deep as the data does, without recursion."""
    pieces: list[str] = []
    inside: set[int] = set()
    todo: list[Any] = [value]
    nodes = 0
    while todo:
        item = todo.pop()
        if type(item) is _Raw:
            pieces.append(item)
        elif type(item) is _Leave:
            inside.discard(id(item.container))
        elif not full and nodes > _MOST_NODES:
            pieces.append("…")
        else:
            nodes += 1
            parts = _parts(item, shorten, full)
            if isinstance(parts, str):
                pieces.append(parts)
            elif id(item) in inside:
                pieces.append("<itself again>")
            else:
                inside.add(id(item))
                todo.append(_Leave(item))
                todo.extend(reversed(parts))
    return "".join(pieces)


def _parts(item: Any, shorten: Callable[[str], str], full: bool) -> str | list[Any]:
    """Return the text of a value, or the brackets and items of a container."""
    if item is None or item is True or item is False:
        return {None: "null", True: "true", False: "false"}[item]
    try:
        if isinstance(item, str):
            return _quoted(shorten(str.__str__(item)))
        return _bytes(item) if isinstance(item, bytes | bytearray | memoryview) else _items(item, shorten, full)
    except Exception:  # whatever it is, it must not break the question
        return _visible_repr(item)


def _items(item: Any, shorten: Callable[[str], str], full: bool) -> str | list[Any]:
    most = None if full else _MOST_ITEMS
    inner: list[Any] = []
    start, extra = "", dict[str, Any]()
    match parts_of(item):
        case None:
            return shorten(_visible_repr(item))
        case Fields(pairs, extra):
            start = visible(type(item).__name__)
        case Mapping() as pairs:
            pass
        case elements:
            for element in islice(elements, most):
                inner += [_Raw(", "), element]
            return [_Raw("["), *inner[1:], *_rest(len(elements), most), _Raw("]")]
    for name, element in islice(pairs.items(), most):
        inner += [_Raw(", "), _Raw(f"{_name(name, shorten)}: "), element]
    inner += _rest(len(pairs), most)
    if extra:  # no key of a mapping is written like this: it would be in quotes
        inner += [_Raw(", "), _Raw(f"{EXTRA}: "), extra]
    return [_Raw(f"{start}{{"), *inner[1:], _Raw("}")]


def _rest(count: int, most: int | None) -> list[Any]:
    return [_Raw(f", … [{count - most:,} of {count:,} not shown]")] if most is not None and count > most else []


def _visible_repr(item: object) -> str:
    try:
        return visible(repr(item))
    except Exception:  # its own code fails, or the repr has no end
        return visible(f"<{type(item).__name__} that cannot be shown>")


_SIGNATURES = {
    b"\x89PNG": "PNG image",
    b"\xff\xd8\xff": "JPEG image",
    b"GIF8": "GIF image",
    b"%PDF": "PDF",
    b"PK\x03\x04": "ZIP archive",
    b"\x1f\x8b": "gzip archive",
    b"\x7fELF": "ELF program",
    b"MZ": "Windows program",
    b"#!": "script",
}


def _bytes(item: bytes | bytearray | memoryview) -> str:
    head = bytes(item[:512])
    kind = next((kind for start, kind in _SIGNATURES.items() if head.startswith(start)), None)
    if kind is None:
        kind = "text" if head and head.isascii() and head.decode().replace("\n", "").isprintable() else "binary"
    size = item.nbytes if isinstance(item, memoryview) else len(item)
    return f"<{size:,} bytes, {kind}>"
