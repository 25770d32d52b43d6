"""Serving over stdin and stdout: one agent, as long as it keeps its end open."""

from __future__ import annotations

import signal

import anyio
from mcp.server.stdio import stdio_server

from posthouse.client.daemon import DaemonPlace
from posthouse.mcp.server import ToolServer


def serve_stdio(place: DaemonPlace, wait_max_s: int) -> None:
    """Serve until stdin ends. A signal ends the process at once: nothing is held here that could be lost."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(_serve, place, wait_max_s)


async def _serve(place: DaemonPlace, wait_max_s: int) -> None:
    server = ToolServer(place, wait_max_s).server
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
