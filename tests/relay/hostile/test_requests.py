"""Requests that no correct client sends: each gets its code or is closed, and the relay keeps serving."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from posthouse.model.node import Role
from tests.relay.edge import PATIENCE_S, Author, Edge, running
from tests.relay.hostile.wire import Wire, wire

HEAD = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n"

MALFORMED: list[tuple[bytes, int, str]] = [
    (b"nonsense\r\n\r\n", 400, "http_malformed"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "http_malformed"),
    (b"GET /v1/info HTTP/9.9\r\n\r\n", 400, "http_malformed"),
    (b"GET\r\n\r\n", 400, "http_malformed"),
    (HEAD + b"broken header\r\n\r\n", 400, "http_malformed"),
    (HEAD + b"X: a\r\n b\r\nContent-Length: x\r\n\r\n", 400, "http_malformed"),
    (b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400, "http_malformed"),
    (b"POST /v1/events HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "http_malformed"),
    (HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431, "header_too_large"),
    (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431, "header_too_large"),
    (b"GET /v1/events/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "path_invalid"),
    (b"GET /v1/events/%2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "path_invalid"),
    (b"GET /v1/\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "http_malformed"),
    (b"GET /v1/events?a#b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "path_invalid"),
    (b"GET /v1/../v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "route_unknown"),
    (b"GET /v1%2Finfo HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "route_unknown"),
    (b"BREW /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "http_malformed"),
    (b"PATCH /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"),
    (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "path_invalid"),
    (b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n", 426, "upgrade_required"),
    (
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 12\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        426,
        "upgrade_required",
    ),
    (
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n",
        426,
        "upgrade_required",
    ),
]


@pytest.mark.parametrize(("data", "status", "code"), MALFORMED, ids=range(len(MALFORMED)))
async def test_each_malformed_request_gets_its_code(edge: Edge, data: bytes, status: int, code: str) -> None:
    async with wire(edge) as connection:
        await connection.send(data)
        found, problem = await connection.response()
    assert (found, problem["code"]) == (status, code)
    assert (await edge.get("/healthz")).status == 200


async def test_too_many_headers_are_refused(edge: Edge) -> None:
    async with wire(edge) as connection:
        await connection.send(HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(200)) + b"\r\n")
        status, problem = await connection.response()
    assert (status, problem["code"]) in ((400, "http_malformed"), (431, "header_too_large"))


async def test_body_that_is_announced_too_large_is_refused_before_it_is_read(edge: Edge) -> None:
    async with wire(edge) as connection:
        await connection.send(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        status, problem = await connection.response()
    assert (status, problem["code"]) == (413, "request_too_large")


async def test_body_that_grows_too_large_is_refused(edge: Edge) -> None:
    async with wire(edge) as connection:
        await connection.send(b"POST /v1/auth HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        reading = asyncio.create_task(connection.response())
        for _ in range(40):
            if reading.done():
                break
            await connection.send(chunk)
        status, problem = await reading
    assert (status, problem["code"]) == (413, "request_too_large")


async def test_broken_chunks_are_refused(edge: Edge) -> None:
    async with wire(edge) as connection:
        await connection.send(
            b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        )
        status, problem = await connection.response()
    assert (status, problem["code"]) == (400, "http_malformed")


async def test_client_that_expects_100_continue_gets_it(edge: Edge) -> None:
    async with wire(edge) as connection:
        await connection.send(
            b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await connection.send(b"{}")
        status, problem = await connection.response()
    assert (status, problem["code"]) == (400, "event_field_missing")


async def test_slowloris_is_answered_and_closed_while_other_clients_are_served(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", header_s=0.3) as edge, wire(edge) as silent, wire(edge) as slow:
        await slow.send(b"GET /v1/info HTTP/1.1\r\nHost")
        status, problem = await slow.response()
        assert (status, problem["code"]) == (408, "request_too_slow")
        assert b" 408 " in await silent.read_all()
        assert await slow.read_all() == b""
        assert (await edge.get("/healthz")).status == 200
        assert edge.server.context.meters.counted("posthouse_relay_connections_refused_total", "request_too_slow") == 2


async def test_header_that_trickles_on_a_kept_connection_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", keepalive_s=0.3) as edge, wire(edge) as slow:
        await slow.send(HEAD + b"\r\n")
        assert (await slow.response())[0] == 200
        await slow.send(b"GET /v1/info HTTP/1.1\r\nHost: ")
        assert await slow.read_all() == b""


async def test_slow_body_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", body_s=0.3) as edge, wire(edge) as slow:
        await slow.send(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        status, problem = await slow.response()
    assert (status, problem["code"]) == (408, "request_too_slow")


async def test_silent_connections_of_an_address_make_room_for_newer_ones_and_health_answers(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", strangers_per_address=8) as edge, AsyncExitStack() as stack:
        member = await stack.enter_async_context(edge.stream(Author()))
        silent = [await stack.enter_async_context(wire(edge)) for _ in range(30)]
        for _ in range(5):
            assert (await edge.send("GET", "/healthz", headers={"Connection": "close"})).status == 200
        for connection in silent[:20]:
            status, problem = await connection.response()
            assert (status, problem["code"]) == (503, "connections_exhausted")
        await member.send("COUNT", "c")
        assert await member.expect("COUNT") == ["c", 0]
        async with edge.stream(Author()) as other:
            await other.send("COUNT", "c")
            assert await other.expect("COUNT") == ["c", 0]


async def test_streams_that_do_not_log_in_make_room_for_those_that_do(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", strangers_per_address=4) as edge, AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(edge.stream()) for _ in range(6)]
        assert (await idle[0].receive())[0] == "END"
        for _ in range(8):  # members do not count among strangers
            await stack.enter_async_context(edge.stream(Author()))
        assert len(edge.server.context.connections) == 8 + 4 - 1


async def test_keys_without_a_mesh_take_no_place_of_members_and_keep_small_limits(tmp_path: Path) -> None:
    async with (
        running(
            tmp_path / "relay", strangers_per_address=4, connections_per_address=2, stranger_frame_bytes=1_000
        ) as edge,
        AsyncExitStack() as stack,
    ):
        engine = edge.server.context.engine
        await engine.administration.set_open(edge.admin.node, "main", is_open=False)
        keys = [Author() for _ in range(6)]
        strangers = [await stack.enter_async_context(edge.stream(key)) for key in keys]
        assert (await strangers[0].receive())[0] == "END"
        member = await stack.enter_async_context(edge.stream(edge.admin))
        await strangers[-2].send("COUNT", "c" * 1_000)
        assert await strangers[-2].notice() == "frame_too_large"
        await engine.administration.save_member(edge.admin.node, "main", keys[-1].node, "joined", Role.MEMBER)
        await strangers[-1].send("COUNT", "c", {"ids": ["0" * 64] * 20})
        assert await strangers[-1].expect("COUNT") == ["c", 0]
        await member.send("COUNT", "c")
        assert await member.expect("COUNT") == ["c", 0]


async def test_members_of_an_address_are_bounded_and_the_login_beyond_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", connections_per_address=2) as edge, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(edge.stream(Author()))
        async with edge.stream() as third:
            await third.send("AUTH", Author().proof(edge.relay, ("challenge", third.hello["challenge"])))
            assert await third.notice() == "connections_exhausted"
            assert await third.receive() == ["END", 1013]


async def test_one_member_cannot_take_all_connections(tmp_path: Path) -> None:
    greedy = Author()
    async with running(tmp_path / "relay", connections_per_node=2) as edge, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(edge.stream(greedy))
        async with edge.stream() as third:
            await third.send("AUTH", greedy.proof(edge.relay, ("challenge", third.hello["challenge"])))
            assert await third.notice() == "connections_exhausted"
            assert await third.receive() == ["END", 1013]
        await stack.enter_async_context(edge.stream(Author()))


BEGUN = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


async def test_half_bodies_of_an_address_are_bounded_and_stop_no_other_request(tmp_path: Path) -> None:
    author = Author()
    async with (
        running(tmp_path / "relay", requests_running=2, unfinished_per_address=4) as edge,
        AsyncExitStack() as stack,
    ):
        token = await edge.token(author)
        half = [await stack.enter_async_context(wire(edge)) for _ in range(4)]
        for connection in half:
            await connection.send(BEGUN)
        bodies = edge.server.context.meters  # the relay has read all four heads once a fifth is refused
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with wire(edge) as fifth:
                    await fifth.send(BEGUN + b"{")
                    await edge.get("/healthz")
                    if (refused := await _refusal(fifth)) is not None:
                        break
        assert refused == (503, "requests_exhausted")
        assert bodies.counted("posthouse_relay_requests_total", "/v1/events", "503") >= 1
        assert (await edge.get("/v1/events", token)).status == 200
        for connection in half:
            await connection.send(b"{}")
            assert (await connection.response())[1]["code"] == "event_field_missing"


async def _refusal(connection: Wire) -> tuple[int, str] | None:
    """Return the answer that a request gets before its body is complete, or None if it gets none for a moment."""
    reading = asyncio.create_task(connection.response())
    done, _ = await asyncio.wait({reading}, timeout=0.2)
    if not done:
        reading.cancel()
        return None
    status, problem = reading.result()
    return status, problem["code"]


async def test_requests_at_once_are_bounded_and_health_still_answers(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", requests_running=2) as edge:
        token = await edge.token(author)
        free = threading.Event()
        blocking = edge.server.context.engine.store.submit(lambda unit: free.wait(PATIENCE_S))
        waiting = [asyncio.create_task(edge.post("/v1/events", author.event())) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_S):
            while edge.server.context.meters._gauges["posthouse_relay_requests_running"]() < 2:
                await edge.get("/healthz")
        refused = await edge.get("/v1/events", token)
        assert (refused.status, refused.code) == (503, "requests_exhausted")
        assert int(refused.headers["retry-after"]) >= 1
        for path in ("/healthz", "/readyz"):
            assert (await edge.get(path)).status == 200
        free.set()
        await blocking
        assert [(await each).status for each in waiting] == [201, 201]
        assert (await edge.get("/v1/events", token)).status == 200


async def test_body_without_a_token_is_small(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", stranger_body_bytes=2_000) as edge:
        event = author.event(content="x" * 3_000)
        refused = await edge.post("/v1/events", event)
        assert (refused.status, refused.code) == (413, "request_too_large")
        assert "token" in refused.value["hint"]
        assert (await edge.post("/v1/events", event, await edge.token(author))).status == 201


async def test_bytes_of_strangers_in_unfinished_bodies_have_a_total(tmp_path: Path) -> None:
    begun = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n"
    async with running(tmp_path / "relay", unfinished_bytes=10_000) as edge, AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(wire(edge)) for _ in range(3)]
        for connection in slow:
            await connection.send(begun + b" " * 8_000)
        answers = [asyncio.create_task(connection.response()) for connection in slow]
        done, waiting = await asyncio.wait(answers, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result()[1]["code"] for each in done] == ["requests_exhausted"]
        for each in waiting:
            each.cancel()


async def test_login_in_two_packets_has_room_when_large_bodies_of_strangers_have_used_up_theirs(tmp_path: Path) -> None:
    body = json.dumps({"pubkey": Author().node}).encode()
    head = b"POST /v1/auth/challenge HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with running(tmp_path / "relay", unfinished_bytes=0) as edge, wire(edge) as slow:
        await slow.send(head + body[:10])
        await edge.get("/healthz")  # meanwhile the relay has begun to read the body
        await slow.send(body[10:])
        status, answer = await slow.response()
        assert (status, answer["relay"]) == (200, edge.relay)


LEFT = (
    b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    b"GET /v1",
    HEAD + b"\r\n",
)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_client_that_leaves_in_the_middle_changes_nothing_and_leaves_no_traceback(
    edge: Edge, is_reset: bool
) -> None:
    with capture_logs() as entries:
        for data in LEFT:
            async with wire(edge) as connection:
                await connection.send(data)
                await edge.get("/healthz")  # meanwhile the relay has begun to read the body
                if is_reset:
                    connection.writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while edge.server.context.meters._gauges["posthouse_relay_connections"]() > 1:
                await edge.get("/healthz")
    assert [entry for entry in entries if entry["log_level"] == "error"] == []
