"""The tools, in the order in which they are listed."""

from posthouse.mcp.tools.table import TOOLS

__all__ = ["TOOLS"]
