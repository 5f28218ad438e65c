"""The roots of a worker, and file operations by root and path, for the tools of a model and for Python code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ...errors import ContentError, LlmDoError, PathDenied
from ...machine.remembered import state_folder
from ...values.texts import quote
from ..excerpts import MAX_LINES, LineRange, MakeCleaner, NotText, clean, is_text, read_range
from .config import RootConfig, SandboxConfig
from .folders import Protected
from .root import CHANGES, Keep, Root
from .states import FileState
from .system_calls import Opener, best_opener

_T = TypeVar("_T")
_MAX_LINE = 400


class SandboxManager:
    """The roots of a configuration. They are opened at their first use, and closed with the manager."""

    def __init__(
        self,
        config: SandboxConfig,
        *,
        base: Path,
        protected: Sequence[Path] = (),
        opener: Opener | None = None,
    ) -> None:
        """Make the roots, with paths relative to `base`, the project folder.

        No root reaches a path at or below one in `protected`, or the user's remembered answers.
        """
        self.config = config
        self.base = base
        answers = state_folder()
        guard = Protected([*(base / path for path in protected), *([] if answers is None else [answers])])
        self.protected = guard.paths
        """The paths that no root reaches."""
        self.roots = {
            name: Root(name, config, base=base, protected=guard, opener=opener or best_opener())
            for name in config.paths
        }

    def __enter__(self) -> SandboxManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folders of the roots. The next use opens them again."""
        for root in self.roots.values():
            root.close()

    def root(self, name: str) -> Root:
        """Return the root with a name."""
        if name not in self.roots:
            raise PathDenied(f"There is no root {quote(name)}. {self._how_to_write}")
        return self.roots[name]

    @property
    def _how_to_write(self) -> str:
        return f"Begin a path with one of these roots: {', '.join(map(repr, self.roots)) or 'none'}."

    def parse(self, path: str) -> tuple[Root, str]:
        """Return the root that a path like `input/a/b.txt` starts with, and the rest."""
        name, _, rest = path.partition("/")
        if not name:
            raise PathDenied(f"{quote(path)} starts with no root. {self._how_to_write}")
        root = self.root(name)
        return root, root.normalize(rest)

    def host_path(self, path: str) -> Path:
        """Return the path on this machine, to show it to a person. Nothing is opened."""
        root, rest = self.parse(path)
        return root.folder / rest

    def describe(self) -> str:
        """Return a description of the roots for a model."""
        if not self.roots:
            return "There are no files to use."
        lines = [f"- {name}: {_describe(config)}" for name, config in self.config.paths.items()]
        example = f"{next(iter(self.roots))}/folder/file.txt"
        return "\n".join([f"Begin a path with the name of a root, for example {example}. Roots:", *lines])


def _describe(config: RootConfig) -> str:
    mode = "read and write" if config.mode == "rw" else "read only"
    names = "any files" if config.suffixes is None else f"files that end with {', '.join(config.suffixes) or '(none)'}"
    return f"{mode}, {names}, up to {config.max_file_bytes} bytes each"


class Listing(list[_T]):
    """A list that knows whether it is complete."""

    def __init__(self, items: Sequence[_T], limit: int) -> None:
        super().__init__(items[:limit])
        self.truncated = len(items) > limit


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLine:
    """A line that a search has found."""

    path: str
    """Relative to the root."""
    line: int
    """Counted from 1."""
    text: str
    """The line, or the part around the text if the line is long."""


class SandboxToolset:
    """Reads and changes files in the roots of a manager. Paths are relative to their root."""

    def __init__(self, manager: SandboxManager) -> None:
        self.manager = manager

    def read_bytes(self, root: str, path: str) -> bytes:
        """Return the content of a file."""
        return self.manager.root(root).scan(path, b"".join)

    def read_text(self, root: str, path: str) -> str:
        """Return the content of a UTF-8 text file, with its line ends as they are."""
        try:
            return self.read_bytes(root, path).decode()
        except UnicodeDecodeError as exc:
            file = self.manager.root(root).quoted_path(path)
            raise ContentError(f"{file} is not UTF-8 text (byte {exc.start}). read_bytes reads it.") from None

    def is_text(self, root: str, path: str) -> bool:
        """Return whether a file is UTF-8 text: without null bytes, and no PDF, which may be written in ASCII."""
        return self.manager.root(root).scan(path, is_text)

    def read_lines(
        self,
        root: str,
        path: str,
        *,
        offset: int = 1,
        limit: int = MAX_LINES,
        column: int = 1,
        make_cleaner: MakeCleaner | None = None,
    ) -> LineRange:
        """Return lines of a UTF-8 text file, in at most 100,000 characters, without reading all of it into memory.

        Args:
            root: The name of the root.
            path: The file.
            offset: The first line, counted from 1.
            limit: How many lines.
            column: The first character of the first line, counted from 1.
            make_cleaner: Removes secrets before the text is truncated.
        """
        file = self.manager.root(root).quoted_path(path)
        read = partial(read_range, offset=offset, limit=limit, column=column, make_cleaner=make_cleaner)
        try:
            found = self.manager.root(root).scan(path, read)
        except NotText as exc:
            raise ContentError(f"{file} is not UTF-8 text (byte {exc}), so it has no lines to read.") from None
        if offset > max(1, found.lines):
            raise ContentError(
                f"offset={offset} is behind the end of {file}, which has {found.lines:,} lines. "
                f"Use an offset from 1 to {max(1, found.lines)}."
            )
        if column > 1 and found.text in ("", "\n"):
            raise ContentError(f"column={column} is behind the end of line {offset} of {file}. Use a smaller column.")
        return found

    def stat(self, root: str, path: str) -> os.stat_result:
        """Return the status of a file: its size, time and the like."""
        return self.manager.root(root).stat(path)

    def state(self, root: str, path: str) -> FileState:
        """Return the state of a file. As `expected` of a change, any other file raises `PathChanged`."""
        return self.manager.root(root).state(path)

    def write_bytes(self, root: str, path: str, data: bytes, *, expected: FileState | None = None) -> None:
        """Create a file or replace its content; folders on the way are made."""
        self.manager.root(root).write(path, data, expected)

    def write_text(self, root: str, path: str, content: str, *, expected: FileState | None = None) -> None:
        """Create a UTF-8 text file or replace its content; folders on the way are made."""
        try:
            data = content.encode()
        except UnicodeEncodeError as exc:
            file = self.manager.root(root).quoted_path(path)
            raise ContentError(f"The text for {file} is no Unicode text at {exc.start}, so not UTF-8.") from None
        self.write_bytes(root, path, data, expected=expected)

    def edit_text(self, root: str, path: str, old: str, new: str, *, expected: FileState | None = None) -> None:
        """Replace `old`, which must be in the file exactly once, with `new`."""
        with CHANGES:
            text = self.read_text(root, path)
            if expected is not None and text.encode() != expected.content:
                raise self.manager.root(root).change_error(path)
            # Two occurrences may overlap, so that counting finds one of them.
            if not old or (at := text.find(old)) < 0 or at != text.rfind(old):
                file = self.manager.root(root).quoted_path(path)
                times = "more than once" if old and old in text else "not"
                raise ContentError(
                    f"{file} was not edited: the text to replace must be in it exactly once, with the same spaces and "
                    f"line ends, and {quote(old)} is {times} there."
                )
            self.write_text(root, path, text.replace(old, new), expected=expected)

    def delete(self, root: str, path: str, *, expected: FileState | None = None) -> None:
        """Remove a file."""
        self.manager.root(root).delete(path, expected)

    def move(
        self, root: str, source: str, destination_root: str, destination: str, *, expected: FileState | None = None
    ) -> None:
        """Move a file to a path where nothing is yet."""
        self.manager.root(root).move(source, self.manager.root(destination_root), destination, expected)

    def list_files(
        self, root: str, path: str = "", *, pattern: str = "*", limit: int = 1000, keep: Keep | None = None
    ) -> Listing[str]:
        """Return the files and folders in a folder, relative to the root; folders end with a slash.

        `pattern` applies to their path below the folder; `**` matches any number of folders. Files that cannot be read
        are left out: other suffixes, symlinks, devices, protected paths. `keep` decides about each of the others.
        """
        return Listing(self.manager.root(root).entries(path, limit + 1, pattern=pattern, keep=keep), limit)

    def find(self, root: str, pattern: str, *, limit: int = 1000, keep: Keep | None = None) -> Listing[str]:
        """Return the files with a path below the root that matches a pattern; `**` matches any number of folders.

        `keep` decides about each of them.
        """
        return Listing(self.manager.root(root).find(pattern, limit + 1, keep=keep), limit)

    def search(
        self,
        root: str,
        text: str,
        *,
        pattern: str = "**",
        limit: int = 200,
        keep: Keep | None = None,
        make_cleaner: MakeCleaner | None = None,
    ) -> Listing[FoundLine]:
        """Return the lines that contain `text`, in the text files that match a pattern.

        One file is in memory at a time, with at most the `max_file_bytes` of its root. `keep` decides which files are
        read. `make_cleaner` removes secrets from the files before they are searched.
        """
        if not text or "\n" in text:
            raise ContentError("Search for a part of one line: the text is empty or has a line end.")
        found: list[FoundLine] = []
        for path in self.manager.root(root).find(pattern, keep=keep):
            with suppress(LlmDoError):  # not text, too large, gone
                content = self.read_text(root, path)
                if text in content:
                    lines = _lines(path, clean(content, make_cleaner), text)
                    found.extend(islice(lines, limit + 1 - len(found)))
            if len(found) > limit:
                break
        return Listing(found, limit)


def _lines(path: str, content: str, text: str) -> Iterator[FoundLine]:
    number, at = 1, 0
    while (hit := content.find(text, at)) >= 0:
        number += content.count("\n", at, hit)
        begin, at = content.rfind("\n", at, hit) + 1, content.find("\n", hit)
        at = at if at >= 0 else len(content)
        line, column = content[begin:at], hit - begin
        start = max(0, column - _MAX_LINE // 2) if len(line) > _MAX_LINE else 0
        end = start + _MAX_LINE
        part = f"{'...' * (start > 0)}{line[start:end]}{'...' * (end < len(line))}"
        yield FoundLine(path=path, line=number, text=part.rstrip("\r"))
