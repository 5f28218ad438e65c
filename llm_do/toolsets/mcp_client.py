"""The client of an MCP server that is not trusted: what it sends is bounded, and its schemas are not run.

The rest is the MCP package's: it follows no redirect to another host, gives a process no variables but those that
starting one needs and those of `env`, and answers no request of the server for a person, nor for a model or folders
unless the file says so.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from fastmcp.client.progress import ProgressHandler
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import ClientSession, MCPError
from mcp_types import CONNECTION_CLOSED, ListToolsResult, PaginatedRequestParams
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models import Model

from ..definition import McpServer
from ..errors import ToolsetError
from ..foreign import MOST_TOOLS
from .mcp_log import ServerLog

# Without a handler, Python prints warnings, with what a server wrote in them.
logging.getLogger("mcp").addHandler(logging.NullHandler())

LARGEST_MESSAGE = 10_000_000
"""The most bytes of one answer, and of all pages of one list of tools."""
_FEWER = "Have the server list fewer, or make an MCPToolset in Python, with bounds of your own, and filter its tools."


# PydanticAI says so of sessions of the newest protocol. Those ask in the answer to a call, and are served all the same.
warnings.filterwarnings("ignore", message=".*will never be called: .* negotiated a modern MCP session", append=True)


@dataclass
class Connection:
    """What a connection turned out to be."""

    lost: bool = False
    """Whether the server ended it: its process is gone, or it does not answer any more."""

    def note(self, exc: BaseException) -> None:
        """Take note of an error of a call, which may be the end of the connection."""
        if isinstance(exc, ModelRetry):
            cause = exc.__cause__
            closed = isinstance(cause, MCPError) and cause.error.code == CONNECTION_CLOSED
            self.lost |= closed and str(cause) == "Connection closed"  # other faults of a stream have the same code
        else:
            self.lost |= isinstance(exc, httpx2.TransportError | OSError)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What the client of one server does beside calling its tools."""

    log: ServerLog
    connection: Connection
    roots: tuple[Path, ...] = ()
    on_progress: ProgressHandler | None = None
    sampling_model: Model | None = None


def connect(server: McpServer, base: Path, options: ClientOptions) -> MCPToolset[Any]:
    """Return the tools of a server, which is connected when they are entered."""
    transport: Any
    if server.command is not None:
        command, *args = (*server.command, *server.args)
        cwd = str(base / (server.cwd or "."))
        # By default the process is kept for other connections, after the last one has left.
        transport = _Stdio(command, args, env=server.env, cwd=cwd, keep_alive=False)
        transport.log, transport.connection = options.log, options.connection
    else:
        transport = _Http(
            str(server.url),
            headers=server.headers,
            httpx_client_factory=_http_client,
            max_sse_event_size=LARGEST_MESSAGE,
        )
    return MCPToolset(
        transport,
        init_timeout=server.start_timeout,
        log_handler=_ignore_log,
        roots=[root.as_uri() for root in options.roots] or None,
        progress_handler=options.on_progress or _ignore_progress,
        sampling_model=options.sampling_model,
    )


async def _ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    """Ignore how far a call is."""


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
    log: ServerLog
    connection: Connection

    @asynccontextmanager
    async def connect_session(self, **options: Any) -> AsyncIterator[ClientSession]:
        bounded = _bounded(options)
        session_class = partial(_WatchedSession, self.connection)
        bounded["transport_options"] = replace(bounded["transport_options"], session_class=session_class)
        with self.log.stream() as self.log_file:
            async with super().connect_session(**bounded) as session:
                yield session


class _Watched:
    """The messages of a server. Their end is the end of the server."""

    def __init__(self, messages: Any, connection: Connection) -> None:
        self._messages = messages
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)

    async def __aenter__(self) -> _Watched:
        await self._messages.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._messages.__aexit__(*exc)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._messages.__anext__()
        except StopAsyncIteration:
            self._connection.lost = True
            raise


class _WatchedSession(_Session):
    def __init__(self, connection: Connection, read_stream: Any, write_stream: Any, **options: Any) -> None:
        super().__init__(_Watched(read_stream, connection), write_stream, **options)


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
