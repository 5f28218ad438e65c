"""An MCP server on standard input and output: the stock of a small shop."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")
STOCK = {"tea": 12, "coffee": 3, "sugar": 0}


@server.tool()
def stock(item: str) -> str:
    """How many packets of an item are in stock."""
    if item not in STOCK:
        return f"The shop has no {item}. It has {', '.join(STOCK)}."
    return f"{item}: {STOCK[item]} packets"


@server.tool()
def order(item: str, packets: int) -> str:
    """Order more packets of an item."""
    STOCK[item] = STOCK.get(item, 0) + packets
    return f"{packets} packets of {item} are ordered"


if __name__ == "__main__":
    server.run("stdio")
