"""YAML without surprises, and the line of everything in it.

Values are those of JSON: mappings with text as keys, lists, text, decimal numbers, true, false and null. Aliases, tags,
merge keys, duplicate keys and a second document are problems; `yes`, `off`, `0755`, `1:30` and `2024-01-01` are text.
All problems of a file are collected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf, isfinite
from typing import Any, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import did_you_mean
from ..values.texts import quote_json

MAX_BYTES = 1_000_000
MAX_DEPTH = 50

Place = tuple[str | int, ...]
"""Where a value is: the keys and list positions that lead to it."""


class Problem(NamedTuple):
    line: int
    message: str


class UnreadableError(Exception):
    """The text cannot be read to its end; `problems` are those up to there."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(problems)
        self.problems = problems


@dataclass(kw_only=True)
class Document:
    """A YAML document as plain Python values."""

    value: Any = None
    """`None` also for a text without a document."""
    lines: dict[Place, int] = field(default_factory=dict)
    """The line of each key and each item of a list."""
    problems: list[Problem] = field(default_factory=list)
    spoiled: set[Place] = field(default_factory=set)
    """Places with problems, where `value` is not what the file means."""

    def place(self, loc: Sequence[str | int]) -> Place:
        """Return the part of a pydantic error's `loc` that is in the file: no tags of unions, no missing keys."""
        at: Place = ()
        for part in loc:
            if (*at, part) in self.lines:
                at = (*at, part)
        return at

    def complain(self, key: str, message: str) -> None:
        self.problems.append(Problem(self.lines.get((key,), 1), f"{key}: {message}"))
        self.spoiled.add((key,))


# Characters that YAML does not allow, and U+0085, a control character that YAML takes for the end of a line.
_CONTROL = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# YAML takes these for the end of a line, such as of a comment, and editors do not.
_HIDDEN = re.compile("[\u2028\u2029\ufeff]")
_DIRECTIVE = re.compile(r"^%[A-Z]", re.MULTILINE)


def is_plain_text(text: str) -> bool:
    """Return whether a text needs no escapes in a file."""
    return _CONTROL.search(text) is None and _HIDDEN.search(text) is None


def decode(data: str | bytes) -> str:
    r"""Return the text of a file, with `\n` at the end of lines."""
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_BYTES:
        raise UnreadableError(Problem(1, f"the file has {len(raw)} bytes; at most {MAX_BYTES} are allowed."))
    if not isinstance(data, str):
        try:
            data = raw.decode()
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            message = f"not UTF-8: the byte 0x{raw[error.start]:02x} at offset {error.start} ({error.reason})."
            raise UnreadableError(Problem(line, message)) from None
    text = data.removeprefix("\ufeff").replace("\r\n", "\n")
    _refuse(_CONTROL, text, 1, "the control character {} is not allowed.")
    return text


def _refuse(characters: re.Pattern[str], text: str, first_line: int, message: str) -> None:
    if found := characters.search(text):
        line = text.count("\n", 0, found.start()) + first_line
        raise UnreadableError(Problem(line, message.format(f"U+{ord(found[0]):04X}")))


def split_front_matter(text: str, keys: Container[str]) -> tuple[str, str, int]:
    """Return the front matter of a Markdown file, the text below it, and the first line of the front matter."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    if fences[:1] == [0]:
        if len(fences) == 1:
            raise UnreadableError(Problem(1, "the front matter is not closed. End it with a line `---`."))
        return "\n".join(lines[1 : fences[1]]), "\n".join(lines[fences[1] + 1 :]), 2
    # Front matter that is taken for instructions would be rules that do not apply.
    start = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[start].lstrip().startswith("---"):
        raise UnreadableError(Problem(start + 1, "front matter must begin with `---`, alone in the first line."))
    if fences and lines[start].partition(":")[0].strip() in keys:
        raise UnreadableError(Problem(start + 1, "the front matter is not opened. Start it with `---`."))
    return "", text, 1


_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,99})")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")


def plain_value(text: str) -> Any:
    """Return the value of a scalar without quotes. Numbers that YAML readers take for different ones are text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and isfinite(number := float(text)):
        return number
    return text


def read_yaml(text: str, *, first_line: int = 1) -> Document:
    """Read one document from a decoded text that starts in line `first_line` of its file."""
    if directive := _DIRECTIVE.search(text):  # the time that the parser takes grows with the square of their number
        line = text.count("\n", 0, directive.start()) + first_line
        raise UnreadableError(Problem(line, "directives (%YAML, %TAG) are not allowed."))
    _refuse(_HIDDEN, text, first_line, 'the character {} is not allowed here; in double quotes, write "\\u....".')
    reader = _Reader(text, first_line)
    try:
        reader.read()
        return reader.document
    except UnreadableError as error:
        problems = error.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        problems = (Problem(line, _malformed(error, first_line)),)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML without its C library lets an escape beyond Unicode through to `chr`.
        problems = (Problem(first_line, f"not valid YAML: {' '.join(str(error).split())}"),)
    raise UnreadableError(*reader.document.problems, *problems)


_HINTS = {
    "while scanning an alias": ' Text that starts with "*" needs quotes, such as ["*"].',
    "while scanning an anchor": ' Text that starts with "&" needs quotes.',
    "mapping values are not allowed": ' Text that contains ": " needs quotes.',
    "cannot start any token": " Indent with spaces, and quote text that starts with @, % or `.",
}


def _malformed(error: yaml.MarkedYAMLError, first_line: int) -> str:
    text = f"not valid YAML: {error.problem or error.context}"
    if error.problem and error.context:
        text += f" {error.context}"
        if error.context_mark:
            text += f" that starts in line {error.context_mark.line + first_line}"
    return f"{text}.{next((hint for words, hint in _HINTS.items() if words in text), '')}"


class _Reader:
    """Builds values from the parser's events: in nodes, an alias looks like the value that it stands for."""

    def __init__(self, text: str, first_line: int) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=loader)
        self._first_line = first_line
        self.document = Document()

    def read(self) -> None:
        starts = (event for event in self._events if isinstance(event, yaml.DocumentStartEvent))
        if next(starts, None) is not None:
            self.document.value = self._value(next(self._events), ())
        if (second := next(starts, None)) is not None:
            self._problem(second, (-1,), "a second document starts here; a worker file has only one.")

    def _problem(self, event: yaml.Event, at: Place, message: str) -> None:
        self.document.problems.append(Problem(self._line(event), message))
        self.document.spoiled.add(at)

    def _line(self, event: yaml.Event) -> int:
        return self._first_line + (event.start_mark.line if event.start_mark else 0)

    def _value(self, event: yaml.Event, at: Place) -> Any:
        if isinstance(event, yaml.AliasEvent):
            self._problem(event, at, f"aliases (*{event.anchor}) are not allowed: repeat the value.")
            return None
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            self._problem(event, at, f"anchors (&{event.anchor}) are not allowed.")
        if event.tag is not None:
            self._problem(event, at, f"tags ({event.tag}) are not allowed.")
        if isinstance(event, yaml.ScalarEvent):
            return plain_value(event.value) if event.implicit[0] else event.value
        if len(at) >= MAX_DEPTH:
            raise UnreadableError(Problem(self._line(event), f"nested too deeply; at most {MAX_DEPTH} levels."))
        return self._list(at) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(at)

    def _list(self, at: Place) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            path = (*at, len(items))
            self.document.lines[path] = self._line(event)
            items.append(self._value(event, path))
        return items

    def _mapping(self, at: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, at, mapping)
            # No key is a number, so no other value has this place.
            path = (*at, -1 if key is None else key)
            if key is not None:
                self.document.lines[path] = self._line(event)
            value = self._value(next(self._events), path)
            if key is not None:
                mapping[key] = value
        return mapping

    def _key(self, event: yaml.Event, at: Place, mapping: dict[str, Any]) -> str | None:
        """Return the key that starts with `event`; `None` if there is a problem with it."""
        key = self._value(event, (*at, -1))
        if isinstance(event, yaml.AliasEvent):
            return None
        if not isinstance(key, str):
            shown = event.value or "null" if isinstance(event, yaml.ScalarEvent) else "a list or a mapping"
            self._problem(event, (*at, -1), f"a key must be text, not {shown}. Put it in quotes if it is a name.")
            return None
        if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            self._problem(event, (*at, -1), "merge keys (<<) are not allowed: repeat the keys.")
            return None
        if key in mapping:
            first = self.document.lines[*at, key]
            self._problem(event, (*at, key), f"key {key!r} appears twice, first in line {first}.")
            return None
        return key


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def serialize(self, node: yaml.Node) -> None:
        node.flow_style = False  # type: ignore[attr-defined]
        super().serialize(node)


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if not is_plain_text(text) or text[-2:].isspace():  # YAML needs an end of document after some of these
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
# PyYAML quotes what it would take for something else than text. To it, 1e3 is text.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_DECIMAL.pattern})\Z"), [*"-+.0123456789"])


def write_yaml(values: dict[str, Any]) -> str:
    """Return JSON values as YAML that `read_yaml` and other readers read back."""
    text: str = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=inf
    )
    return text


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "string_too_short": "some text",
    "too_short": "a list that is not empty",
}


def problems_of(error: ValidationError, document: Document, model: type[BaseModel]) -> Iterator[Problem]:
    """Yield the errors that pydantic found in a document, except where the document already has a problem."""
    # A list can have half a million wrong items.
    for details in islice(error.errors(include_url=False), 1000):
        at = document.place(details["loc"])
        if not any(at[: len(path)] == path for path in document.spoiled):
            yield Problem(document.lines.get(at, 1), _message(details, at, model))


def _message(error: ErrorDetails, at: Place, model: type[BaseModel]) -> str:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        *parents, key = at
        within = f" in {_label(parents)}" if parents else ""
        return f"unknown key {key!r}{within}.{did_you_mean(str(key), _fields_at(parents, model))}"
    label = f"{_label(at or error['loc'])}: "
    if kind == "missing":
        return f"{label}needs {error['loc'][-1]!r}."
    if kind == "value_error":
        return f"{label}{error['ctx']['error']}"
    if kind not in _EXPECTED:
        return f"{label}{error['msg'].replace('Input should be', 'must be')}, got {quote_json(value)}."
    hint = ""
    if _EXPECTED[kind] == "a list" and isinstance(value, str):
        hint = f"; write {json.dumps([word.strip() for word in value.split(',')])}"
    elif kind == "string_type" and isinstance(value, bool | int | float):
        hint = "; put it in quotes"
    return f"{label}must be {_EXPECTED[kind]}, got {quote_json(value)}{hint}."


def _label(at: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).removeprefix(".")


def _fields_at(at: Sequence[str | int], model: type[BaseModel]) -> list[str]:
    found: type[BaseModel] | None = model
    for part in at:
        if found and part in found.model_fields:
            found = _model_in(found.model_fields[str(part)].annotation)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in an annotation such as `dict[str, Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := _model_in(arg))), None)
