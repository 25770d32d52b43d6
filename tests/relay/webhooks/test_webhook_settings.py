"""Settings of webhooks take effect, whether they come from the file, the environment or a flag."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.model.settings_sources import resolve_settings
from posthouse.model.webhook import Preset
from posthouse.relay.process import server_settings
from posthouse.relay.webhooks.managing import NewWebhook
from tests.relay.edge import PATIENCE_S, Author
from tests.relay.process.test_settings import SOURCES, relay, resolved
from tests.relay.webhooks.test_people import mail_server

URL = "http://127.0.0.1:9/"


@pytest.mark.parametrize("source", SOURCES)
async def test_webhook_networks_and_webhooks_per_mesh_bound_what_may_be_added(tmp_path: Path, source: str) -> None:
    async with relay(tmp_path, source, webhook_networks="127.0.0.0/8, ::1", webhooks_per_mesh=1) as server:
        webhooks, member = server.context.engine.webhooks, Author().node
        await webhooks.add(member, NewWebhook("main", URL))
        with pytest.raises(PosthouseError) as refused:
            await webhooks.add(member, NewWebhook("main", URL))
        assert refused.value.code == "mesh_row_limit"


@pytest.mark.parametrize("source", SOURCES)
async def test_smtp_url_and_smtp_from_send_e_mail_and_webhook_timeout_s_bounds_a_request(
    tmp_path: Path, source: str
) -> None:
    async with mail_server() as mails:
        given = {"smtp_url": f"smtp://127.0.0.1:{mails.port}", "smtp_from": "relay@example.org"}
        async with relay(tmp_path, source, webhook_timeout_s=0.2, webhook_networks="127.0.0.1", **given) as server:
            engine, author = server.context.engine, Author()
            new = NewWebhook("main", "mailto:ops@example.org", Preset.EMAIL)
            await engine.webhooks.add(author.node, new)
            sender = engine.dispatcher._sender
            assert (await sender.mail("ops@example.org", "subject", "text")).outcome.value == "sent"
            async with asyncio.timeout(PATIENCE_S):
                await mails.arrived.wait()
            with socket.create_server(("127.0.0.1", 0)) as silent:
                attempt = await sender.post(f"http://127.0.0.1:{silent.getsockname()[1]}/", b"{}", {})
            assert attempt.text == "no answer within 0.2 s"
    assert mails.mails[0]["From"] == "relay@example.org"


def test_networks_that_are_none_are_refused_at_start() -> None:
    values = resolve_settings(**resolved("flag", {"relay.webhook_networks": "everywhere"}))
    with pytest.raises(PosthouseError) as refused:
        server_settings(values)
    assert refused.value.code == "webhook_networks_invalid"
