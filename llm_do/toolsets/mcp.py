"""Tools of MCP servers, which ask unless a rule allows them: the runtime does not know what they do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
from pydantic_ai import RunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ..context import Context
from ..definition import McpToolset
from ..errors import ToolsetError
from ..secrets import HIDDEN

CONNECTING_SECONDS = 60.0
"""How long a server may take to start, or to list its tools."""


@dataclass
class McpServerToolset(WrapperToolset[Context]):
    """The tools of an MCP server, all of which require approval."""

    declared: McpToolset

    @property
    def id(self) -> str | None:
        """The name by which rules know the server."""
        return self.declared.name

    @property
    def label(self) -> str:
        server = self.declared.mcp
        if self.declared.name is not None:
            return f"MCP server {self.declared.name!r}"
        if server.url is not None:
            url = urlsplit(server.url)  # a password, or a key in the query, is not shown
            return f"the MCP server at {url.scheme}://{url.hostname}{f':{url.port}' if url.port else ''}{url.path}"
        return f"the MCP server {shlex.join((*(server.command or ()), *server.args))!r}"

    async def __aenter__(self) -> Self:
        with self._explained("cannot be reached"):
            return await super().__aenter__()

    async def get_tools(self, ctx: RunContext[Context]) -> dict[str, ToolsetTool[Context]]:
        with self._explained("does not list its tools"):
            with anyio.fail_after(CONNECTING_SECONDS):
                tools = await super().get_tools(ctx)
        return {
            name: replace(tool, toolset=self, tool_def=replace(tool.tool_def, kind="unapproved"))
            for name, tool in tools.items()
        }

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Say which server failed. What its error says is cut, since the server wrote it."""
        try:
            yield
        except Exception as exc:
            while isinstance(exc, ExceptionGroup):
                exc = exc.exceptions[0]
            why = " ".join(str(exc).split()) or type(exc).__name__
            for secret in (self.declared.mcp.headers or {}).values():
                why = why.replace(secret, HIDDEN) if secret else why
            text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in why[:500])
            raise ToolsetError(
                f"{self.label[0].upper()}{self.label[1:]} {what}: {text}"
            ) from None  # it may quote what is hidden


@dataclass(frozen=True)
class McpFactory:
    """Connects to a server, once for each scope."""

    declared: McpToolset
    base: Path

    def __call__(self, ctx: Context) -> AbstractToolset[Any]:
        # Importing PydanticAI's client costs more than everything else here, and most projects have no server.
        from .mcp_client import connect  # noqa: PLC0415

        client = connect(self.declared.mcp, self.base, CONNECTING_SECONDS)
        toolset: AbstractToolset[Any] = McpServerToolset(client, self.declared)
        return toolset if self.declared.prefix is None else toolset.prefixed(self.declared.prefix)
