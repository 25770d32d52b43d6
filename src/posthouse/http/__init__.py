"""HTTP for servers of this project: one server, router, call, problem and guard for relay, daemon and MCP."""
