"""Webhooks for people: ntfy, Slack and e-mail tell of mail in the default inbox and of records, without sealed text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.relay.edge import PATIENCE_S, Author, Edge, running
from tests.relay.webhooks.receivers import LOOPBACK, Receiver, add_webhook, refused


class MailServer:
    """A small SMTP server that keeps what it gets."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.arrived = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak SMTP with one client."""
        writer.write(b"220 test\r\n")
        while line := (await reader.readline()).decode().strip():
            verb = line[:4].upper()
            if verb == "DATA":
                writer.write(b"354 go on\r\n")
                data = (await reader.readuntil(b"\r\n.\r\n"))[:-5]
                self.mails.append(message_from_bytes(data))
                self.arrived.set()
            writer.write(b"221 bye\r\n" if verb == "QUIT" else b"250 ok\r\n")
            if verb == "QUIT":
                break
        writer.close()


@asynccontextmanager
async def mail_server() -> AsyncIterator[MailServer]:
    mails = MailServer()
    server = await asyncio.start_server(mails.serve, "127.0.0.1", 0)
    mails.port = server.sockets[0].getsockname()[1]
    try:
        yield mails
    finally:
        server.close()


def message(author: Author, to: Author, text: str, *tags: tuple[str, str]) -> dict[str, object]:
    return author.event(1000, text, [("p", to.node), ("c", text), *tags])


async def test_ntfy_gets_a_line_about_mail_in_the_default_inbox_only(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    await edge.post("/v1/meshes/main/members", {"node": author.node, "name": "alice"}, await edge.token(edge.admin))
    await add_webhook(edge, edge.admin, receiver.url, preset="ntfy", inbox=True)
    await edge.publish(
        message(author, edge.admin, "for the agent", ("to", "claude")),
        message(author, Author(), "for another"),
        message(author, edge.admin, "the build is red"),
        message(author, edge.admin, "c2VhbGVk", ("enc", "box")),
    )
    plain, sealed = await receiver.until(2)
    assert (plain.headers["title"], plain.body) == ("Message from alice in main", b"the build is red")
    assert b"c2VhbGVk" not in sealed.body and b"sealed" in sealed.body


async def test_slack_gets_a_text_whose_markup_is_escaped(edge: Edge, author: Author, receiver: Receiver) -> None:
    await add_webhook(edge, edge.admin, receiver.url, preset="slack", inbox=True)
    await edge.publish(message(author, edge.admin, "<!channel> & more"))
    [request] = await receiver.until(1)
    assert request.value["text"].endswith("\n&lt;!channel&gt; &amp; more")


async def test_a_broken_lock_is_told_to_a_person(edge: Edge, author: Author, receiver: Receiver) -> None:
    await add_webhook(edge, edge.admin, receiver.url, preset="ntfy", record_types=["delivery.dead", "lock.broken"])
    await edge.post("/v1/locks/acquire", {"resource": "db", "lease_ms": 60_000}, await edge.token(author))
    await edge.post("/v1/locks/break", {"resource": "db"}, await edge.token(edge.admin))
    [request] = await receiver.until(1)
    assert request.headers["title"] == "Lock broken in main"
    assert request.body.endswith(b"broke the lock db")


async def test_email_goes_through_the_server_of_the_operator(tmp_path: Path, author: Author) -> None:
    async with mail_server() as mails:
        sending = replace(LOOPBACK, smtp=f"smtp://127.0.0.1:{mails.port}", smtp_from="relay@example.org")
        async with running(tmp_path / "relay", sending=sending) as edge:
            await add_webhook(edge, edge.admin, "mailto:ops@example.org", preset="email", inbox=True)
            await edge.publish(message(author, edge.admin, "the build is red"))
            async with asyncio.timeout(PATIENCE_S):
                await mails.arrived.wait()
    [mail] = mails.mails
    assert (mail["From"], mail["To"]) == ("relay@example.org", "ops@example.org")
    assert mail["Subject"].startswith("Message from ")
    assert str(mail.get_payload()).strip() == "the build is red"


async def test_email_without_a_server_and_a_wrong_address_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "relay") as edge:
        reply = await refused(edge, edge.admin, "mailto:ops@example.org", preset="email")
        assert reply.code == "webhook_email_unavailable"
        for url in ("ops@example.org", "mailto:ops", "https://example.org"):
            assert (await refused(edge, edge.admin, url, preset="email")).code == "webhook_url_invalid"


@pytest.mark.parametrize("preset", ["ntfy", "slack"])
async def test_a_webhook_for_people_is_guarded_like_any_other(tmp_path: Path, preset: str) -> None:
    async with running(tmp_path / "relay") as edge:
        assert (await refused(edge, edge.admin, "https://127.0.0.1/x", preset=preset)).code == "webhook_address_refused"
