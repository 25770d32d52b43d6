"""Something that greets as a relay and offers what a test wants, to see how a daemon takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

from posthouse.keys import NodeKey

OFFER: dict[str, Any] = {
    "messages": True,
    "client_message_id_dedupe": {
        "version": 2,
        "mode": "retention",
        "dedupe_retention_days": 365,
        "request_fingerprint": True,
    },
    "concurrent_connection_policy": "prefer_newest",
    "max_payload": 49_152,
}


class OfferingRelay:
    """Says HELLO with some features and notes how the connection ended."""

    def __init__(self, features: Any) -> None:
        self.features = features
        self.port = 0
        self.closed: asyncio.Queue[tuple[int | None, str]] = asyncio.Queue()
        #: frames the daemon sent
        self.heard: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/v1/stream":
            return web.Response(status=404)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        node = NodeKey(b"f" * 32).node
        await socket.send_json(["HELLO", {"relay": node, "challenge": "c" * 64, "features": self.features}])
        reason = ""
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            self.heard.append(message.data)
        if message.type is WSMsgType.CLOSE:
            reason = message.extra or ""
        await self.closed.put((socket.close_code, reason))
        return socket


@asynccontextmanager
async def offering(features: Any) -> AsyncIterator[OfferingRelay]:
    """Run one until the end of the block."""
    relay = OfferingRelay(features)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", relay.serve)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        relay.port = runner.addresses[0][1]
        yield relay
    finally:
        await runner.cleanup()
