"""The processes of a command: started, connected by pipes, read, and ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio

from ...errors import LlmDoError, PathFailed
from ...machine.waiting import wait_shielded
from ..excerpts import HeadAndTail, MakeCleaner
from .command_line import Command

Argv = tuple[str, ...]

TIMED_OUT, NOT_FOUND = 124, 127
_CHUNK = 65536
_DRAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLimits:
    """Limits of a command: time and output in all, processes for each program, memory and files for each process."""

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
    """That of the last program: 124 if time was up, 127 if it was not found, 128 + n for signal n."""
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool
    disabled: tuple[str, ...] = ()
    """The repositories that the command left, each with how it was disabled."""


class CommandRunner(Protocol):
    """Runs commands for the tool `shell`. Another sandbox, such as a container, is one more class."""

    async def run(
        self, command: Command, limits: ShellLimits, make_cleaner: MakeCleaner | None = None
    ) -> CommandResult:
        """Run a command. `make_cleaner` removes secrets from its output."""


class RunningProgram(Protocol):
    async def wait(self) -> int | None:
        """Wait for its end and return its exit code; `None` if it could not be started after all."""

    async def stop(self) -> None:
        """End it and everything that it started. It may be called twice."""

    def explain(self, stderr: str) -> str:
        """Return its standard error, with the reason if it did not start or was stopped."""


Start = Callable[[Argv, int, int, int], Awaitable[RunningProgram]]
"""Starts a program with these descriptors as its input, output and standard error."""


async def run_pipelines(
    command: Command, start: Start, limits: ShellLimits, make_cleaner: MakeCleaner | None = None
) -> CommandResult:
    """Run the pipelines of a command, one after the other, as long as they succeed."""
    out, err = (HeadAndTail(limits.output_characters, make_cleaner) for _ in range(2))
    code, programs = TIMED_OUT, list[RunningProgram]()
    with anyio.move_on_after(limits.seconds) as time:
        for pipeline in command.pipelines or ((("/bin/sh", "-c", "--", command.text),),):
            if code := await _pipeline(pipeline, start, out, err, programs):
                break
    stderr = err.text()
    for one in programs:
        stderr = one.explain(stderr)
    return CommandResult(
        exit_code=TIMED_OUT if time.cancelled_caught else code,
        stdout=out.text(),
        stderr=stderr,
        truncated=bool(out.omitted or err.omitted),
        timed_out=time.cancelled_caught,
    )


async def _pipeline(
    argvs: Sequence[Argv], start: Start, out: HeadAndTail, err: HeadAndTail, programs: list[RunningProgram]
) -> int:
    first = len(programs)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    readers = [asyncio.ensure_future(_drain(out_read, out)), asyncio.ensure_future(_drain(err_read, err))]
    try:
        try:
            await wait_shielded(_start_all(argvs, start, out_write, err_write, programs))
        finally:
            close_all(out_write, err_write)
        code: int | None = None
        for one in programs[first:]:
            code = await one.wait()
            # What a program leaves behind would keep the pipe open, and the next program would wait.
            await wait_shielded(one.stop())
        return NOT_FOUND if code is None else code
    finally:
        try:
            await wait_shielded(_stop_all(programs[first:], readers))
        finally:
            close_all(out_read, err_read)


async def _start_all(argvs: Sequence[Argv], start: Start, out: int, err: int, programs: list[RunningProgram]) -> None:
    stdin = os.open(os.devnull, os.O_RDONLY)
    argv = argvs[0]
    try:
        for argv in argvs[:-1]:
            below, stdout = os.pipe()
            try:
                programs.append(await start(argv, stdin, stdout, err))
            finally:
                close_all(stdout, stdin)
                stdin = below
        argv = argvs[-1]
        programs.append(await start(argv, stdin, out, err))
    except LlmDoError:
        raise
    except OSError as exc:
        raise PathFailed(f"{argv[0]!r} cannot be started: {exc.strerror}.") from None
    finally:
        os.close(stdin)


async def _stop_all(running: Sequence[RunningProgram], readers: Sequence[asyncio.Future[None]]) -> None:
    try:
        await asyncio.gather(*(one.stop() for one in running))
    finally:
        # All writers are gone, so the streams end. A process that escaped is not waited for.
        await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


async def _drain(fd: int, captured: HeadAndTail) -> None:
    """Read a stream to its end, so that no writer waits. A program that writes too much is slowed down."""
    while True:
        await anyio.wait_readable(fd)
        if not (chunk := os.read(fd, _CHUNK)):
            return
        captured.add(chunk)
        if captured.omitted:
            await anyio.sleep(0.002)


async def wait_exit(pid: int, handle: int | None) -> None:
    """Wait until a child has ended. It is not reaped, so its number stays taken."""
    if handle is not None:
        await anyio.wait_readable(handle)
        return
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:  # noqa: ASYNC110, ASYNC222
        await anyio.sleep(0.02)


def kill_all(belongs: Callable[[int], bool]) -> set[int]:
    """Kill the processes for which `belongs` is true, and return their numbers; without /proc, none."""
    killed = set[int]()
    with suppress(OSError):
        for pid in (int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
            with suppress(OSError):  # it ended meanwhile, or belongs to another user
                if belongs(pid):
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
    return killed


def exit_code(returncode: int) -> int:
    """Convert a return code of `subprocess` to the exit code that a shell has."""
    return returncode if returncode >= 0 else 128 - returncode


def close_all(*fds: int | None) -> None:
    for fd in fds:
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
