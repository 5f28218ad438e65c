"""Tools of MCP servers. They require approval unless a rule allows them: the runtime does not know what they do."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
from pydantic_ai import RunContext, ToolFailed
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, ToolsetTool, WrapperToolset

from ...core.context import Context, dispatch
from ...core.events import CallProgress
from ...core.frame import RequestFrame
from ...core.recorder import tags
from ...core.session_models import StandInModel
from ...definitions.toolsets import McpServer, McpToolset
from ...errors import PathDenied, ToolsetError
from ...machine.installation import install_extra
from ...privacy.secrets import Values
from .log import ServerLog, log_path
from .sampling import SamplingEntry

STILL_STARTING_SECONDS = 5.0  # then a notice says so
PROGRESS_SECONDS = 0.1
"""The least time between two progress events of one server, which may report any number."""
LONGEST_PROGRESS = 200

_LOST = (
    "The server of this tool has ended: {label}. Its state is lost, and the call may or may not have been carried out. "
    "Do not call its tools again in this turn. Tell the user that the server ended."
)
_RESTARTED = "{label} was restarted. Its state from earlier calls is lost. Repeat the calls whose effects you need."


@dataclass
class _OpenCall:
    ctx: Context
    samples: dict[anyio.CancelScope, anyio.Event] = field(default_factory=dict)
    """The server's requests to the model. The events are set when they have ended."""


@dataclass
class McpServerToolset(WrapperToolset[Context]):
    """The tools of an MCP server, all of which require approval.

    Entering it begins to connect, at the same time as other servers, and `started` waits for the end of that. A server
    that ends by itself is started once more, at the next turn.
    """

    declared: McpToolset
    ctx: Context
    """The worker call that the toolset belongs to."""
    base: Path
    """The folder of the project."""
    roots: tuple[Path, ...]
    """The folders that are announced to the server."""
    log: ServerLog
    restarts: int = 0
    connection: Any = None  # a `Connection`
    _client: Any = None  # a `Client`
    _starting: asyncio.Task[Any] | None = None
    _calls: list[_OpenCall] = field(default_factory=list)
    _one_call: anyio.Lock = field(default_factory=anyio.Lock)
    _reported: float = -1.0
    _end_reported: bool = False
    _tools: dict[str, ToolsetTool[Context]] | None = None

    @property
    def id(self) -> str | None:
        """The name of the server in rules."""
        return self.declared.name

    @property
    def label(self) -> str:
        server = self.declared.mcp
        if self.declared.name is not None:
            return f"MCP server {self.declared.name!r}"
        if server.url is not None:
            return f"the MCP server at {_address(server.url)}"
        return f"the MCP server {_command_line(server)!r}"

    @property
    def title(self) -> str:
        """The label at the start of a sentence."""
        return f"{self.label[0].upper()}{self.label[1:]}"

    @property
    def worker(self) -> str:
        return self.ctx.frame.entry.name

    # -- lifetime ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Make the client. Entering the toolset connects it."""
        # Importing PydanticAI's client costs more than everything else here, and most projects have no server.
        try:
            from .client import Connection, connect  # noqa: PLC0415
        except ImportError as exc:
            raise ToolsetError(
                f"{self.title} of worker {self.worker!r} cannot be used: "
                f"{exc.name or exc} is missing. Install what MCP servers need: {install_extra('mcp')}"
            ) from exc
        server = self.declared.mcp
        self.connection = Connection()
        self.wrapped = self._client = connect(
            server,
            self.base,
            log=self.log,
            connection=self.connection,
            roots=self.roots,
            on_progress=self.on_progress if server.progress else None,
            # Its name tells the server nothing.
            sampling_model=StandInModel("llm-do", self.sample) if server.sampling else None,
        )

    async def __aenter__(self) -> Self:
        self._starting = asyncio.create_task(self._start(), name=f"start of {self.label}")
        return self

    async def started(self) -> None:
        """Wait until the server is connected."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
            self._starting.result()

    async def __aexit__(self, *args: Any) -> bool | None:
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
            if starting.cancelled() or starting.exception() is not None:
                return None  # a failed start has cleaned up
        # A lost server has nothing left to close, whatever closing it raises.
        with suppress(Exception) if self.connection.lost else nullcontext():
            await self._client.close()
        return None

    async def _start(self) -> None:
        recorder, frame = self.ctx.runtime.recorder, self.ctx.frame
        again = " again" if self.restarts else ""
        text = f"{self.title} of worker {self.worker!r} is still starting{again}. It has "
        text += f"{self.declared.mcp.start_timeout:g} seconds (`start_timeout`)."
        timer = asyncio.get_running_loop().call_later(STILL_STARTING_SECONDS, recorder.notice, frame, text)
        try:
            with self._explained("cannot be reached"):
                await self._client.open()
        finally:
            timer.cancel()

    async def for_run(self, ctx: RunContext[Context]) -> AbstractToolset[Context]:
        if self.connection.lost:
            await self._restart(ctx.deps)
        return self

    async def _restart(self, ctx: Context) -> None:
        """Start a server again after it has ended, once."""
        self._report_end(ctx)
        if self.restarts:
            raise ToolsetError(
                f"Worker {self.worker!r}: {self.label} ended twice, and is not started again.{self._command}"
                f"{self.log.end()} Mend the server, and start a new conversation."
            )
        self.restarts += 1
        try:
            await self.__aexit__()
            self.connect()
            self._end_reported = False
            await self.__aenter__()
            await self.started()
        except BaseException as exc:
            self.connection.end("did not start")
            if isinstance(exc, asyncio.CancelledError):  # the next turn may try again
                self.restarts, self._end_reported = 0, True
            raise

    def _report_end(self, ctx: Context) -> None:
        """Report to the user and to the trace, once, that the server has ended."""
        if self._end_reported:
            return
        self._end_reported = True
        again = (
            "is not started again" if self.restarts else "is started again if there is another turn, without its state"
        )
        text = f"{self.title} of worker {self.worker!r} {self.connection.lost}, and {again}.{self.log.end()}"
        recorder, worker = ctx.runtime.recorder, ctx.frame.worker
        if worker is not None and worker.record is not None:
            recorder.add_whole(worker, self.declared.name or "mcp", "server", {}, error=text)
            recorder.notice(worker, text)

    async def get_instructions(
        self, ctx: RunContext[Context]
    ) -> str | InstructionPart | Sequence[str | InstructionPart] | None:
        if not self.restarts:
            return await super().get_instructions(ctx)
        return _RESTARTED.format(label=self.title)

    # -- tools ---------------------------------------------------------------------------------------

    async def get_tools(self, ctx: RunContext[Context]) -> dict[str, ToolsetTool[Context]]:
        """Return the tools; if the server has ended in the middle of a turn, those known before."""
        try:
            with self._explained("does not list its tools"):
                with anyio.fail_after(self.declared.mcp.start_timeout):
                    tools = await super().get_tools(ctx)
        except ToolsetError:
            if not self.connection.lost or self._tools is None:
                raise
            self._report_end(ctx.deps)
            return self._tools
        self._tools = {
            name: replace(tool, toolset=self, tool_def=replace(tool.tool_def, kind="unapproved"))
            for name, tool in tools.items()
        }
        return self._tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Context], tool: ToolsetTool[Context]
    ) -> Any:
        if not self.connection.lost:
            try:
                async with self._open_call(ctx.deps):
                    return await super().call_tool(name, tool_args, ctx, tool)
            except Exception as exc:
                self.connection.note(exc)
                if not self.connection.lost:
                    raise
        self._report_end(ctx.deps)
        raise ToolFailed(_LOST.format(label=self.label))

    @asynccontextmanager
    async def _open_call(self, ctx: Context) -> AsyncIterator[None]:
        """Note a call, for requests of the server during it. A server that samples gets one call at a time."""
        call = _OpenCall(ctx)
        async with self._one_call if self.declared.mcp.sampling else nullcontext():
            self._calls.append(call)
            try:
                yield
            finally:
                self._calls.remove(call)
                for scope in call.samples:
                    scope.cancel()
                with anyio.CancelScope(shield=True):
                    for ended in list(call.samples.values()):
                        await ended.wait()

    # -- messages of the server during a call ----------------------------------------------------------

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Emit the progress of a call, unless the server works on several: then nothing says which it is."""
        recorder, now = self.ctx.runtime.recorder, monotonic()
        if len(self._calls) != 1 or not recorder.observed or now - self._reported < PROGRESS_SECONDS:
            return
        self._reported = now
        frame = self._calls[0].ctx.frame
        text = None if message is None else " ".join(message[:LONGEST_PROGRESS].split())
        recorder.stream.emit(CallProgress, tags(frame), progress=progress, total=total, message=text)

    async def sample(self, messages: list[ModelMessage], settings: ModelSettings) -> ModelResponse:
        """Ask the worker's model for the server, as a call below the tool call."""
        if not self._calls:
            raise RuntimeError("Sampling is possible only during a tool call.")
        call = self._calls[0]
        # Without secrets, like the result of a tool: the model gets the text that a person sees.
        messages = call.ctx.runtime.gate.redaction.for_model(messages)
        entry = SamplingEntry(self.label, messages, settings)
        scope = anyio.CancelScope()
        call.samples[scope] = anyio.Event()
        try:
            with scope, call.ctx.runtime.loop.inner_task():
                frame = RequestFrame(entry, call.ctx.frame)
                response: ModelResponse = await dispatch(call.ctx, entry, entry.arguments, frame=frame)
                return response
        except Exception:
            raise RuntimeError("The request was refused, or failed.") from None  # the server must not learn why
        finally:
            call.samples.pop(scope).set()
        raise RuntimeError("The tool call has ended.")

    # -- errors --------------------------------------------------------------------------------------

    @property
    def _command(self) -> str:
        server = self.declared.mcp
        if self.declared.name is None:
            return ""
        if server.url is not None:
            return f" Its address is {_address(server.url)}."
        return f" Its command is {_command_line(server)!r}."

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Name the server in errors, and truncate their texts: the server wrote them."""
        try:
            yield
        except Exception as exc:
            while isinstance(exc, ExceptionGroup):
                exc = exc.exceptions[0]
            self.connection.note(exc)
            why = secret_values(self.declared).text(" ".join(str(exc).split()) or type(exc).__name__)
            if isinstance(exc, TimeoutError) or "Failed to initialize server session" in why:
                seconds = self.declared.mcp.start_timeout
                why = f"it took more than {seconds:g} seconds. Raise `start_timeout` if it needs more."
            elif self.connection.lost.startswith("was stopped"):
                why = f"it {self.connection.lost}"
            text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in why[:500])
            if status := self.connection.status:
                text = f"{text.rstrip('.')} (HTTP status {status})."
                text += " Give the key that it wants in `headers`." if status in (401, 403) else " Check its `url`."
            elif not text.endswith("."):
                text += "."
            raise ToolsetError(
                f"Worker {self.worker!r}: {self.label} {what}: {text}{self._command}{self.log.end()}"
            ) from None  # it may quote a secret


def _command_line(server: McpServer) -> str:
    return shlex.join((*(server.command or ()), *server.args))


def _address(url: str) -> str:
    """Return an address without a password, and without its query, which may have a key."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def secret_values(declared: McpToolset) -> Values:
    """Return the values of `env` and `headers` in a worker file: errors and logs must not show them."""
    return Values((*(declared.mcp.headers or {}).values(), *(declared.mcp.env or {}).values()))


@dataclass(frozen=True)
class McpFactory:
    """Makes the toolset of a server, once for each scope."""

    declared: McpToolset
    base: Path

    @property
    def has_secrets(self) -> bool:
        """Whether it has values that must not be digested for stored grants."""
        return bool(self.declared.mcp.headers or self.declared.mcp.env)

    def __call__(self, ctx: Context) -> AbstractToolset[Any]:
        secrets = ctx.runtime.recorder.secrets
        server = self.declared.name or _command_line(self.declared.mcp)
        path = log_path(self.base, server) if self.declared.mcp.command is not None else None
        secret = secret_values(self.declared)
        log = ServerLog(path, lambda text: secret.text(secrets.text(text, keep_lines=True), keep_lines=True))
        toolset = McpServerToolset(CombinedToolset([]), self.declared, ctx, self.base, self._roots(ctx), log)
        toolset.connect()
        return toolset if self.declared.prefix is None else toolset.prefixed(self.declared.prefix)

    def _roots(self, ctx: Context) -> tuple[Path, ...]:
        names, files = self.declared.mcp.roots, ctx.worker_frame.conversation.sandbox
        if not names:
            return ()
        worker = ctx.frame.entry.name
        if files is None:
            raise ToolsetError(f"Worker {worker!r} has no roots that an MCP server could be told. Give it a `sandbox`.")
        try:
            return tuple(files.manager.root(name).folder for name in names)
        except PathDenied as exc:
            raise ToolsetError(f"Worker {worker!r}, `roots` of an MCP server: {exc}") from exc
