"""Readers that do not read: their buffer is bounded, they get a cursor to resume, and no other reader is slowed."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from posthouse.relay.listen import Protection
from posthouse.relay.server import NO_PROTECTION
from posthouse.relay.wire.accept_results import Accepted
from tests.client.certificates import make_certificate
from tests.relay.edge import PATIENCE_S, Author, Edge, Stream, running
from tests.relay.hostile.wire import Wire, masked, wire

BODY = "x" * 4_000
MANY = 2_000  # events of this body are more than the kernel and the relay buffer for a reader


def narrow(connection: Wire) -> None:
    """Keep the kernel from buffering megabytes for a reader that does not read."""
    raw: socket.socket = connection.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)


async def stall(connection: Wire, edge: Edge, author: Author) -> None:
    """Become a subscriber whose socket is never read again."""
    narrow(connection)
    await connection.send(
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    await connection.reader.readuntil(b"\r\n\r\n")
    hello = json.loads((await connection.frame())[1])[1]
    proof = author.proof(edge.relay, ("challenge", hello["challenge"]))
    await connection.send(masked(json.dumps(["AUTH", proof]).encode()))
    assert (await connection.frame())[1].startswith(b'["AUTHED"')
    await connection.send(masked(b'["REQ","s",{"limit":0},{"kinds":[1]}]'))
    assert (await connection.frame())[1].startswith(b'["EOSE"')
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]


async def publish_many(edge: Edge, author: Author, count: int) -> None:
    async with edge.stream() as stream:
        for start in range(0, count, 50):
            await stream.send_list([["EVENT", author.event(content=f"{n} {BODY}")] for n in range(start, start + 50)])
            for _ in range(50):
                assert (await stream.expect("OK"))[1] is True


async def test_stalled_reader_gets_closed_with_a_cursor_that_resumes(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", buffer_events=100) as edge, wire(edge) as stalled:
        await stall(stalled, edge, author)
        await publish_many(edge, author, MANY)
        assert edge.server.context.meters.counted("posthouse_relay_slow_readers_total") == 1
        stalled.writer.transport.resume_reading()  # type: ignore[attr-defined]
        seen: list[int] = []
        closed: list[Any] = []
        while not closed:
            text = json.loads((await stalled.frame())[1])
            for command in text if isinstance(text[0], list) else [text]:
                if command[0] == "EVENT":
                    seen.append(int(command[2]["content"].split()[0]))
                else:
                    closed = command
        assert (closed[0], closed[1], closed[2]["code"]) == ("CLOSED", "s", "reader_too_slow")
        assert seen == list(range(len(seen)))
        async with edge.stream(author) as stream:
            await stream.send("REQ", "rest", {"cursor": closed[3]}, {"kinds": [1]})
            rest = [int(c[2]["content"].split()[0]) for c in await stream.until("EOSE") if c[0] == "EVENT"]
        assert seen + rest == list(range(MANY))


async def count_live(stream: Stream, count: int) -> None:
    for _ in range(count):
        await stream.expect("EVENT")


async def test_five_stalled_readers_do_not_slow_others_nor_grow_memory(tmp_path: Path) -> None:
    author = Author()
    limit = 1024 * 1024
    async with running(tmp_path / "relay", buffer_bytes=limit) as edge:
        wires = [wire(edge) for _ in range(5)]
        stalled = [await each.__aenter__() for each in wires]
        for connection in stalled:
            await stall(connection, edge, author)
        async with edge.stream(author) as healthy:
            await healthy.send("REQ", "s", {"limit": 0}, {"kinds": [1]})
            await healthy.expect("EOSE")
            reading = asyncio.create_task(count_live(healthy, MANY))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await publish_many(edge, author, MANY)  # 8 MB for each reader
            await reading
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        unsent = [connection.write_buffer.unsent_bytes for connection in edge.server.context.connections]
        assert all(size <= limit + 65_536 for size in unsent), unsent
        assert edge.server.context.meters.counted("posthouse_relay_slow_readers_total") == 5
        assert len(edge.server.context.live) <= 1
        assert grown_kib < 5 * 8 * 1024
        for each in wires:
            await each.__aexit__(None, None, None)


async def test_stored_events_wait_for_a_slow_reader_without_holding_a_read(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay") as edge:
        await publish_many(edge, author, MANY)
        async with wire(edge) as slow:
            await stall(slow, edge, author)
            await slow.send(masked(b'["REQ","all",{},{"kinds":[1]}]'))
            async with asyncio.timeout(PATIENCE_S):
                while len(edge.server.context.connections) > 1:  # until the publisher's has ended
                    await edge.get("/healthz")
                (connection,) = edge.server.context.connections
                while connection.write_buffer.unsent_bytes == 0:  # until the socket takes no more
                    assert (await edge.get("/healthz")).status == 200
            assert connection.write_buffer.unsent_bytes < 1024 * 1024
            assert edge.server.context.engine.store.statistics()["running"] == 0
            async with edge.stream(author) as other:
                await other.send("COUNT", "c")
                assert await other.expect("COUNT") == ["c", MANY]
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            seen = 0
            while seen < MANY:
                seen += (await slow.frame())[1].count(b'["EVENT","all",')
            assert json.loads((await slow.frame())[1])[:2] == ["EOSE", "all"]


async def test_publisher_that_reads_no_answers_is_held_back_not_buffered(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay") as edge, wire(edge) as deaf:
        narrow(deaf)
        await deaf.upgrade()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        event = masked(json.dumps(["EVENT", author.event() | {"sig": "0" * 128}]).encode())
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await deaf.send(event * 200)
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while sent != before:  # until the relay takes no more while it answers others
            before = sent
            for _ in range(20):
                assert (await edge.get("/healthz")).status == 200
        unsent = [connection.write_buffer.unsent_bytes for connection in edge.server.context.connections]
        assert all(size < 4 * 1024 * 1024 for size in unsent), unsent
        flooding.cancel()


async def connect(edge: Edge, *, is_tls: bool) -> Wire:
    """Open a connection that takes little from the kernel and reads nothing until it is told to."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
    raw.setblocking(False)
    address = edge.server.address
    await asyncio.get_running_loop().sock_connect(raw, (address.host, address.port))
    context = ssl.create_default_context() if is_tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(
        sock=raw, ssl=context, server_hostname=address.host if is_tls else None
    )
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return Wire(reader, writer)


@pytest.mark.parametrize("is_tls", [False, True])
async def test_unread_http_responses_count_and_the_slowest_client_is_dropped(tmp_path: Path, is_tls: bool) -> None:
    author, limit = Author(), 16 * 1024 * 1024
    made = make_certificate(tmp_path / "certificate", "127.0.0.1") if is_tls else None
    protection = NO_PROTECTION if made is None else Protection(tls_cert=made.cert, tls_key=made.key)
    async with running(tmp_path / "relay", protection=protection, outbound_bytes=limit) as edge:
        context = edge.server.context
        for _ in range(10):
            events = [json.dumps(author.event(content="x" * 60_000)).encode() for _ in range(10)]
            assert all(isinstance(answer, Accepted) for answer in await context.engine.accept_many(events))
        token = context.tokens.issue(author.node).text
        request = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        clients = [await connect(edge, is_tls=is_tls) for _ in range(4)]
        for number, client in enumerate(clients, start=1):
            await client.send(request)
            async with asyncio.timeout(PATIENCE_S):  # each response has 6 MB: two fit into the bound, less an eighth
                while context.outbound.dropped < number - 2 or context.outbound.measure() < min(number, 2) * 6_000_000:
                    await context.engine.store.extent()
        assert context.outbound.dropped == 2
        assert context.outbound.measure() <= limit
        for client in clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for client in clients[2:]:
            status, page = await client.response()
            assert (status, len(page["events"])) == (200, 100)
        for client in clients:
            client.writer.close()


async def test_lists_and_counts_that_are_not_read_wait_instead_of_piling_up(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay") as edge, edge.stream(author) as stream:
        await stream.send_list(
            [["LOCK", str(n), "acquire", {"resource": f"r{n}", "lease_ms": 60_000}] for n in range(9)]
        )
        for _ in range(9):
            assert "token" in (await stream.expect("LOCKED"))[1]
        asked = [["LOCK", str(n), "list", {}] if n % 2 else ["COUNT", str(n), {}] for n in range(18)]
        await stream.send_list(asked)
        answers = {answer[1]: answer for answer in [await stream.receive() for _ in asked]}
        assert [answers[str(n)][2]["code"] for n in (16, 17)] == ["reads_exhausted"] * 2
        assert all(len(answers[str(n)][2]["locks"]) == 9 for n in range(1, 16, 2))
        assert all(answers[str(n)][2] == 0 for n in range(0, 16, 2))
        assert edge.server.context.reads == 0
        await stream.send("COUNT", "again", {})
        assert await stream.expect("COUNT") == ["again", 0]


async def test_reader_that_keeps_up_leaves_nothing_in_its_write_buffer(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay") as edge, edge.stream(author) as reader:
        await reader.send("REQ", "s", {"limit": 0}, {"kinds": [1]})
        await reader.expect("EOSE")
        (connection,) = edge.server.context.connections
        for number in range(200):
            await edge.publish(author.event(content=str(number)))
            await reader.expect("EVENT")
        assert len(connection.write_buffer._ledger) == 0
