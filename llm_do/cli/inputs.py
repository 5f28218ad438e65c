"""From the words of a command line to the arguments of a call."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import did_you_mean
from ..permission import parameters_of
from ..protocols import Entry

MAX_INPUT = 10_000_000
"""How many bytes a text may have that is read from a file or from standard input."""


def read_input(entry: Entry[Any], words: Sequence[str], input_json: str | None) -> Any:
    """What a command line gives an entry: a text, a mapping with the arguments, or nothing.

    A worker that declares no input takes all words as its text. Anything else takes `name=value`, or one word as its
    first argument. `@file` is what is in a file, and no words at all are what is piped in.
    """
    if input_json is not None:
        if words:
            raise click.UsageError("Give the input as words or with --input-json, not both.")
        return _json_object(input_json)
    if not words or tuple(words) == ("-",):
        given = (_piped() if words or not sys.stdin.isatty() else "") or None
        if given is None and sys.stdin.isatty() and getattr(entry, "kind", "") == "worker":
            raise click.UsageError(f"There is no input for {entry.name!r}. Give it as words, as @FILE, or pipe it in.")
        return given
    if _is_piped_into():
        raise click.UsageError("There is input on the command line and on standard input. Give one of them.")
    if getattr(entry, "kind", "") == "worker" and getattr(entry, "input_type", None) is None:
        return " ".join(map(_text, words))
    properties: Mapping[str, Any] = parameters_of(entry).json_schema.get("properties", {})
    pairs = [word.partition("=") for word in words]
    if all(equals and name.isidentifier() for name, equals, _ in pairs):
        return {_known(name, properties): _value(value, properties[name]) for name, _, value in pairs}
    if len(words) == 1:
        return _text(words[0])
    known = ", ".join(properties) or "it has none"
    raise click.UsageError(f"{entry.name!r} takes its arguments as name=value: {known}.")


def _known(name: str, properties: Mapping[str, Any]) -> str:
    if name not in properties:
        raise click.UsageError(f"There is no argument {name!r}.{did_you_mean(name, properties)}")
    return name


def _json_object(text: str) -> dict[str, Any]:
    try:
        made = json.loads(_text(text))
    except ValueError as exc:
        raise click.UsageError(f"--input-json is no JSON: {exc}.") from None
    if not isinstance(made, dict):
        raise click.UsageError('--input-json must be an object, such as {"name": "value"}.')
    return made


def _value(text: str, schema: Any) -> Any:
    """A value as its parameter wants it: a text stays a text, anything else is JSON where it is."""
    text = _text(text)
    types = json.dumps(schema) if isinstance(schema, dict) else ""
    if '"string"' in types and not any(f'"{kind}"' in types for kind in ("integer", "number", "array", "object")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(word: str) -> str:
    """A word, or what is in the file that it names."""
    if not word.startswith("@") or len(word) == 1:
        return word
    if word.startswith("@@"):  # a text that starts with an at sign
        return word[1:]
    try:
        with Path(word[1:]).open("rb") as file:  # which may be a pipe: somebody named it, and waits for it
            return _within_bounds(file.read(MAX_INPUT + 1), word[1:])
    except UnicodeDecodeError:
        raise click.UsageError(f"{word[1:]} is no text: attach it with -a.") from None
    except OSError as exc:
        raise click.UsageError(f"{word[1:]} cannot be read: {exc.strerror}.") from None


def _within_bounds(content: bytes, what: str) -> str:
    if len(content) > MAX_INPUT:
        raise click.UsageError(f"{what} has more than {MAX_INPUT:,} bytes. Give less of it.")
    return content.decode().replace("\r\n", "\n").replace("\r", "\n")


def _piped() -> str:
    try:
        return _within_bounds(sys.stdin.buffer.read(MAX_INPUT + 1), "Standard input")
    except UnicodeDecodeError:
        raise click.UsageError("Standard input is no text: give it as a file, with -a.") from None


def _is_piped_into() -> bool:
    """Whether something waits on standard input. A program that runs us may have left it open with nothing in it."""
    try:
        if sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        return bool(sys.stdin.read(1))
    except (OSError, ValueError):  # it is closed
        return False
