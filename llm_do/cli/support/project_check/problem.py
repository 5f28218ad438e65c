"""Problems of a project, and errors as problems with a file and a line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from ....definitions.definition import WorkerLimits
from ....errors import LlmDoError, ProjectCodeError, did_you_mean
from ....machine.files import read_file
from ....projects.config import ProjectConfig
from ....projects.layout import CONFIG
from ....sandbox import RootConfig

_PLACED = re.compile(r"(?P<file>[^\s:][^:\n]*?):(?P<line>\d+): (?P<message>.*)", re.DOTALL)
_IN_FILE = re.compile(r"(?P<file>[^\s:]+\.(?:toml|md|ya?ml|py)): (?P<message>.*)", re.DOTALL)
_IMPORT = re.compile(r"(?:, )?line (?P<line>\d+) of (?P<file>[^:]+\.py)(?=: )")
_TOML = re.compile(r"\(at line (?P<line>\d+), column \d+\)")
_PARTS: Mapping[str, type[BaseModel]] = {"limits": WorkerLimits}


class Problem(NamedTuple):
    """One finding about a project."""

    level: str
    """`error`, `warning` or `note`."""
    code: str
    message: str
    file: str | None = None
    line: int | None = None
    names: tuple[str, ...] = ()
    """The workers, functions or models that it is about."""


def problems_of(exc: Exception, code: str, file: str | None, root: Path) -> Iterator[Problem]:
    """Return an error as problems: each line of an llm-do message that starts with a place is one."""
    if not isinstance(exc, LlmDoError):
        text = traceback.format_exception_only(exc)[-1].strip()
        yield Problem("error", code, text, *(_place_in_project(exc, root) or (file, None)))
        return
    if isinstance(exc.__cause__, ValidationError) and file == CONFIG:
        yield from _config_problems(exc.__cause__, root / CONFIG)
        return
    if isinstance(exc, ProjectCodeError) and exc.__cause__ and (place := _place_in_project(exc.__cause__, root)):
        yield Problem("error", "code", _IMPORT.sub("", str(exc), count=1), *place)
        return
    for text in _split_message(str(exc)):
        if match := _PLACED.fullmatch(text):
            yield Problem("error", code, match["message"], match["file"], int(match["line"]))
        elif match := _IN_FILE.fullmatch(text):
            toml = _TOML.search(text)
            yield Problem("error", code, match["message"], match["file"], int(toml["line"]) if toml else None)
        else:
            yield Problem("error", code, text, file)


def _split_message(text: str) -> list[str]:
    """Split a message at the lines that start with a place. The lines between belong to the one before them."""
    parts: list[str] = []
    for line in text.splitlines():
        if parts and not _PLACED.fullmatch(line):
            parts[-1] += f" {line.strip()}"
        else:
            parts.append(line)
    return parts or ["(no message)"]


def _config_problems(error: ValidationError, path: Path) -> Iterator[Problem]:
    """Yield each mistake in the configuration, with its line."""
    for details in error.errors(include_url=False):
        keys = [str(part) for part in details["loc"] if isinstance(part, str) and part != "[key]"]
        line = next((line for key in reversed(keys) if (line := line_of(path, key)) is not None), None)
        message = details["msg"].removeprefix("Value error, ").rstrip(".") + "."
        if details["type"] == "extra_forbidden":
            part = ProjectConfig if len(keys) == 1 else _PARTS.get(keys[0], RootConfig if len(keys) > 2 else None)
            message = f"unknown key.{did_you_mean(keys[-1], part.model_fields) if part is not None else ''}"
        yield Problem("error", "config", f"{'.'.join(keys)}: {message}", path.name, line)


def _place_in_project(exc: BaseException, root: Path) -> tuple[str, int | None] | None:
    """Return the last line of the project's own code that an exception came through."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(exc.__traceback__)]
    if isinstance(exc, SyntaxError) and exc.filename is not None:
        places.append((exc.filename, exc.lineno))
    in_project = [
        (str(Path(file).relative_to(root)), line)
        for file, line in places
        if Path(file).is_relative_to(root) and "site-packages" not in file
    ]
    return in_project[-1] if in_project else None


def line_of(path: Path, word: str, key: str = "") -> int | None:
    """Return the first line of a file that has a word, in or after the line that starts with a key."""
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    try:
        lines = read_file(path).decode(errors="replace").splitlines()
    except OSError:
        return None
    first = next((number for number, line in enumerate(lines) if line.startswith(key)), 0)
    return next((number for number, line in enumerate(lines, 1) if number > first and whole.search(line)), None)


def join_names(names: Sequence[str]) -> str:
    """Return the first ten names, and how many more there are."""
    first = ", ".join(names[:10])
    return f"{first} and {len(names) - 10} more" if len(names) > 10 else first
