"""An MCP server over HTTP on loopback that says and does whatever a test wants, right or wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from llm_do.definitions.toolsets import McpToolset


def tool(name: str, description: str = "A tool.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def event(message: dict[str, Any]) -> bytes:
    return f"event: message\ndata: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode()


@dataclass
class Raw:
    """An answer to the byte, in place of a result."""

    head: str
    body: bytes | AsyncIterator[bytes] = b""


@dataclass
class HostileServer:
    """What it has, what it does, and what it was asked."""

    tools: Any = field(default_factory=list)
    """The tools, or a function from a cursor to a result of `tools/list`."""
    answer: Callable[[str, dict[str, Any], Any], Any] = lambda name, arguments, request_id: text("done")
    instructions: str | None = None
    initialize: Any = None
    """An answer to the first request, in place of the right one."""
    session: str | None = None
    """The session that it says it has opened."""
    port: int = 0
    called: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    replies: list[dict[str, Any]] = field(default_factory=list)
    """Answers to requests that the server made."""

    def declared(self, name: str | None = None, prefix: str | None = None, **more: Any) -> McpToolset:
        server = {"url": f"http://127.0.0.1:{self.port}/mcp", **more}
        return McpToolset.model_validate({"mcp": server, "name": name, "prefix": prefix})

    def _result(self, message: dict[str, Any]) -> Any:
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            return self.initialize or {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
        if method == "tools/list":
            return self.tools(params.get("cursor")) if callable(self.tools) else {"tools": self.tools}
        if method == "tools/call":
            self.called.append(params["name"])
            return self.answer(params["name"], params.get("arguments") or {}, message["id"])
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                self.headers.append(head.decode())
                sizes = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0])) if sizes else b""
                answer = self._answer(lines[0].split()[0], json.loads(body) if body else {})
                if not isinstance(answer, Raw):
                    return
                length = f"content-length: {len(answer.body)}\r\n" if isinstance(answer.body, bytes) else ""
                ending = "" if length else "connection: close\r\n"
                writer.write(f"HTTP/1.1 {answer.head}\r\n{length}{ending}\r\n".encode())
                if isinstance(answer.body, bytes):
                    writer.write(answer.body)
                else:
                    async for part in answer.body:
                        writer.write(part)
                        await writer.drain()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, verb: str, message: dict[str, Any]) -> Raw | None:
        if verb != "POST":
            return Raw("405 Method Not Allowed")
        if "method" not in message:
            self.replies.append(message)
            return Raw("202 Accepted")
        self.methods.append(message["method"])
        if "id" not in message:
            return Raw("202 Accepted")
        result = self._result(message)
        if isinstance(result, Raw) or result is Closed:
            return None if result is Closed else result
        outcome = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
        said = json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()
        session = f"\r\nmcp-session-id: {self.session}" if self.session is not None else ""
        return Raw(f"200 OK\r\ncontent-type: application/json{session}", said)


Closed = object()
"""An answer that is none: the connection is closed."""


@asynccontextmanager
async def serving(server: HostileServer) -> AsyncIterator[HostileServer]:
    listening = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def events(*messages: dict[str, Any]) -> Raw:
    """A stream of messages, as an answer."""

    async def body() -> AsyncIterator[bytes]:
        for message in messages:
            yield event(message)

    return Raw("200 OK\r\ncontent-type: text/event-stream", body())
