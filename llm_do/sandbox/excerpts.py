"""Bounded parts of long texts, for models: a range of lines, both ends of a stream, the beginning of a list.

Each ends with a sentence on what is omitted and how to read on. Secrets are removed before a text is truncated: half of
one would not be found.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ..privacy.secrets import StreamedText

MAX_LINES = 2_000
"""The number of lines that are read at once by default."""
MAX_CHARACTERS = 100_000
"""The greatest length of a text for a model, with the sentence at its end."""
_NOTE_CHARACTERS = 300  # room for that sentence
_MAX_LOOKAHEAD = 64_000_000  # bytes behind a range in which lines are counted

MakeCleaner: TypeAlias = Callable[[], StreamedText]
"""Returns an object that removes secrets from a text in pieces, and keeps its line ends."""


def clean(text: str, make_cleaner: MakeCleaner | None) -> str:
    if make_cleaner is None:
        return text
    cleaner = make_cleaner()
    return cleaner.add(text) + cleaner.rest()


class NotText(ValueError):
    """The position of the first byte that is not UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRange:
    """Lines of a text file. They end with a line feed and are counted from 1."""

    text: str
    first: int
    column: int
    """The first character of the first line, counted from 1."""
    next_column: int | None
    """The next character of the line, if one line was too long to be read at once."""
    lines: int
    """The number of lines in the file, or of those that were counted."""
    counted_all: bool

    @property
    def last(self) -> int:
        """The number of the last line, of which at least a part is here."""
        return self.first + self.text.count("\n") - self.text.endswith("\n")

    @property
    def at_end(self) -> bool:
        """Return whether the range goes to the end of the file."""
        return self.counted_all and self.last >= self.lines and self.next_column is None

    def for_model(self) -> str:
        """Return the text and, if it is not the whole file, a sentence on how to read on."""
        if self.at_end and self.first == self.column == 1:
            return self.text
        total = f"{self.lines:,}" if self.counted_all else f"more than {self.lines:,}"
        lines = f"Line {self.first}" if self.first == self.last else f"Lines {self.first}-{self.last}"
        if self.next_column is not None:
            start = f"{lines} of {total}, characters {self.column}-{self.next_column - 1} of that line."
            then = f"Call read_file with offset={self.first} and column={self.next_column} to read on."
        else:
            begins = f", from character {self.column} on" if self.column > 1 else ""
            start = f"{lines} of {total}{begins}."
            then = "The file ends here." if self.at_end else f"Call read_file with offset={self.last + 1} to read on."
        return f"{_with_line_end(self.text)}[{start} {then}]"


def read_range(
    chunks: Iterable[bytes],
    *,
    offset: int = 1,
    limit: int = MAX_LINES,
    column: int = 1,
    max_characters: int = MAX_CHARACTERS,
    make_cleaner: MakeCleaner | None = None,
) -> LineRange:
    """Return lines of a text from its bytes. No others are kept in memory.

    The arguments are those of `SandboxToolset.read_lines`. If lines do not fit into `max_characters`, only the first
    can be truncated; others are omitted as a whole.
    """
    chunks_read = _CountedChunks(chunks)
    room = max_characters - _NOTE_CHARACTERS
    text = _slice_lines(_texts(chunks_read, make_cleaner), offset, column, room + 1, limit)
    chunks_read.read_ahead(_MAX_LOOKAHEAD)
    next_column = None
    if len(text) > room:
        whole_lines = text.rfind("\n", 0, room) + 1
        text = text[: whole_lines or room]
        next_column = None if whole_lines else column + room
    return LineRange(
        text=text,
        first=offset,
        column=column,
        next_column=next_column,
        lines=chunks_read.lines,
        counted_all=chunks_read.is_exhausted,
    )


def is_text(chunks: Iterable[bytes]) -> bool:
    """Return whether bytes are UTF-8 text: without null bytes, and no PDF, which may be written in ASCII."""
    try:
        return not any(
            "\0" in text or (number == 0 and text.startswith("%PDF-")) for number, text in enumerate(_texts(chunks))
        )
    except NotText:
        return False


class _CountedChunks:
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._line_ends = 0
        self._last = b"\n"
        self.is_exhausted = False

    @property
    def lines(self) -> int:
        """The number of lines so far, with a last one that has no line end."""
        return self._line_ends + (self._last != b"\n")

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if chunk:
                self._line_ends += chunk.count(b"\n")
                self._last = chunk[-1:]
            yield chunk
        self.is_exhausted = True

    def read_ahead(self, max_bytes: int) -> None:
        """Read on to the end, or for about `max_bytes`."""
        for chunk in self:
            max_bytes -= len(chunk)
            if max_bytes < 0:
                return


class _TextDecoder:
    def __init__(self, make_cleaner: MakeCleaner | None, errors: str = "strict") -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors)
        self._cleaner = None if make_cleaner is None else make_cleaner()
        self._position = 0

    def decode(self, chunk: bytes, *, final: bool = False) -> str:
        """Return more of the text. Raise `NotText` at an invalid byte."""
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(chunk, final)
        except UnicodeDecodeError as exc:
            raise NotText(self._position - pending + exc.start) from None
        self._position += len(chunk)
        if self._cleaner is None:
            return text
        return self._cleaner.add(text) + (self._cleaner.rest() if final else "")


def _texts(chunks: Iterable[bytes], make_cleaner: MakeCleaner | None = None) -> Iterator[str]:
    decoder = _TextDecoder(make_cleaner)
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _slice_lines(pieces: Iterable[str], offset: int, column: int, max_characters: int, limit: int) -> str:
    """Return the text from a line and column on: up to `limit` whole lines, or `max_characters`."""
    lines, characters = offset - 1, column - 1
    window, size = list[str](), 0
    for piece in pieces:
        if lines > 0:
            if (ends := piece.count("\n")) < lines:
                lines -= ends
                continue
            piece = piece[_after_line_end(piece, lines) :]
            lines = 0
        if characters > 0:
            skipped = min(characters, len(piece) if (end := piece.find("\n")) < 0 else end)
            characters -= skipped
            if end >= 0 and characters > 0:
                return ""  # the line is shorter
            piece = piece[skipped:]
        if (ends := piece.count("\n")) >= limit:
            piece = piece[: _after_line_end(piece, limit)]
        limit -= ends
        window.append(piece[: max_characters - size])
        size += len(window[-1])
        if limit <= 0 or size >= max_characters:
            break
    return "".join(window)


def _after_line_end(text: str, number: int) -> int:
    at = 0
    for _ in range(number):
        at = text.find("\n", at) + 1
    return at


class HeadAndTail:
    """The beginning and the end of a stream of text, in bounded memory."""

    def __init__(self, limit: int, make_cleaner: MakeCleaner | None = None) -> None:
        self._decoder = _TextDecoder(make_cleaner, errors="replace")
        self._limit = limit
        self._head = self._tail = ""
        self._characters = self._line_ends = 0

    @property
    def omitted(self) -> int:
        """The number of characters between them, which are not kept."""
        return max(0, self._characters - self._limit)

    def add(self, chunk: bytes) -> None:
        self._keep(self._decoder.decode(chunk))

    def _keep(self, text: str) -> None:
        self._characters += len(text)
        self._line_ends += text.count("\n")
        half = self._limit // 2
        room = half - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text:
            self._tail = (self._tail + text)[-(self._limit - half) :]

    def text(self) -> str:
        """Return the kept parts of a stream that has ended, with a sentence where something is omitted."""
        self._keep(self._decoder.decode(b"", final=True))
        if not self.omitted:
            return self._head + self._tail
        head = self._head[: self._head.rfind("\n") + 1] or self._head
        tail = self._tail[self._tail.find("\n") + 1 :] or self._tail
        characters = self._characters - len(head) - len(tail)
        lines = self._line_ends - head.count("\n") - tail.count("\n")
        what = f"{lines:,} lines ({characters:,} characters)" if lines > 1 else f"{characters:,} characters"
        return f"{_with_line_end(head)}[{what} are left out here.]\n{tail}"


def first_entries(entries: Iterable[str], *, more: bool, narrow: str) -> str:
    """Return as many entries as there is room for, one in each line. `narrow` says how to get a shorter list."""
    room, lines = MAX_CHARACTERS - _NOTE_CHARACTERS, list[str]()
    for entry in entries:
        room -= len(entry) + 1
        if room < 0:
            more = True
            break
        lines.append(entry)
    if not more:
        return "\n".join(lines) or "(nothing)"
    return "\n".join([*lines, f"[The first {len(lines):,}. There are more: {narrow}]"])


def _with_line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
