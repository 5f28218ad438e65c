"""A real MCP server on standard input and output, for the tests of foreign toolsets."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("counter")
count = 0


@server.tool()
def increment(by: int) -> str:
    """Add to the counter of this process."""
    global count
    count += by
    return f"{os.getpid()}:{count}"


if __name__ == "__main__":
    server.run("stdio")
