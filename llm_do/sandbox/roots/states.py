"""The state of a file at one moment, to detect later changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class FileState:
    """A file at one moment. Two states are equal if their content is."""

    digest: str | None
    """The SHA-256 of the content, or inode and time where that cannot be read; `None` if there was no file."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """The content of a regular file that is not too large; `None` for others."""
    mode: int = field(default=0o644, compare=False)

    @classmethod
    def of_content(cls, content: bytes, mode: int) -> FileState:
        """Return the state of a file with this content."""
        return cls(sha256(content).hexdigest(), content, mode & 0o777)

    @classmethod
    def of_status(cls, status: os.stat_result) -> FileState:
        """Return the state of a file that is too large to read, or is not a regular file."""
        return cls(f"inode {status.st_dev}:{status.st_ino}, {status.st_size} bytes, {status.st_mtime_ns}")

    def text(self) -> str | None:
        """Return the content as text, if it is UTF-8."""
        try:
            return None if self.content is None else self.content.decode()
        except UnicodeDecodeError:
            return None


ABSENT = FileState(None)
"""The state of no file."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The files that a person approves with a call, as they were when the person was asked."""

    files: Mapping[str, FileState]
    """Their states, by the path in the call."""
    exact: bool = False
    """True if no grant outlasts a change of these files: they are run, or handed on."""

    @property
    def digests(self) -> dict[str, str | None]:
        """The digests of the files, to compare."""
        return {path: state.digest for path, state in self.files.items()}

    def before(self) -> dict[str, str | None]:
        """Return the texts of the files that are text; `None` for files that did not exist."""
        texts = {path: state.text() for path, state in self.files.items()}
        return {path: text for path, text in texts.items() if text is not None or self.files[path] == ABSENT}

    def updated(self, newer: Pins) -> Pins:
        """Return `newer`, with the states of this one for the files that both have."""
        return replace(newer, files={path: self.files.get(path, state) for path, state in newer.files.items()})
