"""The client of an MCP server that is not trusted: what it sends is bounded, and its schemas are not run.

The MCP package does the rest: it follows no redirect to another host, gives a process only the variables that it needs
to start and those of `env`, and refuses requests of the server for a person, and for a model or folders unless the
worker file allows them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
import httpx2
from fastmcp.client.progress import ProgressHandler
from fastmcp.client.transports import ClientTransport, StreamableHttpTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import ClientSession, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
    PaginatedRequestParams,
    RequestId,
)
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models import Model

from ...core.session_tools import MOST_TOOLS
from ...core.tasks import LEAVING_SECONDS
from ...definitions.toolsets import McpServer
from ...errors import ToolsetError
from .log import ServerLog
from .process import LARGEST_MESSAGE, run_server

# Without a handler, Python prints warnings, with what a server wrote in them.
logging.getLogger("mcp").addHandler(logging.NullHandler())

MOST_REQUESTS = 100  # of a server, that wait for an answer
_FEWER = "Have the server list fewer, or make an MCPToolset in Python, with bounds of your own, and filter its tools."

# PydanticAI warns about servers with the newest protocol. They ask in the answer to a call, which works.
warnings.filterwarnings("ignore", message=".*will never be called: .* negotiated a modern MCP session", append=True)


@dataclass
class Connection:
    lost: str = ""
    """How the server was lost, such as "has ended by itself". Empty as long as it is connected."""
    status: int = 0
    """The HTTP status of the last answer, if it was an error."""
    requests: set[RequestId] = field(default_factory=set)
    """The requests of the server without an answer. Each is a task, so their number is bounded."""

    def end(self, what: str) -> None:
        """Note how the connection ended. The first reason counts."""
        self.lost = self.lost or what

    def note(self, exc: BaseException) -> None:
        """Note an error of a request, which may be the end of the connection."""
        cause = exc.__cause__ if isinstance(exc, ModelRetry) else exc
        if isinstance(cause, MCPError):
            # Other faults of a stream have the same code.
            gone = cause.error.code == CONNECTION_CLOSED and str(cause) == "Connection closed"
        else:
            gone = cause is exc and isinstance(exc, httpx2.TransportError | OSError)
            gone = gone and not isinstance(exc, TimeoutError)  # it may only be slow
        if gone:
            self.end("has ended by itself")

    def take(self, message: Any) -> bool:
        """Note a message of the server, and return whether it is accepted."""
        if isinstance(message, JSONRPCRequest):
            if message.id in self.requests or len(self.requests) >= MOST_REQUESTS:
                return False
            self.requests.add(message.id)
        elif _is_cancellation(message):
            self.requests.discard((message.params or {}).get("requestId", ""))
        return True

    def answer(self, message: Any) -> None:
        """Note a message to the server, which may answer one of its requests."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self.requests.discard(message.id)


def _is_cancellation(message: Any) -> bool:
    return isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled"


class Client(MCPToolset[Any]):
    """The tools of a server, which is connected from `open` to `close`.

    PydanticAI connects it as long as any request has entered it. A request that is cancelled again while it leaves
    never counts as gone, and the server is never stopped.
    """

    async def open(self) -> None:
        await super().__aenter__()

    async def close(self) -> None:
        await super().__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: Any) -> bool | None:
        return None


def connect(
    server: McpServer,
    base: Path,
    *,
    log: ServerLog,
    connection: Connection,
    roots: tuple[Path, ...],
    on_progress: ProgressHandler | None,
    sampling_model: Model | None,
) -> Client:
    """Return the tools of a server. `open` connects it."""
    transport: ClientTransport
    if server.command is not None:
        transport = _Stdio(connection, server, base / (server.cwd or "."), log)
    else:
        transport = _Http(connection, server)
    return Client(
        transport,
        init_timeout=server.start_timeout,
        log_handler=_ignore,
        roots=[root.as_uri() for root in roots] or None,
        progress_handler=on_progress or _ignore,
        sampling_model=sampling_model,
    )


async def _ignore(*args: Any, **kwargs: Any) -> None:
    """Ignore progress, or a log message, which could look like a question of ours on the terminal."""


class _Session(ClientSession):
    """A session that refuses a list of tools that is too long, and drops the schemas of their results."""

    _tools = 0
    _bytes = 0

    def __init__(self, connection: Connection, read_stream: Any, write_stream: Any, **options: Any) -> None:
        connection.requests.clear()
        super().__init__(_Incoming(read_stream, connection), _Outgoing(write_stream, connection), **options)

    async def list_tools(self, *, params: PaginatedRequestParams | None = None) -> ListToolsResult:
        """Return one page of the list. All pages are kept in memory, so their sizes are added up."""
        if params is None or params.cursor is None:
            self._tools = self._bytes = 0
        return await super().list_tools(params=params)

    async def send_request(self, *args: Any, **kwargs: Any) -> Any:
        result = await super().send_request(*args, **kwargs)
        if isinstance(result, ListToolsResult):
            self._count(result)
            for tool in result.tools:
                tool.output_schema = None  # to compare a result with its patterns could take forever
        return result

    def _count(self, page: ListToolsResult) -> None:
        self._tools += len(page.tools)
        self._bytes += len(page.model_dump_json())  # with the cursor, which is kept as well
        if self._tools > MOST_TOOLS:
            raise ToolsetError(f"it has more than {MOST_TOOLS} tools. {_FEWER}")
        if self._bytes > LARGEST_MESSAGE:
            raise ToolsetError(f"the list has more than {LARGEST_MESSAGE} bytes. {_FEWER}")


class _Stream:
    def __init__(self, stream: Any, connection: Connection) -> None:
        self._stream = stream
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stream.__aexit__(*exc)


class _Incoming(_Stream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await self._stream.__anext__()
        if isinstance(item, SessionMessage) and not self._connection.take(item.message):
            self._connection.end(f"was stopped, because it made more than {MOST_REQUESTS} requests at once")
            raise StopAsyncIteration
        return item


class _Outgoing(_Stream):
    async def send(self, item: Any) -> None:
        # A cancelled call would wait 5 seconds for a server that reads nothing.
        with anyio.move_on_after(LEAVING_SECONDS if _is_cancellation(item.message) else None):
            await self._stream.send(item)
        self._connection.answer(item.message)


class _Http(StreamableHttpTransport):
    def __init__(self, connection: Connection, server: McpServer) -> None:
        factory: Any = partial(_http_client, connection)
        super().__init__(
            str(server.url), server.headers, httpx_client_factory=factory, max_sse_event_size=LARGEST_MESSAGE
        )
        self._session_class: Any = partial(_Session, connection)

    def connect_session(self, *, transport_options: TransportOptions | None = None, **options: Any) -> Any:
        bounded = replace(transport_options or TransportOptions(), session_class=self._session_class)
        return super().connect_session(transport_options=bounded, **options)


@dataclass(eq=False)
class _Stdio(ClientTransport):
    connection: Connection
    server: McpServer
    cwd: Path
    log: ServerLog

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **options: Any
    ) -> AsyncIterator[ClientSession]:
        with self.log.stream() as stderr:
            async with (
                run_server(self.server, self.cwd, stderr, self.connection.end) as (messages, answers),
                _Session(self.connection, messages, answers, **options) as session,
            ):
                yield session


def _http_client(
    connection: Connection, headers: dict[str, str], timeout: httpx2.Timeout | None = None, **options: Any
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},
        timeout=timeout or httpx2.Timeout(30.0, read=300.0),
        transport=_BoundedTransport(connection),
    )


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Ends an answer that is too long. A stream of events may go on: each event is bounded."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if request.method == "POST":
            self._connection.status = response.status_code if response.status_code >= 400 else 0
        if response.status_code == 404 and request.method == "POST" and "mcp-session-id" in request.headers:
            self._connection.end("does not know the conversation any more")  # as the specification says
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
