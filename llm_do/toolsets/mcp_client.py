"""The client of an MCP server that is not trusted: what it sends is bounded, and its schemas are not run.

The rest is the MCP package's: it follows no redirect to another host, and answers no request of the server for a
model, a person or folders.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import ClientSession
from mcp_types import ListToolsResult, PaginatedRequestParams
from pydantic_ai.mcp import MCPToolset

from ..definition import McpServer
from ..errors import ToolsetError
from ..foreign import MOST_TOOLS

# Without a handler, Python prints warnings, with what a server wrote in them.
logging.getLogger("mcp").addHandler(logging.NullHandler())

LARGEST_MESSAGE = 10_000_000
"""The most bytes of one answer, and of all pages of one list of tools."""
_FEWER = "Have the server list fewer, or make an MCPToolset in Python, with bounds of your own, and filter its tools."


def connect(server: McpServer, base: Path, seconds: float) -> MCPToolset[Any]:
    """Return the tools of a server, which is connected when they are entered."""
    transport: Any
    if server.command is not None:
        command, *args = (*server.command, *server.args)
        cwd = str(base / (server.cwd or "."))
        # By default the process is kept for other connections, after the last one has left.
        transport = _Stdio(command, args, env=server.env, cwd=cwd, keep_alive=False)
    else:
        transport = _Http(
            str(server.url),
            headers=server.headers,
            httpx_client_factory=_http_client,
            max_sse_event_size=LARGEST_MESSAGE,
        )
    return MCPToolset(transport, init_timeout=seconds, log_handler=_ignore_log)


async def _ignore_log(message: Any) -> None:
    """Ignore a log message of the server: on the terminal, it could pose as a question of ours."""


class _Session(ClientSession):
    """A session that ends a list of tools that is too long, and ignores the schemas of their results.

    A result is not compared with such a schema, whose patterns may never end.
    """

    _tools = 0
    _bytes = 0

    async def list_tools(self, *, params: PaginatedRequestParams | None = None) -> ListToolsResult:
        """Return one page of the list. Pages are kept until the last one is there, so they count together."""
        if params is None or params.cursor is None:
            self._tools = self._bytes = 0
        return await super().list_tools(params=params)

    async def send_request(self, *args: Any, **kwargs: Any) -> Any:
        result = await super().send_request(*args, **kwargs)
        if isinstance(result, ListToolsResult):
            self._count(result)
            for tool in result.tools:
                tool.output_schema = None
        return result

    def _count(self, page: ListToolsResult) -> None:
        self._tools += len(page.tools)
        self._bytes += len(page.model_dump_json())  # with the cursor, which is kept as well
        if self._tools > MOST_TOOLS:
            raise ToolsetError(f"it has more than {MOST_TOOLS} tools. {_FEWER}")
        if self._bytes > LARGEST_MESSAGE:
            raise ToolsetError(f"the list has more than {LARGEST_MESSAGE} bytes. {_FEWER}")


def _bounded(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a connection, with our own session."""
    transport_options = options.get("transport_options") or TransportOptions()
    return {**options, "transport_options": replace(transport_options, session_class=_Session)}


class _Http(StreamableHttpTransport):
    def connect_session(self, **options: Any) -> Any:
        return super().connect_session(**_bounded(options))


class _Stdio(StdioTransport):
    def connect_session(self, **options: Any) -> Any:
        return super().connect_session(**_bounded(options))


def _http_client(
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    **options: Any,
) -> httpx2.AsyncClient:
    plain = {**(headers or {}), "accept-encoding": "identity"}
    return httpx2.AsyncClient(
        headers=plain,
        auth=auth,
        timeout=timeout or httpx2.Timeout(30.0, read=300.0),
        transport=_BoundedTransport(),
    )


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Ends an answer that is too long. One that is a stream of events is bounded for each event."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        response.headers.pop("content-encoding", None)  # compressed, a small answer could become a large one
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > LARGEST_MESSAGE:
                raise httpx2.StreamError(f"the answer is larger than {LARGEST_MESSAGE} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
