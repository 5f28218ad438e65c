"""Commands, without a shell: a program and its arguments. Each asks, and no rule can allow it beforehand."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from contextlib import suppress

from pydantic_ai import RunContext, ToolFailed

from ..context import Context
from ..entries import entry

MAX_OUTPUT = 100_000
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that a command sees. Keys of providers are not among them."""


@entry(name="shell", rule="shell", requires_approval=True)
async def shell(ctx: RunContext[Context], command: str, timeout: float = 60) -> str:
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
    except OSError as exc:
        raise ToolFailed(f"{arguments[0]!r} cannot be run: {exc.strerror}.") from exc
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout):
            output = await _read(process.stdout)
            code = await process.wait()
    except TimeoutError:
        raise ToolFailed(f"{arguments[0]!r} was stopped after {timeout:g} seconds.") from None
    finally:
        with suppress(ProcessLookupError):  # with everything that it started
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    text = output.decode(errors="replace")
    return text if code == 0 else f"{text}\n(exit code {code})"


async def _read(stream: asyncio.StreamReader) -> bytes:
    """What a process prints, up to a limit. The rest is read and dropped, so that the process can go on."""
    kept = bytearray()
    while chunk := await stream.read(65536):
        if len(kept) < MAX_OUTPUT:
            kept += chunk[: MAX_OUTPUT - len(kept)]
            if len(kept) == MAX_OUTPUT:
                kept += b"\n(there is more)"
    return bytes(kept)
