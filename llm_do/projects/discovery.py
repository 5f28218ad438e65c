"""List a project fast: names, descriptions, models.

`list` and completion must answer at once, and importing pydantic alone takes too long. So the files are read here with
the standard library, and not checked: the registry and `check` do that. No code of the project runs.
"""

from __future__ import annotations

import ast
import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..machine.files import MAX_CODE, read_file
from .layout import CONFIG, WORKERS, files_of, tools_file, worker_names

UNREADABLE = "it cannot be read: `llm-do check` says why"
TOO_LARGE = "it is too large to be read at a glance: `llm-do check` imports it"
_MAX_CODE = 500_000  # bytes: the syntax tree of ten million takes half a minute and gigabytes
_UNPARSABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
_MAX_DEPTH = 50


class Found(NamedTuple):
    """A worker or a function, as its file shows it without running code."""

    name: str
    kind: str
    """`worker` or `function`."""
    description: str | None
    model: str | None
    """The model that a worker names itself."""
    file: str
    line: int | None = None
    problem: str | None = None
    """Why no more is known."""
    input: str | None = None
    """`none` for a worker that takes no input."""


def find_root(start: Path) -> Path | None:
    """Return the project of a folder: the nearest one, going up, with `workers/` or `llm-do.toml`."""
    for folder in (start, *start.parents):
        if (folder / WORKERS).is_dir() or (folder / CONFIG).is_file():
            return folder
    return None


def names_in(root: Path, *, functions: bool = True) -> list[str]:
    """Return the names of a project's workers, and of its functions."""
    made = [
        found.name for found in functions_of(root) if found.problem is None and (functions or found.kind == "worker")
    ]
    return sorted({*worker_names(root), *made})


def list_entries(root: Path) -> Iterator[Found]:
    """Yield the workers and functions of a project, by name."""
    workers = [_worker(root, name, files_of(root, name)) for name in worker_names(root)]
    yield from sorted([*workers, *functions_of(root)], key=lambda found: (found.name, found.kind))


def _worker(root: Path, name: str, files: list[Path]) -> Found:
    file = str(files[0].relative_to(root))
    if len(files) > 1:
        return Found(name, "worker", None, None, file, problem=f"it has two files, also {files[1].relative_to(root)}")
    values = header(files[0])
    if values is None:
        return Found(name, "worker", None, None, file, problem=UNREADABLE)
    return Found(name, "worker", values.get("description"), values.get("model"), file, input=values.get("input"))


# -- workers -----------------------------------------------------------------------------------------

_KEY = re.compile(r"(description|model):(?: +(.*))?")
_NO_INPUT = re.compile(r"""input: +(none|"none"|'none')\s*(\s#.*)?""")
_DIRECTIVE = re.compile(r"^%[A-Z]", re.MULTILINE)
_INDICATORS = "-?:,[]{}#&*!|>'\"%@`~"


def header(path: Path) -> dict[str, str] | None:
    """Return `description`, `model` and `input: none` of a worker's file; `None` if it cannot be read."""
    try:
        text = read_file(path).decode().removeprefix("\ufeff").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return None
    lines = text.split("\n")
    if path.suffix == ".md":
        if lines[0].rstrip() != "---":
            return {}
        end = next((number for number, line in enumerate(lines) if number and line.rstrip() == "---"), None)
        if end is None:
            return None
        lines = lines[1:end]
    values = _plain_values(lines)
    return _with_yaml("\n".join(lines)) if values is None else values


def _plain_values(lines: list[str]) -> dict[str, str] | None:
    """Return the values if all are plain text in one line, as nearly always; `None` if it takes YAML to read them."""
    values = {}
    filled = [line for line in lines if line.strip()]
    for line, following in zip(filled, [*filled[1:], ""], strict=True):
        if line[0].isspace() or line[0] == "#":
            continue
        if line[0] in _INDICATORS and line[0] != "-":
            return None  # a quoted key, or a mapping in braces
        if _NO_INPUT.fullmatch(line):
            values["input"] = "none"
        if (key := _KEY.fullmatch(line.rstrip())) is None:
            if line.startswith(("description", "model:", "model ")):
                return None
            continue
        value = key[2] or ""
        if not value or value[0] in _INDICATORS or ": " in value or " #" in value or "\t" in value or value[-1] == ":":
            return None
        if following[:1].isspace():
            return None  # it goes on in the next line
        if value.lower() != "null":
            values[key[1]] = value
    return values


def _with_yaml(text: str) -> dict[str, str] | None:
    """Return the values from the events of a YAML parser: no alias or merge key is followed."""
    import yaml  # noqa: PLC0415 - it takes as long as all else together, and is rarely needed

    if _DIRECTIVE.search(text):  # the time that the parser takes grows with the square of their number
        return None
    values, depth, key = dict[str, str](), 0, None
    try:
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            scalar = event.value if isinstance(event, yaml.ScalarEvent) else None
            if depth == 0 and (scalar or isinstance(event, yaml.SequenceStartEvent | yaml.AliasEvent)):
                return None
            if depth > _MAX_DEPTH:  # the time that the parser takes grows with the square of it
                return None
            if depth == 1 and key is not None:
                is_no_input = key == "input" and scalar == "none"
                if scalar is not None and not _is_null(event) and (key in ("description", "model") or is_no_input):
                    values[key] = scalar
                key = None
            elif depth == 1:
                key = scalar if scalar is not None else ""
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return None
    return values


def _is_null(event: Any) -> bool:
    return event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")


# -- functions ---------------------------------------------------------------------------------------


def functions_of(root: Path) -> list[Found]:
    """Return the functions with `@entry` and the workers in `tools.py` and its imports, if the code shows them."""
    path = tools_file(root)
    return [] if path is None else list(dict.fromkeys(_entries_in(path, root, {path})))


def _entries_in(path: Path, root: Path, seen: set[Path], only: set[str] | None = None) -> Iterator[Found]:
    file = str(path.relative_to(root))
    try:
        tree = ast.parse(read_file(path, _MAX_CODE))
    except _UNPARSABLE as exc:
        problem = TOO_LARGE if isinstance(exc, OSError) and exc.errno == errno.EFBIG else UNREADABLE
        yield Found(path.stem, "function", None, None, file, problem=problem)
        return
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            yield from _imported(node, path, root, seen)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = [mark for mark in map(_call_of, node.decorator_list) if mark[0] == "entry"]
            if marks and (only is None or node.name in only):
                options, line = marks[0][1], node.decorator_list[0].lineno
                described = options.get("description") or ast.get_docstring(node)
                yield Found(options.get("name") or node.name, "function", described, None, file, line)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made, options = _call_of(node.value)
            bound = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if made == "WorkerEntry" and "name" in options and (only is None or bound & only):
                described, model = options.get("description"), options.get("model")
                yield Found(options["name"], "worker", described, model, file, node.lineno)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, field, ()))


def _call_of(node: ast.expr) -> tuple[str, dict[str, str]]:
    """Return the last part of the name that is called or mentioned, and the keywords that are plain text."""
    options = {}
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", None)
            if keyword.arg is not None and isinstance(value, str):
                options[keyword.arg] = value
        node = node.func
    return str(getattr(node, "attr", None) or getattr(node, "id", "")), options


def _imported(node: ast.ImportFrom, path: Path, root: Path, seen: set[Path]) -> Iterator[Found]:
    folder = path.parent if node.level or not (root / f"{node.module}.py").is_file() else root
    other = folder / f"{(node.module or '').replace('.', '/')}.py"
    if other in seen or not other.is_file():
        return
    names = {alias.name for alias in node.names}
    yield from _entries_in(other, root, {*seen, other}, None if "*" in names else names)


def names_in_code(root: Path) -> set[str]:
    """Return the names in the project's code, as text or as variables: it may call entries of these names."""
    found: set[str] = set()
    for path in (*root.glob("*.py"), *root.glob("tools/*.py"), *root.glob("workers/*/*.py")):
        try:
            tree = ast.parse(read_file(path, MAX_CODE))
        except _UNPARSABLE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.decorator_list = []  # it says what the function itself is called
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found
