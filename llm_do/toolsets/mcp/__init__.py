"""Tools of MCP servers, which are not trusted."""
