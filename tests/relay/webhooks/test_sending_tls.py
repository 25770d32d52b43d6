"""Connections that a relay makes itself: over TLS they trust the authorities of the system, and no others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from posthouse.model.clock import system_clock
from posthouse.model.webhook import Outcome
from posthouse.relay.cluster.peer_links import PEER_PATH, PeerLink
from posthouse.relay.webhooks.sending import Attempt, WebhookSender
from tests.client.certificates import Certificate, make_certificate
from tests.relay.edge import PATIENCE_S
from tests.relay.webhooks.receivers import LOOPBACK

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path, "127.0.0.1")


@asynccontextmanager
async def tls_server(certificate: Certificate, path: str, handler: Handler) -> AsyncIterator[str]:
    """Run a server and yield its origin."""
    app = web.Application()
    app.router.add_route("*", path, handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _answer(_request: web.Request) -> web.Response:
    return web.Response(status=204)


async def post(certificate: Certificate) -> Attempt:
    sender = WebhookSender(LOOPBACK, system_clock())
    async with tls_server(certificate, "/hook", _answer) as origin:
        try:
            return await sender.post(f"{origin}/hook", b"{}", {})
        finally:
            await sender.close()


async def test_webhook_reaches_a_receiver_whose_authority_the_system_trusts(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    assert (await post(certificate)).outcome is Outcome.SENT


async def test_webhook_refuses_a_receiver_whose_authority_is_unknown(certificate: Certificate) -> None:
    attempt = await post(certificate)
    assert attempt.outcome is Outcome.RETRY
    assert "certificate" in attempt.text


async def test_relay_reaches_a_peer_whose_authority_the_system_trusts(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    greeted = asyncio.Event()

    async def greet(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        greeted.set()
        return socket

    async with tls_server(certificate, PEER_PATH, greet) as origin:
        link = PeerLink(origin, lambda: "token", lambda: ("HELLO", "me"), lambda: None)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await greeted.wait()
        finally:
            await link.close()
