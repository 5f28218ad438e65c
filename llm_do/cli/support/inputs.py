"""The arguments of a call, from the words of a command line."""

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
"""The most bytes that are read as text from a file or from standard input."""


def read_input(entry: Entry[Any], words: Sequence[str], input_json: str | None) -> Any:
    """Return the input of an entry: a text, a mapping of arguments, or `None`.

    A worker that declares no input takes all words as its text. Other entries take `name=value`, or one word as their
    first argument. `@file` stands for the content of a file. Without words, standard input is read.
    """
    if input_json is not None:
        if words:
            raise click.UsageError("Give the input as words or with --input-json, not both.")
        return json_object(input_json, "--input-json")
    if not words and getattr(entry, "input_type", None) == "none":
        return None  # standard input is not read: it may stay open for ever
    if not words or tuple(words) == ("-",):
        text = (_read_stdin() if words or not sys.stdin.isatty() else "") or None
        if text is None and sys.stdin.isatty() and entry.kind == "worker":
            raise click.UsageError(f"There is no input for {entry.name!r}. Give it as words, as @FILE, or pipe it in.")
        return text
    if _has_stdin_data():
        raise click.UsageError("There is input both on the command line and on standard input. Give only one.")
    if entry.kind == "worker" and getattr(entry, "input_type", None) is None:
        return " ".join(map(_text, words))
    pairs = [word.partition("=") for word in words]
    if all(equals and name.isidentifier() for name, equals, _ in pairs):
        return typed_arguments(entry, read_pairs(words))
    if len(words) == 1:
        return _text(words[0])
    names = ", ".join(parameters_of(entry).json_schema.get("properties", {})) or "it has none"
    raise click.UsageError(f"{entry.name!r} takes its arguments as name=value: {names}.")


def read_files(entry: Entry[Any], paths: Sequence[Path]) -> list[MultiModalContent]:
    """Return the files for an entry, as its attachment policy allows."""
    try:
        return load_files(paths, entry)
    except (PathDenied, PathMissing) as exc:
        raise click.UsageError(str(exc)) from exc


def read_pairs(words: Sequence[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the texts of `name=value` words, by name. A repeated name, or one in `taken`, is an error."""
    texts: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{word!r} is not an argument: write NAME=VALUE.")
        if name in texts or name in taken:
            raise click.UsageError(f"The argument {name!r} is given twice.")
        texts[name] = value
    return texts


def typed_arguments(entry: Entry[Any], texts: Mapping[str, str], *, with_files: bool = False) -> dict[str, Any]:
    """Convert texts to the arguments of an entry. `with_files` adds the `attachments` that models can give a worker."""
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
    """Return the JSON object of an option: the text itself, `@FILE` with one, or `-` for standard input."""
    source = _read_stdin(_JSON_TEXT) if text == "-" else _text(text, _JSON_TEXT)
    if text == "-" and not source.strip():
        raise click.UsageError(f"{option} - reads standard input, which is empty. Pipe a JSON object in.")
    try:
        value = json.loads(source.removeprefix("\ufeff"), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise click.UsageError(f"{option} is nested too deeply.") from None
    except ValueError as exc:
        how = "Give a JSON object, @FILE with one, or - for standard input."
        raise click.UsageError(f"{option} is not JSON: {exc}. {how}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f'{option} must be an object, such as {{"name": "value"}}.')
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name!r} is given twice")
        values[name] = value
    return values


def _value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Convert a text for a parameter: one for strings gets it unchanged, another one gets its value if it is JSON."""
    text = _text(text)
    kinds = {kind for part in leaves(root, schema) for kind in _kinds(part)}
    if "string" in kinds and kinds <= {"string", "null"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema names, or `any` if it names none."""
    if (kinds := schema.get("type")) is not None:
        return {kinds} if isinstance(kinds, str) else set(kinds)
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    return {"string"} if values and all(isinstance(value, str) for value in values) else {"any"}


_JSON_TEXT = "write JSON in UTF-8"


def _text(word: str, instead: str = "attach it with -a") -> str:
    """Return a word, or the content of `@file`. `instead` is the advice if the file is not text."""
    if not word.startswith("@") or len(word) == 1:
        return word
    if word.startswith("@@"):  # a text that starts with an at sign
        return word[1:]
    try:
        with Path(word[1:]).open("rb") as file:  # which may be a pipe
            return _decode(file.read(MAX_INPUT + 1), word[1:], instead)
    except OSError as exc:
        raise click.UsageError(f"{word[1:]} cannot be read: {exc.strerror}.") from None


def _read_stdin(instead: str = "give it as a file, with -a") -> str:
    return _decode(sys.stdin.buffer.read(MAX_INPUT + 1), "Standard input", instead)


def _decode(content: bytes, what: str, instead: str) -> str:
    if len(content) > MAX_INPUT:
        raise click.UsageError(f"{what} has more than {MAX_INPUT:,} bytes. Give less of it.")
    try:
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise click.UsageError(f"{what} is not text: {instead}.") from None


def _has_stdin_data() -> bool:
    """Return whether there is data on standard input, without waiting: it may be open and empty."""
    try:
        if sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return False
        return bool(sys.stdin.read(1))
    except (OSError, ValueError):  # it is closed
        return False
