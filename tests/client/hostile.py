"""A relay that lies: each connection follows a test's script, so the test can see what a real client accepts.

The script gets a Peer; the relay does nothing else.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from posthouse.keys import NodeKey


class Peer:
    """One connection, from the relay's side."""

    def __init__(self, socket: web.WebSocketResponse, key: NodeKey) -> None:
        self._socket = socket
        self.key = key

    async def send(self, *parts: Any) -> None:
        await self._socket.send_str(json.dumps(parts))

    async def receive(self) -> list[Any]:
        value: list[Any] = json.loads(await self._socket.receive_str())
        return value

    async def greet(self) -> None:
        """Accept the client without checking its proof."""
        await self.send("HELLO", {"relay": self.key.node, "challenge": "00" * 32, "features": []})
        await self.receive()
        await self.send("AUTHED", {"node": "whoever", "meshes": []})

    async def await_end(self) -> None:
        """Wait until the client closes the connection."""
        async for _ in self._socket:
            pass


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def lying_relay(script: Script, key: NodeKey | None = None) -> AsyncIterator[str]:
    """Run a relay that follows `script` on each stream; yields its address."""
    shown = key or NodeKey.generate()

    async def stream(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await script(Peer(socket, shown))
        await socket.close()
        return socket

    async def info(_: web.Request) -> web.Response:
        return web.json_response({"relay": shown.node})

    app = web.Application()
    app.add_routes([web.get("/v1/stream", stream), web.get("/v1/info", info)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
