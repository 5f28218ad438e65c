"""`CommandRunner`: a way to run commands. Another sandbox, such as a container, is one more class in `selection`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..excerpts import MakeCleaner
from ..roots.states import FileState
from .command_line import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder that commands see as /work/NAME."""

    name: str
    folder: Path
    writable: bool
    fd: int | None = None
    """The folder, if it is open already. Then it is this one, whatever its path means by now."""
    protected: Sequence[Path] = ()
    """Absolute paths that commands must not see, in whichever mount they would show up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The files that a command works with."""

    base: Path
    """The folder of the host in which a command without a sandbox starts."""
    mounts: Sequence[Mount] = ()
    """The folders that a sandbox has."""
    copies: Mapping[str, FileState] = field(default_factory=dict)
    """Files, by their path below /work, in whose place a sandbox has a private copy of that content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLimits:
    """Limits of one command: time and output for all of it, processes for each program of a pipeline, memory and files
    for each process.
    """

    seconds: float = 60
    memory_bytes: int = 1 << 30
    processes: int = 64
    output_characters: int = 50_000
    """Of standard output and of standard error, each."""
    file_bytes: int = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code and the output of a command."""

    exit_code: int
    """Of the last program. 124 when time was up, 127 when the program was not found, 128 + n for signal n."""
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool
    disabled: tuple[str, ...] = ()
    """The repositories that it left in folders that it could write, and what was done about each."""


class CommandRunner(Protocol):
    """A way to run commands."""

    def unavailable_reason(self) -> str | None:
        """Return why no command can be run here; `None` if commands can."""

    async def run(
        self, command: Command, workspace: Workspace, limits: ShellLimits, make_cleaner: MakeCleaner | None = None
    ) -> CommandResult:
        """Run a command. `make_cleaner` removes secrets from its output."""
