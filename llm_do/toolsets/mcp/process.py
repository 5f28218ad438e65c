"""The process of an MCP server that is started with a command: its messages are bounded, and its children end with it.

The MCP package reads messages of any length, and leaves the processes that a server has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from ...definitions.toolsets import McpServer
from ...machine.waiting import wait_shielded
from ...sandbox.commands.processes import close_all, kill_all, wait_exit

LARGEST_MESSAGE = 10_000_000
"""The most bytes of one answer, and of all pages of one list of tools."""
_CHUNK = 65536
_FLUSH_SECONDS = 0.5  # for a server to read what was sent
_GRACE_SECONDS = 1.5
"""The time to end after its standard input is closed. PydanticAI waits 3 seconds for the whole end."""
_TERMINATION_SECONDS = 0.5
_LAST_WORDS_SECONDS = 1.0

End = Callable[[str], None]
"""Takes the reason why a server has ended."""


@asynccontextmanager
async def run_server(declared: McpServer, cwd: Path, stderr: int, on_end: End) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server, yield streams of messages from it and to it, and stop it when the block ends."""
    server = _Server(declared, cwd, stderr)
    incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    answers, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.read, incoming, on_end)
            tasks.start_soon(server.write, outgoing, incoming, on_end)
            tasks.start_soon(server.watch, incoming, on_end)
            try:
                yield messages, answers
            finally:
                messages.close()
                answers.close()
                await wait_shielded(server.stop())
                tasks.cancel_scope.cancel()
    finally:
        server.close()
        for stream in (incoming, messages, answers, outgoing):
            stream.close()


class _Server:
    """A process in its own session, with the processes that it starts there."""

    def __init__(self, declared: McpServer, cwd: Path, stderr: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            (*(declared.command or ()), *declared.args),
            env={**get_default_environment(), **(declared.env or {})},
            cwd=str(cwd),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for stream in (self._stdin, self._stdout):
            os.set_blocking(stream.fileno(), False)
        self._handle = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        # A task of its own: the others can be cancelled before the process has ended.
        self._exit = asyncio.ensure_future(wait_exit(self._process.pid, self._handle))
        self._writing = anyio.CancelScope()
        self._done_writing = anyio.Event()
        self._done_reading = anyio.Event()

    async def read(self, incoming: Any, on_end: End) -> None:
        """Pass on the messages of the server, line by line, until it ends its output."""
        try:
            async with incoming:
                await self._read_lines(incoming, on_end)
                on_end("has ended by itself")
            # The rest is read too: a server that waits for its reader could not end.
            while await self._receive():
                pass
        finally:
            self._done_reading.set()

    async def _read_lines(self, incoming: Any, on_end: End) -> None:
        rest = bytearray()
        while chunk := await self._receive():
            searched = len(rest)
            rest += chunk
            while (end := rest.find(b"\n", searched)) >= 0:
                line, searched = bytes(rest[:end]), 0
                del rest[: end + 1]
                try:
                    if line.strip():
                        await incoming.send(_parse(line))
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return  # no one reads any more
            if len(rest) > LARGEST_MESSAGE:
                on_end(f"was stopped, because it sent a message of more than {LARGEST_MESSAGE} bytes")
                self._signal(signal.SIGKILL)
                return

    async def _receive(self) -> bytes:
        """Return a part of the output; an empty one at the end."""
        while True:
            await anyio.wait_readable(self._stdout)
            with suppress(BlockingIOError):
                return os.read(self._stdout.fileno(), _CHUNK)

    async def write(self, outgoing: Any, incoming: Any, on_end: End) -> None:
        """Send messages to the server, until there are no more or it closes its input."""
        is_closed = False
        with outgoing:  # senders wait until the reason for the end is known
            try:
                with self._writing:
                    await self._send_all(outgoing)
            except* OSError:
                is_closed = True
            finally:
                self._done_writing.set()
            if is_closed:  # its last request gets no answer, however long the process runs
                await self._end(incoming, on_end)

    async def _send_all(self, outgoing: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fail_when_closed)
            async for item in outgoing:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._send(memoryview(f"{text}\n".encode()))
            tasks.cancel_scope.cancel()

    async def _fail_when_closed(self) -> None:
        """Notice that the server closes its input, also if nothing more is sent: it may owe an answer."""
        await anyio.wait_readable(self._stdin)  # a pipe for writing is readable only in case of an error
        raise BrokenPipeError

    async def _send(self, data: memoryview) -> None:
        while data:
            await anyio.wait_writable(self._stdin)
            with suppress(BlockingIOError):
                data = data[os.write(self._stdin.fileno(), data) :]

    async def watch(self, incoming: Any, on_end: End) -> None:
        """Notice the end of the process, and end what it has started."""
        await asyncio.wait([self._exit])
        self._signal(signal.SIGKILL)
        # A process that left the session may hold the output open.
        await self._end(incoming, on_end)

    async def _end(self, incoming: Any, on_end: End) -> None:
        """End the connection after the last messages of the server are read."""
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await self._done_reading.wait()
        # A process that ends closes its input, too.
        on_end("has ended by itself" if self._exit.done() else "has closed its input")
        incoming.close()

    async def stop(self) -> None:
        """Close the input, and end the process and what it has started if it does not end by itself."""
        try:
            with anyio.move_on_after(_FLUSH_SECONDS):
                await self._done_writing.wait()
            self._writing.cancel()
            await self._done_writing.wait()
            self._stdin.close()
            for seconds, number in ((_GRACE_SECONDS, signal.SIGTERM), (_TERMINATION_SECONDS, signal.SIGKILL)):
                await asyncio.wait([self._exit], timeout=seconds)
                if not self._exit.done():
                    self._signal(number)
            await asyncio.wait([self._exit])
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The process is reaped last, so no other can have its number.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            if number == signal.SIGKILL:
                _end_session(self._process.pid)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._exit.cancel()
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()
        close_all(self._handle)


def _end_session(leader: int) -> None:
    """Kill the processes of a session, in whatever process group. Its leader is not reaped yet."""
    killed = {leader}
    # What they start meanwhile is found in the next round.
    while members := kill_all(lambda pid: pid not in killed and os.getsid(pid) == leader):
        killed.update(members)


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as exc:
        return exc
