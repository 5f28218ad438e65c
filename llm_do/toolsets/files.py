"""File tools over the named roots of a worker. Paths are `root/path/in/it`."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic_ai import BinaryContent, RunContext, Tool

from ..context import Context
from ..entries import ToolEntry
from ..errors import ContentError, LlmDoError, PathChanged, PathDenied, PathFailed, PathMissing
from ..frame import CallFrame
from ..protocols import Effect
from ..rules import UNKNOWN, Case, Grant, Places
from ..sandbox import FileState, Pins

T = TypeVar("T")

_MAX_JUDGED = 2000
"""How many files a search may look into where rules speak of paths."""


def _file_tool(
    effect: Effect,
    *paths: str,
    reads: str | None = None,
    changes: str | None = None,
    cases: Callable[[dict[str, Any], CallFrame], Sequence[Case]] | None = None,
) -> Callable[[Callable[..., T]], ToolEntry[T]]:
    """Make a tool of a function. `paths` are its arguments that are paths, by which rules judge a call of it.

    `reads` is the one of them whose content gets out as well: whoever must not read a file must not move it either.
    `changes` is the one whose file changes: if somebody is asked, it is the file that they were shown.
    """

    def make(function: Callable[..., T]) -> ToolEntry[T]:
        return ToolEntry(
            Tool(function),
            rule=f"sandbox.{effect}",
            effects=(effect,),
            pin=partial(_pin, changes) if changes is not None else None,
            cases=cases or partial(_cases, paths, reads),
            offers=partial(_offers, paths, f"sandbox.{effect}") if effect == "write" else None,
            tells=(PathDenied, PathChanged, PathMissing, PathFailed, ContentError),
        )

    return make


def _cases(paths: Sequence[str], reads: str | None, arguments: dict[str, Any], frame: CallFrame) -> Sequence[Case]:
    """Every path that a call touches, as the place on this machine that it means."""
    manager = frame.files.manager
    cases = [Case({"path": manager.host_path(arguments[name])}, arguments[name]) for name in paths]
    if reads is not None:
        read = arguments[reads]
        cases.append(Case({"path": manager.host_path(read)}, f"reading {read}", name="sandbox.read"))
    return cases


def _listed_cases(arguments: dict[str, Any], frame: CallFrame) -> Sequence[Case]:
    path = arguments.get("path", "")
    return _cases(("path",), None, {"path": path}, frame) if path.strip("/") else [Case({"path": None})]


def _found_cases(arguments: dict[str, Any], frame: CallFrame) -> Sequence[Case]:
    """A search looks into every file that it finds, so each of them is judged, if any rule is there to judge them."""
    assert frame.parent is not None
    if not any("sandbox.read" in book.rules for book in frame.parent.rules):
        return [Case()]
    files = frame.files
    name, _, rest = arguments["pattern"].partition("/")
    root = files.manager.root(name)
    found = root.find(rest or "**", _MAX_JUDGED + 1)
    # Without words: a model that is refused must not learn the names of what it must not see.
    cases = [Case({"path": root.folder / path}) for path in found[:_MAX_JUDGED]]
    if len(found) > _MAX_JUDGED:
        cases.append(Case({"path": UNKNOWN}, f"more than {_MAX_JUDGED} files"))
    return cases or [Case({"path": root.folder})]


def _judged(ctx: RunContext[Context], root: str) -> Callable[[str], bool]:
    """Tells of a file in a root whether it was judged: what came after the rules were heard is not looked into."""
    frame = ctx.deps.frame
    paths = {case.facts.get("path") for case in frame.call.cases} if frame.call is not None else {None}
    folder = frame.files.manager.root(root).folder
    return lambda path: None in paths or folder / path in paths


def _offers(paths: Sequence[str], rule: str, arguments: dict[str, Any], frame: CallFrame) -> Sequence[Grant]:
    """The folder that a file is in, as something to allow for the session."""
    manager = frame.files.manager
    folders = {f"{root.name}/{rest}".rpartition("/")[0] for root, rest in (manager.parse(arguments[p]) for p in paths)}
    if len(folders) != 1 or "*" in (folder := folders.pop()):
        return ()
    places = Places({name: root.folder for name, root in manager.roots.items()})
    return [Grant(rule, {"path": f"{folder}/*"}, places)]


def _pin(changes: str, arguments: dict[str, Any], frame: CallFrame) -> Pins:
    """The file that a call changes, as it is now. One that cannot be looked at is equal to no other."""
    path = arguments[changes]
    root, rest = frame.files.manager.parse(path)
    try:
        return Pins({path: frame.files.state(root.name, rest)})
    except LlmDoError as exc:
        return Pins({path: FileState(str(exc))})


def _expected(ctx: RunContext[Context], path: str) -> FileState | None:
    """The file that somebody was asked about, if that is how the call came to run."""
    pins = ctx.deps.frame.pins
    return None if pins is None else pins.files[path]


def _shown(lines: Iterable[str], truncated: bool) -> str:
    text = "\n".join(lines) or "(nothing)"
    return f"{text}\n(there is more)" if truncated else text


@_file_tool("read", "path")
def read_file(ctx: RunContext[Context], path: str) -> str | BinaryContent:
    """Read a file.

    Args:
        path: Such as root/folder/file.txt.
    """
    files = ctx.deps.sandbox_toolset
    root, rest = ctx.deps.sandbox_manager.parse(path)
    media_type, _ = mimetypes.guess_type(path)
    if media_type is None or media_type.startswith("text/") or media_type == "application/json":
        return files.read_text(root.name, rest)
    return BinaryContent(files.read_bytes(root.name, rest), media_type=media_type)


@_file_tool("write", "path", changes="path")
def write_file(ctx: RunContext[Context], path: str, content: str) -> str:
    """Write a text file, in place of whatever was there.

    Args:
        path: Such as root/folder/file.txt.
        content: All of the text.
    """
    files = ctx.deps.sandbox_toolset
    root, rest = ctx.deps.sandbox_manager.parse(path)
    files.write_text(root.name, rest, content, expected=_expected(ctx, path))
    return f"{path} is written."


@_file_tool("write", "path", reads="path", changes="path")
def edit_file(ctx: RunContext[Context], path: str, old: str, new: str) -> str:
    """Replace a piece of a text file.

    Args:
        path: Such as root/folder/file.txt.
        old: The text to replace. It must occur exactly once.
        new: What stands there afterwards.
    """
    files = ctx.deps.sandbox_toolset
    root, rest = ctx.deps.sandbox_manager.parse(path)
    files.edit_text(root.name, rest, old, new, expected=_expected(ctx, path))
    return f"{path} is changed."


@_file_tool("write", "source", "destination", reads="source", changes="source")
def move_file(ctx: RunContext[Context], source: str, destination: str) -> str:
    """Move a file, or rename it. Nothing is overwritten.

    Args:
        source: Such as root/folder/file.txt.
        destination: Where it goes, with its new name.
    """
    files = ctx.deps.sandbox_toolset
    root, rest = ctx.deps.sandbox_manager.parse(source)
    to_root, to_rest = ctx.deps.sandbox_manager.parse(destination)
    files.move(root.name, rest, to_root.name, to_rest, expected=_expected(ctx, source))
    return f"{source} is now {destination}."


@_file_tool("write", "path", changes="path")
def delete_file(ctx: RunContext[Context], path: str) -> str:
    """Delete a file.

    Args:
        path: Such as root/folder/file.txt.
    """
    files = ctx.deps.sandbox_toolset
    root, rest = ctx.deps.sandbox_manager.parse(path)
    files.delete(root.name, rest, expected=_expected(ctx, path))
    return f"{path} is deleted."


@_file_tool("read", cases=_listed_cases)
def list_files(ctx: RunContext[Context], path: str = "") -> str:
    """List a folder. Names of folders end with a slash.

    Args:
        path: Such as root/folder. Nothing lists the roots.
    """
    files = ctx.deps.sandbox_toolset
    if not path.strip("/"):
        return "\n".join(f"{name}/" for name in ctx.deps.sandbox_manager.roots)
    root, rest = ctx.deps.sandbox_manager.parse(path)
    listing = files.list_files(root.name, rest)
    return _shown((f"{root.name}/{name}" for name in listing), listing.truncated)


@_file_tool("read", cases=_found_cases)
def find_files(ctx: RunContext[Context], pattern: str) -> str:
    """Find files by name.

    Args:
        pattern: Such as root/**/*.txt.
    """
    files = ctx.deps.sandbox_toolset
    root, _, rest = pattern.partition("/")
    found, judged = files.find(root, rest or "**"), _judged(ctx, root)
    return _shown((f"{root}/{name}" for name in found if judged(name)), found.truncated)


@_file_tool("read", cases=_found_cases)
def search_files(ctx: RunContext[Context], text: str, pattern: str) -> str:
    """Find lines of text files that contain a text.

    Args:
        text: What to look for, to the letter.
        pattern: Where, such as root/**/*.txt.
    """
    files = ctx.deps.sandbox_toolset
    root, _, rest = pattern.partition("/")
    found, judged = files.search(root, text, pattern=rest or "**"), _judged(ctx, root)
    lines = (f"{root}/{line.path}:{line.line}: {line.text}" for line in found if judged(line.path))
    return _shown(lines, found.truncated)


FILE_TOOLS = (read_file, write_file, edit_file, move_file, delete_file, list_files, find_files, search_files)
"""What a worker with a sandbox can be given: `WorkerEntry(sandbox=..., tools=[*FILE_TOOLS])`."""
