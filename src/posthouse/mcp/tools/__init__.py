"""The MCP tools, one module per kind."""
