"""`posthouse connect`: tell an agent's program of the MCP server."""

from posthouse.cli.connect.command import connect

__all__ = ["connect"]
