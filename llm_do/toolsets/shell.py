"""Commands, without a shell: a program and its arguments. Each asks, and no rule can allow it beforehand."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from contextlib import suppress
from typing import Annotated

from pydantic import Field
from pydantic_ai import RunContext, ToolFailed

from ..context import Context
from ..entries import entry

MAX_OUTPUT = 100_000
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that a command sees. Keys of providers are not among them."""


@entry(name="shell", rule="shell", requires_approval=True)
async def shell(ctx: RunContext[Context], command: str, timeout: Annotated[float, Field(gt=0)] = 60) -> str:
    """Run a program with arguments, and get what it prints. Pipes, redirections and variables are not understood.

    Args:
        command: Such as: wc -l notes.txt
        timeout: Seconds after which it is stopped.
    """
    try:
        arguments = shlex.split(command)
    except ValueError as exc:
        raise ToolFailed(f"{command!r} cannot be read as a command: {exc}.") from exc
    if not arguments:
        raise ToolFailed("The command is empty.")
    roots = [root for root in ctx.deps.sandbox_manager.roots.values() if root.config.mode == "rw"]
    if not roots:
        raise ToolFailed("A command runs in a folder that can be written, and this worker has none.")
    roots[0].folder.mkdir(parents=True, exist_ok=True)
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=roots[0].folder,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        raise ToolFailed(f"{arguments[0]!r} cannot be run: {getattr(exc, 'strerror', None) or exc}.") from exc
    assert process.stdout is not None
    printed = bytearray()
    reading = asyncio.create_task(_read(process.stdout, printed))
    late = ""
    try:
        async with asyncio.timeout(timeout):
            await process.wait()
    except TimeoutError:
        late = f"\n(stopped after {timeout:g} seconds)"
    finally:
        with suppress(ProcessLookupError):  # with everything that it started
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await reading
    code = f"\n(exit code {process.returncode})" if process.returncode and not late else ""
    return printed.decode(errors="replace") + code + late


async def _read(stream: asyncio.StreamReader, printed: bytearray) -> None:
    """Keep what a process prints, up to a limit. The rest is read and dropped, so that the process can go on."""
    while chunk := await stream.read(65536):
        room = MAX_OUTPUT - len(printed)
        if room > 0:
            printed += chunk[:room]
            if len(chunk) > room:
                printed += b"\n(there is more)"
