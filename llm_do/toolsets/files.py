"""File tools over the named roots of a worker. Paths are `root/path/in/it`."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Annotated, Any, TypeVar

from pydantic import Field
from pydantic_ai import BinaryContent, RunContext, Tool

from ..core.context import Context
from ..core.entry import Effect, Repeat
from ..core.frame import CallFrame
from ..core.gate import call_of
from ..core.tool import ToolEntry
from ..errors import ContentError, PathChanged, PathDenied, PathFailed, PathMissing
from ..policy.plan import Plan, pin_files
from ..policy.rules import UNKNOWN, Case, Grant, Places, Ruling, denies_any, judge
from ..sandbox import FileState, Listing, Pins, Root, SandboxManager, SandboxToolset
from ..sandbox.excerpts import MAX_LINES, MakeCleaner, first_entries

T = TypeVar("T")

_MAX_JUDGED = 2000  # files that a search may read if any rule is about reading
_WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True, kw_only=True)
class _FilePlan(Plan):
    manager: SandboxManager
    written: Sequence[str]
    """The paths that are written. The first is the file that changes."""

    def pins(self, ruling: Ruling) -> Pins | None:
        """Return the file that changes, in its present state."""
        return pin_files(self.manager, self.written[:1]) if self.written else None

    def offers(self, ruling: Ruling) -> Sequence[Grant]:
        """Return the folder of the files, if all are in the same."""
        placed = map(self.manager.parse, self.written)
        folders = {f"{root.name}/{rest}".rpartition("/")[0] for root, rest in placed}
        if len(folders) != 1 or "*" in (folder := folders.pop()):
            return ()
        places = Places({name: root.folder for name, root in self.manager.roots.items()})
        return [Grant("sandbox.write", {"path": f"{folder}/*"}, places)]


def _file_tool(
    effect: Effect,
    *paths: str,
    reads: bool = False,
    ungranted: Sequence[str] = (),
    repeat: Repeat | None = None,
    find_cases: Callable[[dict[str, Any], CallFrame], Sequence[Case]] | None = None,
) -> Callable[[Callable[..., T]], ToolEntry[T]]:
    """Make a tool of a function. Rules judge a call of it by `paths`, the names of arguments that are paths.

    A tool that writes changes the file at the first path: a person is asked about that file as it is then.
    With `reads`, its content becomes readable elsewhere: a file that must not be read must not be moved.
    `ungranted` are arguments that a grant for the session leaves open. `find_cases` replaces `paths`: it lists folders.
    """

    def plan(arguments: dict[str, Any], frame: CallFrame) -> Plan:
        touched = [arguments[name] for name in paths]
        cases = _cases(touched, frame, reads=reads) if find_cases is None else find_cases(arguments, frame)
        written = touched if effect == "write" else ()
        return _FilePlan(cases=cases, ungranted=ungranted, manager=frame.files.manager, written=written)

    def make(function: Callable[..., T]) -> ToolEntry[T]:
        return ToolEntry(
            Tool(function),
            rule=f"sandbox.{effect}",
            effects=(effect,),
            repeat=repeat,
            plan=plan,
            plans_in_thread=find_cases is not None,
            errors_for_model=(PathDenied, PathChanged, PathMissing, PathFailed, ContentError),
        )

    return make


def _cases(paths: Sequence[str], frame: CallFrame, *, reads: bool = False) -> Sequence[Case]:
    """Return a case for each path of a call, as a path on this machine."""
    cases = [Case({"path": frame.files.manager.host_path(path)}, path) for path in paths]
    if reads:
        cases.append(Case(cases[0].facts, f"reading {paths[0]}", name="sandbox.read"))
    return cases


def _listed_cases(arguments: dict[str, Any], frame: CallFrame) -> Sequence[Case]:
    """Return a case for the listed folder and, if the pattern goes into its subfolders, for each path that is found."""
    path, pattern = arguments.get("path", ""), arguments.get("pattern") or "*"
    if not path.strip("/"):
        return [Case({"path": None})]
    cases = _cases([path], frame)
    if not _looks_below(pattern):
        return cases
    root, rest = frame.files.manager.parse(path)
    if not _readable(root, frame)(rest):  # a folder that a rule denies is not searched
        return cases
    find = partial(root.entries, rest, _MAX_JUDGED + 1, pattern=pattern)
    return [*cases, *_each_found(root, f"{rest}/{pattern}", find, frame)]


def _looks_below(pattern: str) -> bool:
    return "/" in pattern or "**" in pattern


def _found_cases(arguments: dict[str, Any], frame: CallFrame) -> Sequence[Case]:
    """Return a case for each file that a search finds, since it looks into all of them."""
    name, _, rest = arguments["pattern"].partition("/")
    root = frame.files.manager.root(name)
    return _each_found(root, rest, partial(root.find, rest or "**", _MAX_JUDGED + 1), frame)


def _each_found(root: Root, pattern: str, find: Callable[..., list[str]], frame: CallFrame) -> Sequence[Case]:
    """Return a case for each path that is found and that no rule denies, if any rule is about reading.

    Denied paths are left out as if they did not exist: if they were refused, a model could find out names by patterns.
    If no path is left, rules judge the folder that the pattern names, whatever is in it.
    """
    if not any("sandbox.read" in book.rules for book in frame.caller.inherited.rules):
        return [Case()]
    found = find(keep=_readable(root, frame))
    # Without text: a refusal must not tell a model the names of hidden files.
    cases = [Case({"path": root.folder / path}) for path in found[:_MAX_JUDGED]]
    if len(found) > _MAX_JUDGED:
        cases.append(Case({"path": UNKNOWN}, f"more than {_MAX_JUDGED} files"))
    fixed = takewhile(lambda name: not _WILDCARD.search(name), pattern.split("/"))
    return cases or [Case({"path": root.folder.joinpath(*fixed)})]


def _readable(root: Root, frame: CallFrame) -> Callable[[str], bool]:
    """Return a function that tells whether no rule denies reading a path of a root."""
    rules, reading = frame.caller.inherited.rules, call_of(frame, "sandbox.read")

    def is_kept(path: str) -> bool:
        case = Case({"path": root.folder / path})
        return judge(replace(reading, cases=(case,)), path=rules).disposition != "deny"

    return is_kept


def _planned(ctx: RunContext[Context], root: str) -> Callable[[str], bool]:
    """Return a function that tells whether rules judged a path of a root: newer files are not read."""
    frame = ctx.deps.frame
    judgement = frame.judgement
    paths = {None} if judgement is None else {case.facts.get("path") for case in judgement.call.cases}
    folder = frame.files.manager.root(root).folder
    return lambda path: None in paths or folder / path in paths  # `Path` drops the slash of a folder


def _locate(ctx: RunContext[Context], path: str) -> tuple[SandboxToolset, str, str]:
    """Return the worker's files, and the root and the rest of a path."""
    root, rest = ctx.deps.sandbox_manager.parse(path)
    return ctx.deps.sandbox_toolset, root.name, rest


def _expected(ctx: RunContext[Context], path: str) -> FileState | None:
    """Return the file as it was when a person was asked about the call; `None` if no person was asked."""
    pins = ctx.deps.frame.pins
    return None if pins is None else pins.files[path]


def _cleaner(ctx: RunContext[Context]) -> MakeCleaner | None:
    """Return what makes filters that remove the session's secrets from texts, if it has secrets."""
    return ctx.deps.runtime.recorder.secrets.make_cleaner()


@_file_tool("read", "path", ungranted=("offset", "limit", "column"))
def read_file(
    ctx: RunContext[Context],
    path: str,
    offset: Annotated[int, Field(ge=1)] = 1,
    limit: Annotated[int, Field(ge=1)] = MAX_LINES,
    column: Annotated[int, Field(ge=1)] = 1,
) -> str | BinaryContent:
    """Read a file. If a text file is long, a part is returned, and a last line in brackets says how to read on.

    Args:
        path: Path of the file, for example ROOT/folder/file.txt.
        offset: Number of the first line to return, counted from 1.
        limit: Maximum number of lines to return. Fewer are returned if they have more than 100,000 characters.
        column: Number of the first character to return of the first line, counted from 1. Use it to read on in a very
            long line.
    """
    files, root, rest = _locate(ctx, path)
    media_type, _ = mimetypes.guess_type(path)
    # By content, not by name: `.rs` is the suffix of Rust, but `mimetypes` knows another use of it.
    if media_type is not None and not media_type.startswith("text/") and not files.is_text(root, rest):
        return BinaryContent(files.read_bytes(root, rest), media_type=media_type)
    lines = files.read_lines(root, rest, offset=offset, limit=limit, column=column, make_cleaner=_cleaner(ctx))
    return lines.for_model()


@_file_tool("write", "path", repeat="safe")
def write_file(ctx: RunContext[Context], path: str, content: str) -> str:
    """Create a text file, or replace its content.

    Args:
        path: Path of the file, for example ROOT/folder/file.txt.
        content: The complete text of the file.
    """
    files, root, rest = _locate(ctx, path)
    files.write_text(root, rest, content, expected=_expected(ctx, path))
    return f"{path} is written."


@_file_tool("write", "path", reads=True)
def edit_file(ctx: RunContext[Context], path: str, old: str, new: str) -> str:
    """Replace a passage of a text file.

    Args:
        path: Path of the file, for example ROOT/folder/file.txt.
        old: The exact text to replace. It must occur exactly once in the file.
        new: The text to put in its place.
    """
    files, root, rest = _locate(ctx, path)
    files.edit_text(root, rest, old, new, expected=_expected(ctx, path))
    return f"{path} is changed."


@_file_tool("write", "source", "destination", reads=True)
def move_file(ctx: RunContext[Context], source: str, destination: str) -> str:
    """Move or rename a file. An existing file is never overwritten.

    Args:
        source: Path of the file, for example ROOT/folder/file.txt.
        destination: New path of the file, with its name.
    """
    files, root, rest = _locate(ctx, source)
    _, to_root, to_rest = _locate(ctx, destination)
    files.move(root, rest, to_root, to_rest, expected=_expected(ctx, source))
    return f"{source} is moved to {destination}."


@_file_tool("write", "path")
def delete_file(ctx: RunContext[Context], path: str) -> str:
    """Delete a file.

    Args:
        path: Path of the file, for example ROOT/folder/file.txt.
    """
    files, root, rest = _locate(ctx, path)
    files.delete(root, rest, expected=_expected(ctx, path))
    return f"{path} is deleted."


def _entries(ctx: RunContext[Context], lines: Iterable[str], listing: Listing[Any], narrow: str, *, below: bool) -> str:
    """Return a list for a model. If it looks `below` a folder, it says whether rules may leave files out."""
    frame, secrets = ctx.deps.frame, ctx.deps.runtime.recorder.secrets
    text = first_entries(map(secrets.text, lines), more=listing.truncated, narrow=narrow)
    # The same sentence whether a file is left out or not, so that it reveals none.
    if below and denies_any("sandbox.read", frame.caller.inherited.rules):
        return f"{text}\n[Files that a rule denies are not shown.]"
    return text


@_file_tool("read", find_cases=_listed_cases)
def list_files(ctx: RunContext[Context], path: str = "", pattern: str = "*") -> str:
    """List the files and folders in a folder. Names of folders end with a slash.

    Args:
        path: Path of the folder, for example ROOT/folder. Leave empty to list the roots.
        pattern: List only names that match this pattern, for example *.txt. Use **/*.txt to include all folders below.
    """
    if not path.strip("/"):
        if pattern not in ("", "*"):
            raise ContentError(
                "A pattern needs a folder to look in. Call list_files with a path that starts with a root."
            )
        return "\n".join(f"{name}/" for name in ctx.deps.sandbox_manager.roots)
    files, root, rest = _locate(ctx, path)
    below = _looks_below(pattern)
    listing = files.list_files(root, rest, pattern=pattern or "*", keep=_planned(ctx, root) if below else None)
    narrow = "call list_files with a pattern, such as a*, or with a folder below."
    return _entries(ctx, (f"{root}/{name}" for name in listing), listing, narrow, below=below)


@_file_tool("read", find_cases=_found_cases)
def find_files(ctx: RunContext[Context], pattern: str) -> str:
    """Find files by path.

    Args:
        pattern: Pattern of the paths, for example ROOT/**/*.txt. ** stands for any number of folders.
    """
    root, _, rest = pattern.partition("/")
    found = ctx.deps.sandbox_toolset.find(root, rest or "**", keep=_planned(ctx, root))
    narrow = "call find_files with a pattern that fewer files match."
    return _entries(ctx, (f"{root}/{name}" for name in found), found, narrow, below=True)


@_file_tool("read", find_cases=_found_cases)
def search_files(ctx: RunContext[Context], text: str, pattern: str) -> str:
    """Find lines of text files that contain a text.

    Args:
        text: The exact text to find, within one line. Case matters; it is not a regular expression.
        pattern: Pattern of the files to search, for example ROOT/**/*.txt.
    """
    files, (root, _, rest) = ctx.deps.sandbox_toolset, pattern.partition("/")
    found = files.search(root, text, pattern=rest or "**", keep=_planned(ctx, root), make_cleaner=_cleaner(ctx))
    lines = (f"{root}/{line.path}:{line.line}: {line.text}" for line in found)
    narrow = "search for a longer text, or use a pattern that fewer files match."
    return _entries(ctx, lines, found, narrow, below=True)


FILE_TOOLS = (read_file, write_file, edit_file, move_file, delete_file, list_files, find_files, search_files)
"""Tools for a worker with a sandbox: `WorkerEntry(sandbox=..., tools=[*FILE_TOOLS])`."""
