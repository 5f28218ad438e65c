"""Tools of MCP servers, which ask unless a rule allows them: nobody here knows what they do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ..context import Context
from ..definition import McpToolset

SECONDS_TO_START = 60.0
"""A server may have to be downloaded first (`uvx`, `npx`), on a machine that is busy. PydanticAI gives it 5 seconds."""


@dataclass
class AskingToolset(WrapperToolset[Context]):
    """A toolset all of whose tools require approval."""

    async def get_tools(self, ctx: RunContext[Context]) -> dict[str, ToolsetTool[Context]]:
        tools = await super().get_tools(ctx)
        return {name: replace(tool, tool_def=replace(tool.tool_def, kind="unapproved")) for name, tool in tools.items()}


@dataclass(frozen=True)
class McpFactory:
    """Connects to a server, once for each scope."""

    declared: McpToolset
    base: Path

    def __call__(self, ctx: Context) -> AbstractToolset[Any]:
        # Importing PydanticAI's client costs more than everything else here, and most projects have no server.
        from fastmcp.client.transports import StdioTransport, StreamableHttpTransport  # noqa: PLC0415
        from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415

        server = self.declared.mcp
        transport: Any
        if server.command is not None:
            command, *args = (*server.command, *server.args)
            cwd = str(self.base / (server.cwd or "."))
            # By default the process is kept for other connections, after everybody has left.
            transport = StdioTransport(command, args, env=server.env, cwd=cwd, keep_alive=False)
        else:
            transport = StreamableHttpTransport(str(server.url), headers=server.headers)
        toolset: AbstractToolset[Any] = AskingToolset(MCPToolset(transport, init_timeout=SECONDS_TO_START))
        return toolset if self.declared.prefix is None else toolset.prefixed(self.declared.prefix)
