"""Read and write worker files: Markdown with front matter, or YAML.

Nothing is skipped: what is not understood is an error, and all errors of a file are reported together.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ..errors import WorkerFileError
from ..policy.rules import ToolRule
from ..values.texts import quote_json
from . import yaml_lines
from .definition import WorkerDefinition
from .yaml_lines import Document, Problem, UnreadableError

_SHOWN_PROBLEMS = 20


def parse_worker(
    text: str | bytes,
    *,
    name: str,
    path: str,
    format: Literal["md", "yaml"],  # noqa: A002
) -> WorkerDefinition:
    """Return the definition in a worker's file, or raise one error with all problems and their lines."""
    try:
        source = yaml_lines.decode(text)
        front, body, first_line = source, None, 1
        if format == "md":
            front, body, first_line = yaml_lines.split_front_matter(source, WorkerDefinition.model_fields)
        document = yaml_lines.read_yaml(front, first_line=first_line)
    except UnreadableError as error:
        raise _file_error(path, *error.problems) from None
    values = document.value
    if values is None and not document.problems:
        if not source.strip() or body is None:
            raise _file_error(path, Problem(1, "the file is empty. Write the worker's instructions."))
        values = {}
    if not isinstance(values, dict):
        wrong = Problem(first_line, f"must be keys and values, such as `model: ...`; got {quote_json(values)}.")
        raise _file_error(path, *document.problems or [wrong])
    if body is not None:
        if "instructions" in values:
            document.complain("instructions", "must be the text below the front matter, and no key.")
        values["instructions"] = body
    if "input" in values and values["input"] is None:
        document.complain("input", "is empty. Write `input: none` for a worker that takes no input, or leave it out.")
    if isinstance(values.setdefault("name", name), str) and values["name"] != name:
        document.complain("name", f"{values['name']!r} is not the file's name, {name!r}. Leave it out.")
    try:
        definition = WorkerDefinition.model_validate(values)
    except ValidationError as error:
        document.problems.extend(yaml_lines.problems_of(error, document, WorkerDefinition))
    if document.problems:
        raise _file_error(path, *document.problems)
    return definition.model_copy(update={"tool_rules": _with_lines(definition.tool_rules, document, path)})


def _with_lines(
    rules: dict[str, tuple[ToolRule, ...]], document: Document, path: str
) -> dict[str, tuple[ToolRule, ...]]:

    def line(name: str, at: int) -> int:
        return document.lines.get(("tool_rules", name, at), document.lines.get(("tool_rules", name), 1))

    return {
        name: tuple(dataclasses.replace(rule, where=f"{path}:{line(name, at)}") for at, rule in enumerate(listed))
        for name, listed in rules.items()
    }


def _file_error(path: str, *problems: Problem) -> WorkerFileError:
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = [f"{path}:{line}: {_printable(message)}" for line, message in ordered[:_SHOWN_PROBLEMS]]
    if more := len(ordered) - len(lines):
        lines.append(f"{path}:{ordered[_SHOWN_PROBLEMS].line}: and {more} more problems from here on.")
    return WorkerFileError("\n".join(lines))


def _printable(message: str) -> str:
    """Return a message in one line: control characters from the file are escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)


def dump_worker(definition: WorkerDefinition) -> str:
    """Return the YAML file of a worker, which `parse_worker` reads back as an equal definition."""
    path = f"{definition.name}.yaml"
    try:
        values = definition.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    except PydanticSerializationError as error:
        raise _file_error(path, Problem(1, f"cannot be written as a file: {error}")) from None
    block = ""
    if yaml_lines.is_plain_text(definition.instructions) and values.pop("instructions", None):
        # PyYAML quotes a text in which a line ends with a space. This one is stripped, so nothing can go wrong.
        lines = definition.instructions.split("\n")
        block = "instructions: |\n" + "".join(f"  {line}\n" if line else "\n" for line in lines)
    text = yaml_lines.write_yaml(values) + block
    # A file that cannot be read again (too large, too deep, no number) must not be written.
    if parse_worker(text, name=definition.name, path=path, format="yaml") != definition:
        raise _file_error(path, Problem(1, "has values that cannot be written to a file."))
    return text
