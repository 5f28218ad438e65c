"""File tools over the named roots of a worker. Paths are `root/path/in/it`."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pydantic_ai import BinaryContent, RunContext, ToolFailed

from ..context import Context
from ..entries import entry
from ..errors import ContentError, PathDenied, PathFailed, PathMissing
from ..sandbox import SandboxToolset


@contextmanager
def _files(ctx: RunContext[Context]) -> Iterator[SandboxToolset]:
    """The files of the calling worker. What is wrong with a path is for the model to read, if a model asked."""
    try:
        yield ctx.deps.sandbox_toolset
    except (PathDenied, PathMissing, PathFailed, ContentError) as exc:
        if ctx.tool_call_id is None:
            raise
        raise ToolFailed(str(exc)) from exc


def _shown(lines: Iterable[str], truncated: bool) -> str:
    text = "\n".join(lines) or "(nothing)"
    return f"{text}\n(there is more)" if truncated else text


@entry(name="read_file", rule="sandbox.read")
def read_file(ctx: RunContext[Context], path: str) -> str | BinaryContent:
    """Read a file.

    Args:
        path: Such as root/folder/file.txt.
    """
    with _files(ctx) as files:
        root, rest = ctx.deps.sandbox_manager.parse(path)
        media_type, _ = mimetypes.guess_type(path)
        if media_type is None or media_type.startswith("text/") or media_type == "application/json":
            return files.read_text(root.name, rest)
        return BinaryContent(files.read_bytes(root.name, rest), media_type=media_type)


@entry(name="write_file", rule="sandbox.write", requires_approval=True)
def write_file(ctx: RunContext[Context], path: str, content: str) -> str:
    """Write a text file, in place of whatever was there.

    Args:
        path: Such as root/folder/file.txt.
        content: All of the text.
    """
    with _files(ctx) as files:
        root, rest = ctx.deps.sandbox_manager.parse(path)
        files.write_text(root.name, rest, content)
        return f"{path} is written."


@entry(name="edit_file", rule="sandbox.write", requires_approval=True)
def edit_file(ctx: RunContext[Context], path: str, old: str, new: str) -> str:
    """Replace a piece of a text file.

    Args:
        path: Such as root/folder/file.txt.
        old: The text to replace. It must occur exactly once.
        new: What stands there afterwards.
    """
    with _files(ctx) as files:
        root, rest = ctx.deps.sandbox_manager.parse(path)
        files.edit_text(root.name, rest, old, new)
        return f"{path} is changed."


@entry(name="move_file", rule="sandbox.write", requires_approval=True)
def move_file(ctx: RunContext[Context], source: str, destination: str) -> str:
    """Move a file, or rename it. Nothing is overwritten.

    Args:
        source: Such as root/folder/file.txt.
        destination: Where it goes, with its new name.
    """
    with _files(ctx) as files:
        root, rest = ctx.deps.sandbox_manager.parse(source)
        to_root, to_rest = ctx.deps.sandbox_manager.parse(destination)
        files.move(root.name, rest, to_root.name, to_rest)
        return f"{source} is now {destination}."


@entry(name="delete_file", rule="sandbox.write", requires_approval=True)
def delete_file(ctx: RunContext[Context], path: str) -> str:
    """Delete a file.

    Args:
        path: Such as root/folder/file.txt.
    """
    with _files(ctx) as files:
        root, rest = ctx.deps.sandbox_manager.parse(path)
        files.delete(root.name, rest)
        return f"{path} is deleted."


@entry(name="list_files", rule="sandbox.read")
def list_files(ctx: RunContext[Context], path: str = "") -> str:
    """List a folder. Names of folders end with a slash.

    Args:
        path: Such as root/folder. Nothing lists the roots.
    """
    with _files(ctx) as files:
        if not path.strip("/"):
            return "\n".join(f"{name}/" for name in ctx.deps.sandbox_manager.roots)
        root, rest = ctx.deps.sandbox_manager.parse(path)
        listing = files.list_files(root.name, rest)
        return _shown((f"{root.name}/{name}" for name in listing), listing.truncated)


@entry(name="find_files", rule="sandbox.read")
def find_files(ctx: RunContext[Context], pattern: str) -> str:
    """Find files by name.

    Args:
        pattern: Such as root/**/*.txt.
    """
    with _files(ctx) as files:
        root, _, rest = pattern.partition("/")
        found = files.find(root, rest or "**")
        return _shown((f"{root}/{name}" for name in found), found.truncated)


@entry(name="search_files", rule="sandbox.read")
def search_files(ctx: RunContext[Context], text: str, pattern: str) -> str:
    """Find lines of text files that contain a text.

    Args:
        text: What to look for, to the letter.
        pattern: Where, such as root/**/*.txt.
    """
    with _files(ctx) as files:
        root, _, rest = pattern.partition("/")
        found = files.search(root, text, pattern=rest or "**")
        return _shown((f"{root}/{line.path}:{line.line}: {line.text}" for line in found), found.truncated)


FILE_TOOLS = (read_file, write_file, edit_file, move_file, delete_file, list_files, find_files, search_files)
"""What a worker with a sandbox can be given: `WorkerEntry(sandbox=..., tools=[*FILE_TOOLS])`."""
