"""The project to check, and its problems, each with a file and a line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from ....definitions.definition import WorkerDefinition, WorkerLimits
from ....errors import LlmDoError, ProjectCodeError, did_you_mean
from ....machine.files import read_file
from ....projects.config import ProjectConfig
from ....projects.layout import CONFIG
from ....projects.registry import WorkerRegistry
from ....sandbox import RootConfig

_PLACED = re.compile(r"(?P<file>[^\s:][^:\n]*?):(?P<line>\d+): (?P<message>.*)", re.DOTALL)
_IN_FILE = re.compile(r"(?P<file>[^\s:]+\.(?:toml|md|ya?ml|py)): (?P<message>.*)", re.DOTALL)
_IMPORT = re.compile(r"(?:, )?line (?P<line>\d+) of (?P<file>[^:]+\.py)(?=: )")
_TOML = re.compile(r"\(at line (?P<line>\d+), column \d+\)")
_PARTS: Mapping[str, type[BaseModel]] = {"limits": WorkerLimits}


class Problem(NamedTuple):
    level: str
    """`error`, `warning` or `note`."""
    code: str
    message: str
    file: str | None = None
    line: int | None = None
    names: tuple[str, ...] = ()
    """The workers, functions or models that it is about."""


class CheckedProject:
    """The registry of a project, and what the check has read so far."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self.registry = registry
        self.config_file = registry.root / CONFIG
        self.workers = registry.workers()
        self.functions: dict[str, Any] = {}
        self.definitions: dict[str, WorkerDefinition] = {}
        """The definitions of the workers whose files can be read."""
        self.own_tools: dict[str, set[str]] = {}
        """The names of workers' own functions, for workers whose code can be imported."""

    def attempt(self, code: str, work: Callable[[], object], path: Path | None = None) -> Iterator[Problem]:
        """Do something with a file, and yield its error as problems instead of raising it."""
        try:
            work()
        except Exception as exc:  # code of the project may raise anything
            yield from _problems_of(exc, code, None if path is None else self.relative(path), self.registry.root)

    def problem(
        self, level: str, code: str, message: str, path: Path, *place: str, names: tuple[str, ...] = ()
    ) -> Problem:
        """Return a problem in a file. `place` has the arguments of `line_of` that find its line."""
        line = line_of(path, *place) if place else None
        return Problem(level, code, message, self.relative(path), line, names)

    def read_functions(self) -> None:
        workers = set(self.workers)
        self.functions = {name: self.registry[name] for name in self.registry if name not in workers}

    def read_worker(self, name: str) -> None:
        self.definitions[name] = self.registry.definition(name)

    def read_own_tools(self, name: str) -> None:
        self.own_tools[name] = {tool.name for tool in self.registry.own_tools(name)}

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.registry.root))

    def path_of(self, worker: str) -> Path:
        file = self.registry.file_of(worker)
        assert file is not None
        return file.path


def _problems_of(exc: Exception, code: str, file: str | None, root: Path) -> Iterator[Problem]:
    """Yield an error as problems: one for each line of its message that starts with a place."""
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
    first = ", ".join(names[:10])
    return f"{first} and {len(names) - 10} more" if len(names) > 10 else first
