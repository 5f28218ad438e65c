"""The tool `shell`: commands are parsed, judged part by part, and run without a shell in a sandbox with the roots."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_ai import RunContext, Tool

from ..core.context import Context
from ..core.frame import CallFrame
from ..core.tool import ToolEntry
from ..errors import CommandError, PathChanged, PathDenied, PathFailed, PathMissing
from ..policy.plan import Plan
from ..policy.rules import Case, Grant, Places, Ruling, as_list
from ..sandbox import Pins, SandboxManager
from ..sandbox.commands.bwrap import BwrapRunner, find_sandbox_problem
from ..sandbox.commands.command_line import WRAPPERS, Command, parse
from ..sandbox.commands.mounts import Mount
from ..sandbox.commands.processes import CommandResult, CommandRunner, ShellLimits
from ..sandbox.commands.unsandboxed import UnsandboxedRunner
from .approved_scripts import add_programs, check_programs, pin_programs

_WORD = re.compile(r"[A-Za-z][\w.-]*")


async def _shell(ctx: RunContext[Context], command: str, timeout: Annotated[float, Field(gt=0, le=600)] = 60) -> str:
    """Run a program with arguments, and return its output.

    Join programs with | and &&. There is no shell: do not use variables, redirections or wildcards. Write paths with
    the name of their root, for example ROOT/folder/file.txt. There is no network in the sandbox.

    Args:
        command: The command, for example: sort -u ROOT/names.txt | wc -l
        timeout: Seconds after which the command is stopped.
    """
    frame = ctx.deps.frame
    plan = None if frame.judgement is None else frame.judgement.plan
    manager, unsandboxed = frame.files.manager, _is_unsandboxed(frame)
    # What was judged is what runs: the line is not parsed a second time.
    parsed = plan.command if isinstance(plan, _ShellPlan) and plan.command.text == command else parse(command)
    limits = ShellLimits(seconds=timeout, file_bytes=_file_bytes(manager))
    programs = frame.pins.files if frame.pins is not None else {}
    make_cleaner = ctx.deps.runtime.recorder.secrets.make_cleaner()
    if frame.pins is not None:
        check_programs(frame.pins, parsed, manager, unsandboxed=unsandboxed)
    with _mounts(manager, frame) as (mounts, missing):
        note = f"\n(not available: {'; '.join(missing)})" if missing else ""
        runner: CommandRunner = UnsandboxedRunner(manager.base) if unsandboxed else BwrapRunner(mounts, programs)
        result = await runner.run(parsed, limits, make_cleaner)
        return _result_text(result, note, frame, next((mount.name for mount in mounts if mount.writable), None))


def _is_unsandboxed(frame: CallFrame) -> bool:
    return frame.judgement is not None and frame.judgement.ruling.unsandboxed


def _file_bytes(manager: SandboxManager) -> int:
    """Return the smallest size limit of the writable roots: a program may write to any of them."""
    return min(
        (root.config.max_file_bytes for root in manager.roots.values() if root.config.mode == "rw"), default=10**8
    )


@contextmanager
def _mounts(manager: SandboxManager, frame: CallFrame) -> Iterator[tuple[list[Mount], list[str]]]:
    """Open the roots as a command sees them. The second list names the others, each with the reason."""
    mounts, missing = list[Mount](), list[str]()
    if _is_unsandboxed(frame):
        yield mounts, missing
        return
    unreadable, unwritable = _denied_patterns("sandbox.read", frame), _denied_patterns("sandbox.write", frame)
    masked = [place for place in map(_place_of, unreadable) if place is not None]
    with ExitStack() as stack:
        for name, root in manager.roots.items():
            if root.config.suffixes is not None:
                missing.append(f"{name}, because programs cannot be restricted to its suffixes")
                continue
            if any(_place_of(pattern) is None and _touches(pattern, root.folder) for pattern in unreadable):
                missing.append(f"{name}, because a rule denies reading parts of it")
                continue
            try:
                folder = stack.enter_context(root.open(""))
            except PathMissing:
                missing.append(f"{name}, because its folder does not exist")
                continue
            writable = root.config.mode == "rw" and not any(_touches(pattern, root.folder) for pattern in unwritable)
            below = [place for place in masked if place.exists()]
            protected = [*manager.protected, *below]
            if writable and len(below) < len(masked):  # a missing file must not be created either
                writable = not any(place.is_relative_to(root.folder) for place in masked if place not in below)
            mounts.append(Mount(name=name, folder=root.folder, writable=writable, fd=folder.fd, protected=protected))
        yield mounts, missing


def _denied_patterns(name: str, frame: CallFrame) -> list[str]:
    """Return the absolute patterns of paths that rules on files deny."""
    return [
        book.places.anchor(path)
        for book in frame.caller.inherited.rules
        for rule in book.rules.get(name, ())
        if rule.disposition == "deny"
        for path in as_list(rule.when.get("path", "/**"))
    ]


def _place_of(pattern: str) -> Path | None:
    """Return the folder or file that a pattern names as a whole; `None` for other patterns."""
    plain = pattern.removesuffix("/**")
    return None if "*" in plain or not plain.strip("/") else Path(plain)


def _touches(pattern: str, folder: Path) -> bool:
    """Return whether a pattern may match something in a folder."""
    fixed = Path(pattern.partition("*")[0].rpartition("/")[0] or "/") if "*" in pattern else Path(pattern)
    return fixed.is_relative_to(folder) or folder.is_relative_to(fixed)


def _result_text(result: CommandResult, note: str, frame: CallFrame, writable: str | None) -> str:
    if result.timed_out or result.exit_code:
        frame.failure = "stopped: timed out" if result.timed_out else f"exit code {result.exit_code}"
    keep = f", or into `tee {writable}/output.txt` and read that file in parts" if writable is not None else ""
    narrow = f"\n[To see the omitted part, pipe the output into grep, head or tail{keep}.]" if result.truncated else ""
    late = "\n(stopped: timed out)" if result.timed_out else ""
    code = f"\n(exit code {result.exit_code}){note}" if result.exit_code and not late else ""
    disabled = "".join(f"\n({each})" for each in result.disabled)
    return f"{result.stdout}{result.stderr}{late}{code}{disabled}{narrow}" or "(no output)"


@dataclass(frozen=True, kw_only=True)
class _ShellPlan(Plan):
    """A command that was parsed once, so that what rules judge, a person sees and the sandbox runs is the same."""

    command: Command
    arguments: dict[str, Any]
    manager: SandboxManager

    def pins(self, ruling: Ruling) -> Pins:
        return pin_programs(self.command, self.manager, unsandboxed=ruling.unsandboxed)

    def view(self, ruling: Ruling, pins: Pins | None) -> dict[str, Any]:
        """Return the command, where it runs, and the files that it runs, or raise `PathDenied` if it cannot run."""
        return add_programs({**self.arguments, **self._runs(ruling)}, pins)

    def _runs(self, ruling: Ruling) -> dict[str, Any]:
        if ruling.unsandboxed:
            return {"runs": "OUTSIDE of the sandbox, with all that you may do"}
        if problem := find_sandbox_problem():
            raise PathDenied(
                f"{problem} Without a sandbox no command runs, unless a rule allows that very command unsandboxed."
            )
        if self.command.needs_shell is not None:
            return {"runs": f"in a shell, because of {self.command.needs_shell}, inside of the sandbox"}
        parts = [shlex.join(words) for words in _programs(self.command)]
        return {"runs": parts} if len(parts) > 1 else {}

    def offers(self, ruling: Ruling) -> Sequence[Grant]:
        """Return the program and its first word, such as `git log`, with any other words after it."""
        programs = _programs(self.command)
        if len(programs) != 1 or len(programs[0]) < 2 or ruling.unsandboxed:
            return ()
        program, first, *_ = programs[0]
        if program in WRAPPERS or not _WORD.fullmatch(program) or not _WORD.fullmatch(first):
            return ()
        return [Grant("shell", {"command": f"{program} {first} **"}, Places())]


def _plan(arguments: dict[str, Any], frame: CallFrame) -> _ShellPlan:
    command, timeout = parse(arguments["command"]), arguments.get("timeout", ShellLimits().seconds)
    if command.needs_shell is not None:
        cases = [Case({"command": command.text, "timeout": timeout}, command.text, command.needs_shell)]
    else:
        cases = [Case({"command": words, "timeout": timeout}, shlex.join(words)) for words in _programs(command)]
    return _ShellPlan(cases=cases, command=command, arguments=arguments, manager=frame.files.manager)


def _programs(command: Command) -> list[tuple[str, ...]]:
    return [words for pipeline in command.pipelines for words in pipeline]


shell = ToolEntry[str](
    Tool(_shell, name="shell"),
    rule="shell",
    effects=["execute"],
    plan=_plan,
    errors_for_model=(CommandError, PathChanged, PathDenied, PathFailed, PathMissing),
)
