"""Commands without a sandbox, if a rule allows it: a program may do what its user may.

It has its own session, and a mark in its environment, which its children inherit. These find it and everything that it
started, also outside of the session. A process escapes if it leaves the session and removes the mark.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from ...machine import pool
from ..excerpts import MakeCleaner
from .command_line import Command
from .processes import Argv, CommandResult, ShellLimits, close_all, exit_code, kill_all, run_pipelines, wait_exit

_INHERITED = ("PATH", "HOME", "LANG")
_MARK = "LLM_DO_COMMAND"
_GRACE_SECONDS = 0.5
_SEARCH_SECONDS = 3.0
_EMPTY_LOOKS = 3
# A shell sets its own limits and becomes the program, so no Python code runs between fork and exec.
_LIMIT_SCRIPT = 'for limit in $1; do ulimit "${limit%=*}" "${limit#*=}" 2>/dev/null; done; shift; exec "$@"'


@dataclass(frozen=True, slots=True)
class UnsandboxedRunner:
    """Runs commands in a folder of the host. The number of their processes is not limited."""

    folder: Path

    async def run(
        self, command: Command, limits: ShellLimits, make_cleaner: MakeCleaner | None = None
    ) -> CommandResult:
        async def start(argv: Argv, *streams: int) -> UnsandboxedProgram:
            return UnsandboxedProgram(argv, self.folder, streams, limits)

        return await run_pipelines(command, start, limits, make_cleaner)


class UnsandboxedProgram:
    def __init__(self, argv: Argv, cwd: Path, streams: tuple[int, ...], limits: ShellLimits) -> None:
        self._argv = argv
        self._mark = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._handle: int | None = None
        self._stopped = False
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        program = str(cwd / argv[0]) if "/" in argv[0] else argv[0]
        if argv[0].startswith("-") or shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            return
        # POSIX and all shells count files in blocks of 512 bytes, and memory in blocks of 1024.
        ulimits = f"-c=0 -f={limits.file_bytes // 512} -v={limits.memory_bytes // 1024} -n=1024"
        self._process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _LIMIT_SCRIPT, "sh", ulimits, *argv],
            cwd=cwd,
            env={**environment, _MARK: self._mark},
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
        )
        if hasattr(os, "pidfd_open"):
            self._handle = os.pidfd_open(self._process.pid)

    async def wait(self) -> int | None:
        if self._process is None:
            return None
        await wait_exit(self._process.pid, self._handle)
        # It is not reaped yet: its number must stay taken until its group is gone.
        status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        assert status is not None
        return status.si_status if status.si_code == os.CLD_EXITED else exit_code(-status.si_status)

    async def stop(self) -> None:
        if self._process is None or self._stopped:
            return
        self._stopped = True
        try:
            self._signal(signal.SIGTERM)
            with anyio.move_on_after(_GRACE_SECONDS):
                await wait_exit(self._process.pid, self._handle)
            self._signal(signal.SIGKILL)
            await wait_exit(self._process.pid, self._handle)
            with anyio.move_on_after(_SEARCH_SECONDS):
                await self._end_marked()
            self._process.wait()
        finally:
            close_all(self._handle)

    def explain(self, stderr: str) -> str:
        return f"{stderr}{self._argv[0]}: not found.\n" if self._process is None else stderr

    async def _end_marked(self) -> None:
        # One look may miss a process that starts another and ends, or is just becoming a program.
        looks = _EMPTY_LOOKS
        while looks:
            killed = await pool.run(kill_all, self._is_marked)
            looks = _EMPTY_LOOKS if killed else looks - 1
            await anyio.sleep(0.005)

    def _is_marked(self, pid: int) -> bool:
        return f"{_MARK}={self._mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
