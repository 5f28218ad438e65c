"""Secret values: those of secret arguments, and of environment variables that a project names.

They are removed from everything that is recorded or shown. A value is found as it is, and behind the escapes of URLs,
JSON, Python and HTML, however these are written. It is not found in another encoding (base64, a hash), split, or cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from pydantic import SecretBytes, SecretStr

from ..values.fields import items_of, replace_items
from .escapes import LONGEST, Reading, has_escapes, readings
from .secret_fields import HIDDEN, SecretFields

UNREADABLE = "[not shown: it could not be searched for secrets]"
MOST_VALUES = 500  # values of arguments that are remembered. Of more, the oldest is forgotten
DEEPEST = 100  # levels of nested data that are searched. Anything deeper is replaced, once there is a secret
SHORTEST = 4  # characters. Shorter values occur in too many words, and are hidden only where they are a whole text

_OF_RECORDS = ("pydantic_ai.", "llm_do.")
_STRUCTURE = frozenset(
    (
        *("at", "by", "finish_reason", "id", "kind", "model_name", "native_tools", "outcome", "output_mode"),
        *("part_kind", "provider_name", "provider_response_id", "run_id", "conversation_id", "state", "timestamp"),
        *("tool_call_id", "tool_kind", "tool_name", "usage"),
    )
)
"""Fields of messages and records that say what they are. A short secret may look alike."""


@runtime_checkable
class HasSecrets(Protocol):
    """Entries with secrets of their own, which hold in every session."""

    def secret_names(self) -> Iterable[str]: ...


class Values:
    """Secret texts, each with the label that replaces it."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._labels: dict[str, str] = {}
        self._texts: dict[str, str] = {}  # these are replaced everywhere
        self._whole: dict[str, str] = {}  # these are replaced only where they are a whole text
        self.active = False
        self._longest = 0  # bytes of the longest text so far
        self._has_spaces = False
        self._has_escapes = False
        for text in texts:
            self.add(text)

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, value: str, label: str = HIDDEN) -> bool:
        """Add a text. Return whether it is new."""
        if not value.strip() or value in self._labels:
            return False
        self.active = True
        self._labels[value] = label
        self._has_spaces |= " " in value.strip()
        self._has_escapes |= has_escapes(value)
        for part in {value, value.strip()}:
            (self._texts if len(part) >= SHORTEST else self._whole).setdefault(part, label)
            self._longest = max(self._longest, len(part.encode(errors="surrogatepass")))
        return True

    def forget_oldest(self, keep: Set[str]) -> None:
        oldest = next((value for value in self._labels if value not in keep), None)
        if oldest is not None:
            del self._labels[oldest]
            for part in {oldest, oldest.strip()} - keep:
                self._texts.pop(part, None)
                self._whole.pop(part, None)

    def text(self, text: str, *, keep_lines: bool = False) -> str:
        """Return a text without the secrets, also behind escapes; with `keep_lines`, it has as many lines as before."""
        places = list(self._places(text)) if self.active else []
        if not places:
            return text
        pieces, at = list[str](), 0
        for start, end, label in sorted(places, key=lambda part: (part[0], -part[1])):
            if start >= at:
                pieces += [text[at:start], label]
            if keep_lines:
                pieces.append("\n" * text.count("\n", max(start, at), end))
            at = max(at, end)
        return "".join([*pieces, text[at:]])

    def _places(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield start and end of each secret in a text, and its label."""
        for reading in self.readings(text):
            if label := self._whole.get(reading.text):
                yield 0, len(text), label
            # Searching for each is fast, since most texts have none. One pattern of all would be slower.
            for value in [value for value in tuple(self._texts) if value in reading.text]:
                label = self._texts.get(value, HIDDEN)
                for start, end in reading.places(_occurrences(reading.text, value)):
                    yield start, end, label

    def readings(self, text: str) -> Iterator[Reading]:
        return readings(text, spaces=self._has_spaces, mixed=self._has_escapes)

    def redact(self, value: Any) -> Any:
        """Return any value without the secrets: itself if it has none, else a copy."""
        return self._redact(value, set()) if self.active else value

    def _redact(self, value: Any, inside: set[int]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._redact_by_text(value, str.__str__(value))
        if isinstance(value, int | float | Decimal | UUID | PurePath):
            text = _plain(value)
            return value if len(text) < SHORTEST else self._redact_by_text(value, text)
        if isinstance(value, bytes | bytearray):
            text = bytes(value).decode(errors="surrogateescape")
            return value if (clean := self.text(text)) == text else clean.encode(errors="surrogateescape")
        if isinstance(value, SecretStr | SecretBytes):
            return HIDDEN
        if isinstance(value, type):
            return value
        if id(value) in inside:
            return "[the same again]"
        if len(inside) >= DEEPEST:
            return UNREADABLE
        inside.add(id(value))
        try:
            if isinstance(value, Enum | memoryview):
                content = value.value if isinstance(value, Enum) else bytes(value)
                return value if (clean := self._redact(content, inside)) is content else clean
            kept = _STRUCTURE if type(value).__module__.startswith(_OF_RECORDS) else ()
            redacted = replace_items(
                value,
                lambda name, item: item if name in kept else self._redact(item, inside),
                lambda key: self._redact(key, inside),
            )
            # Of an object without parts, its repr is searched. A database connection stands for itself.
            return self._redact_by_text(value, repr(value)) if redacted is None else redacted
        except Exception:  # an object that cannot be searched is not recorded
            return UNREADABLE
        finally:
            inside.discard(id(value))

    def _redact_by_text(self, value: Any, text: str) -> Any:
        """Return a value, or the text that stands for it without secrets, if it has any."""
        return value if (clean := self.text(text)) is text else clean


class Secrets(Values):
    """The secrets of one session."""

    def __init__(
        self, names: Iterable[str] = (), environment: Mapping[str, str] | None = None, more: Iterable[str] = ()
    ) -> None:
        if isinstance(names, str):
            raise TypeError(f"secrets must be a list of names of environment variables, got {names!r}.")
        super().__init__()
        self.configured: Values | None = None
        """The values of environment variables, which never go to a model."""
        self._permanent: set[str] = set()
        self.version = 0  # changes with every new value
        for name in dict.fromkeys((*names, *more)):
            if value := (environment or {}).get(name):
                self.configured = self.configured or Values()
                self.configured.add(value, f"[secret {name}]")
                self.add(value, f"[secret {name}]")
                self._permanent |= {value, value.strip()}

    def learn(self, values: Iterable[Any]) -> None:
        """Add values as secrets, and the texts in them."""
        for text in texts_in(values):
            if self.add(text):
                self.version += 1
                if len(self) > MOST_VALUES:
                    self.forget_oldest(self._permanent)

    def tail(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of a secret."""
        if not has_escapes(text):
            return max(self._longest, 1) - 1
        return len(text) - min(
            reading.places([(max(0, len(reading.text) - self._longest - LONGEST), len(reading.text))])[0][0]
            for reading in self.readings(text)
        )

    def make_cleaner(self) -> Callable[[], StreamedText] | None:
        """Return a maker of streams that remove secrets from long texts before they are cut; `None` without secrets."""
        return partial(StreamedText, self, keep_lines=True) if self.active else None

    def arguments(self, arguments: Mapping[str, Any], secret_fields: SecretFields | None) -> dict[str, Any]:
        """Return the arguments of a call without secrets, and add the secret ones."""
        redacted: Any = arguments
        if secret_fields is not None:
            try:
                redacted, values = secret_fields.split(arguments)
                self.learn(values)
            except Exception:  # a value of some class that cannot be read
                redacted = None
        redacted = self.redact(redacted)
        return redacted if isinstance(redacted, dict) else dict.fromkeys(arguments, UNREADABLE)


class StreamedText:
    """Removes secrets from a text that comes in pieces. The possible beginning of one is held back."""

    def __init__(self, secrets: Secrets, *, keep_lines: bool = False) -> None:
        self._secrets = secrets
        self._keep_lines = keep_lines
        self._pending = ""

    def add(self, piece: str) -> str:
        """Add a piece, and return the part of the text that is ready."""
        if not self._secrets.active:
            return piece
        text = self._secrets.text(self._pending + piece, keep_lines=self._keep_lines)
        ready = max(0, len(text) - self._secrets.tail(text))
        self._pending = text[ready:]
        return text[:ready]

    def rest(self) -> str:
        rest, self._pending = self._pending, ""
        return rest


def _occurrences(text: str, value: str) -> Iterator[tuple[int, int]]:
    at = text.find(value)
    while at >= 0:
        yield at, at + len(value)
        at = text.find(value, at + len(value))


def _plain(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # Python writes no number of thousands of digits, and nor does other code
        return ""


def texts_in(values: Iterable[Any]) -> Iterator[str]:
    """Yield the texts in values, and numbers that are long enough to be recognised."""
    todo, count = deque(values), 0
    while todo and count < 10 * MOST_VALUES:
        value = todo.popleft()
        count += 1
        if isinstance(value, SecretStr | SecretBytes):
            value = value.get_secret_value()
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, str):
            yield str.__str__(value)
        elif isinstance(value, bytes | bytearray):
            yield bytes(value).decode("utf-8", "replace")
        elif isinstance(value, int | float | Decimal | UUID | PurePath) and not isinstance(value, bool):
            if len(text := _plain(value)) >= SHORTEST:
                yield text
        else:
            todo.extend(items_of(value))
