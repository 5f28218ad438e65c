"""From the words of a command line to the arguments of a call."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pydantic_ai.messages import MultiModalContent

from ...core.adapt import parameters_of
from ...core.entry import Entry
from ...errors import PathDenied, PathMissing, did_you_mean
from ...projects.api import load_files
from ...values.json_schema import leaves

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
        return json_object(input_json, "--input-json")
    if not words and getattr(entry, "input_type", None) == "none":
        return None  # and nothing is read: where it is started, standard input may stay open for ever
    if not words or tuple(words) == ("-",):
        given = (_piped() if words or not sys.stdin.isatty() else "") or None
        if given is None and sys.stdin.isatty() and getattr(entry, "kind", "") == "worker":
            raise click.UsageError(f"There is no input for {entry.name!r}. Give it as words, as @FILE, or pipe it in.")
        return given
    if _is_piped_into():
        raise click.UsageError("There is input on the command line and on standard input. Give one of them.")
    if getattr(entry, "kind", "") == "worker" and getattr(entry, "input_type", None) is None:
        return " ".join(map(_text, words))
    pairs = [word.partition("=") for word in words]
    if all(equals and name.isidentifier() for name, equals, _ in pairs):
        return typed_arguments(entry, read_pairs(words))
    if len(words) == 1:
        return _text(words[0])
    known = ", ".join(parameters_of(entry).json_schema.get("properties", {})) or "it has none"
    raise click.UsageError(f"{entry.name!r} takes its arguments as name=value: {known}.")


def read_files(entry: Entry[Any], paths: Sequence[Path]) -> list[MultiModalContent]:
    """Return the files of a command line for an entry, which its policy lets it have."""
    try:
        return load_files(paths, entry)
    except (PathDenied, PathMissing) as exc:
        raise click.UsageError(str(exc)) from exc


def read_pairs(words: Sequence[str], given: Iterable[str] = ()) -> dict[str, str]:
    """Return the texts of `name=value` words, by name. No name stands twice, nor among those that are `given`."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{word!r} is no argument: write NAME=VALUE.")
        if name in found or name in given:
            raise click.UsageError(f"The argument {name!r} is given twice.")
        found[name] = value
    return found


def typed_arguments(entry: Entry[Any], texts: Mapping[str, str], *, with_files: bool = False) -> dict[str, Any]:
    """Return the values that texts of a command line mean for the parameters of an entry.

    `with_files` takes `attachments` of a worker as well, as the model of another worker can give them.
    """
    parameters = parameters_of(entry)
    schema, vocabulary = parameters.json_schema, parameters.vocabulary
    properties = vocabulary.shape.get("properties", {}) if vocabulary.lone is None else {vocabulary.lone: {}}
    if with_files and getattr(entry, "proxy_with_files", None) is not None:
        properties = {**properties, "attachments": {"type": "array"}}
    is_open = schema.get("additionalProperties", False) is not False and vocabulary.lone is None
    for name in texts:
        if name not in properties and not is_open:
            raise click.UsageError(f"There is no argument {name!r}.{did_you_mean(name, properties)}")
    return {name: _value(text, properties.get(name), schema) for name, text in texts.items()}


def json_object(text: str, option: str) -> dict[str, Any]:
    """Return the JSON object of an option: itself, `@FILE` with one, or `-` for the one on standard input."""
    source = _piped(_JSON_TEXT) if text == "-" else _text(text, _JSON_TEXT)
    if text == "-" and not source.strip():
        raise click.UsageError(f"{option} - reads standard input, and nothing is there. Pipe a JSON object in.")
    try:
        made = json.loads(source.removeprefix("\ufeff"), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise click.UsageError(f"{option} is nested too deeply.") from None
    except ValueError as exc:
        how = "Give a JSON object, @FILE with one, or - for standard input."
        raise click.UsageError(f"{option} is no JSON: {exc}. {how}") from None
    if not isinstance(made, dict):
        raise click.UsageError(f'{option} must be an object, such as {{"name": "value"}}.')
    return made


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r} is given twice")
        made[name] = value
    return made


def _value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return a value as its parameter wants it: a text stays a text, anything else is JSON where it is."""
    text = _text(text)
    kinds = {kind for part in leaves(root, schema) for kind in _kinds(part)}
    if "string" in kinds and kinds <= {"string", "null"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema names; `any` where it names none."""
    if (kinds := schema.get("type")) is not None:
        return {kinds} if isinstance(kinds, str) else set(kinds)
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    return {"string"} if values and all(isinstance(value, str) for value in values) else {"any"}


_JSON_TEXT = "write JSON in UTF-8"


def _text(word: str, instead: str = "attach it with -a") -> str:
    """A word, or what is in the file that it names. `instead` is the advice about a file that is no text."""
    if not word.startswith("@") or len(word) == 1:
        return word
    if word.startswith("@@"):  # a text that starts with an at sign
        return word[1:]
    try:
        with Path(word[1:]).open("rb") as file:  # which may be a pipe: somebody named it, and waits for it
            return _within_bounds(file.read(MAX_INPUT + 1), word[1:])
    except UnicodeDecodeError:
        raise click.UsageError(f"{word[1:]} is no text: {instead}.") from None
    except OSError as exc:
        raise click.UsageError(f"{word[1:]} cannot be read: {exc.strerror}.") from None


def _within_bounds(content: bytes, what: str) -> str:
    if len(content) > MAX_INPUT:
        raise click.UsageError(f"{what} has more than {MAX_INPUT:,} bytes. Give less of it.")
    return content.decode().replace("\r\n", "\n").replace("\r", "\n")


def _piped(instead: str = "give it as a file, with -a") -> str:
    try:
        return _within_bounds(sys.stdin.buffer.read(MAX_INPUT + 1), "Standard input")
    except UnicodeDecodeError:
        raise click.UsageError(f"Standard input is no text: {instead}.") from None


def _is_piped_into() -> bool:
    """Whether something waits on standard input. A program that runs us may have left it open with nothing in it."""
    try:
        if sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        return bool(sys.stdin.read(1))
    except (OSError, ValueError):  # it is closed
        return False
