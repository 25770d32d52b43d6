"""Frames that no correct client sends: each gets its code, floods are closed, and the relay keeps serving."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.relay.edge import Author, Edge, running
from tests.relay.hostile.wire import masked, wire

FRAMES: list[tuple[str, str]] = [
    ("", "json_invalid"),
    ("nonsense", "json_invalid"),
    ("{}", "frame_malformed"),
    ("1", "frame_malformed"),
    ("null", "frame_malformed"),
    ("[]", "frame_malformed"),
    ("[[]]", "frame_malformed"),
    ("[1]", "frame_malformed"),
    ('["A"', "json_invalid"),
    ('["A"] x', "json_invalid"),
    ('[["CLOSE", "s"], 3]', "frame_malformed"),
    ('[["CLOSE", "s"], []]', "frame_malformed"),
    ("[" * 100_000, "json_too_deep"),
    ('["REQ", "s", ' + "[" * 20_000 + "]" * 20_000 + "]", "json_too_deep"),
    (json.dumps([["CLOSE", "s"]] * 1_001), "frame_malformed"),
    ('["NOTHING"]', "verb_unknown"),
    ('["event", {}]', "verb_unknown"),
    ('["\\ud800"]', "json_invalid"),
    ('["LOCK", "\\ud800", "list", {}]', "json_invalid"),
    ('["RECEIVE"]', "frame_malformed"),
    ('["RECEIVE", 1, {}]', "frame_malformed"),
    ('["RECEIVE", "main", {"window": 0}]', "frame_malformed"),
    ('["RECEIVE", "main", {"windows": 1}]', "frame_malformed"),
    ('["RECEIVE", "main", {"instance": 1}]', "frame_malformed"),
    ('["RECEIVE", "nowhere", {}]', "mesh_unknown"),
    ('["CONFIRM"]', "frame_malformed"),
    ('["CONFIRM", {}]', "confirmation_malformed"),
    ('["REJECT", "x", "y"]', "frame_malformed"),
    ('["EVENT"]', "frame_malformed"),
    ('["EVENT", {}, {}]', "frame_malformed"),
    ('["AUTH"]', "frame_malformed"),
    ('["CLOSE"]', "frame_malformed"),
    ('["CLOSE", "s"]', "subscription_unknown"),
    ('["CLOSE", 1]', "subscription_id_invalid"),
    ('["CLOSE", ""]', "subscription_id_invalid"),
    ('["CLOSE", "' + "s" * 65 + '"]', "subscription_id_invalid"),
    ('["COUNT"]', "frame_malformed"),
    ('["REQ", "s"]', "frame_malformed"),
    ('["REQ", null, {}]', "subscription_id_invalid"),
    ('["REQ", "s", {}' + ', {"kinds": [1]}' * 11 + "]", "frame_malformed"),
]


@pytest.mark.parametrize(("text", "code"), FRAMES, ids=range(len(FRAMES)))
async def test_each_malformed_frame_gets_its_code(edge: Edge, author: Author, text: str, code: str) -> None:
    async with edge.stream(author) as stream:
        await stream.socket.send_str(text)
        assert await stream.notice() == code
        await stream.send("COUNT", "c")
        assert await stream.expect("COUNT") == ["c", 0]


REQUESTS: list[tuple[list[Any], str]] = [
    ([[]], "frame_malformed"),
    ([{"cursor": 1}], "frame_malformed"),
    ([{"cursor": "abc"}], "cursor_invalid"),
    ([{"cursor": "A" * 32}], "cursor_reset"),
    ([{"limit": -1}], "frame_malformed"),
    ([{"limit": 501}], "frame_malformed"),
    ([{"limit": 1.5}], "frame_malformed"),
    ([{"limit": True}], "frame_malformed"),
    ([{"limit": 1, "cursor": "abc"}], "cursor_invalid"),
    ([{"order": "asc"}], "frame_malformed"),
    ([{}, []], "filter_invalid"),
    ([{}, {"nonsense": 1}], "filter_invalid"),
    ([{}, {"kinds": []}], "filter_invalid"),
    ([{}, {"kinds": ["1"]}], "filter_invalid"),
    ([{}, {"kinds": [1.0]}], "filter_invalid"),
    ([{}, {"kinds": [True]}], "filter_invalid"),
    ([{}, {"ids": ["x"]}], "filter_invalid"),
    ([{}, {"ids": "0" * 64}], "filter_invalid"),
    ([{}, {"since_ns": -1}], "filter_invalid"),
    ([{}, {"since_ns": 2**63}], "filter_invalid"),
    ([{}, {"#t": [1]}], "filter_invalid"),
    ([{}, {"#": ["x"]}], "filter_invalid"),
    ([{}, {"#t": ["x"] * 501}], "filter_invalid"),
    ([{}, {"mesh": "nowhere"}], "mesh_unknown"),
    ([{}, {"mesh": ""}], "filter_invalid"),
]


@pytest.mark.parametrize(("arguments", "code"), REQUESTS, ids=range(len(REQUESTS)))
async def test_each_malformed_subscription_is_closed_with_its_code(
    edge: Edge, author: Author, arguments: list[Any], code: str
) -> None:
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", *arguments)
        closed = await stream.expect("CLOSED")
        assert (closed[0], closed[1]["code"]) == ("s", code)
        assert closed[1]["hint"]
        await stream.send("REQ", "s", {})
        assert (await stream.expect("EOSE"))[0] == "s"


async def test_duplicate_key_in_a_filter_is_refused(edge: Edge, author: Author) -> None:
    async with edge.stream(author) as stream:
        await stream.socket.send_str('["REQ", "s", {}, {"kinds": [1], "kinds": [2]}]')
        assert (await stream.expect("CLOSED"))[1]["code"] == "json_duplicate_key"


#: an encoded surrogate in each place that takes a text
SURROGATES = (
    b'["\xed\xa0\x80"]',
    b'["LOCK", "\xed\xa0\x80", "list", {}]',
    b'["LOCK", "r", "\xed\xa0\x80", {}]',
    b'["LOCK", "r", "acquire", {"resource": "\xed\xa0\x80", "lease_ms": 1000}]',
    b'["REQ", "\xed\xa0\x80", {}]',
    b'["COUNT", "\xed\xa0\x80"]',
    b'["RECEIVE", "\xed\xa0\x80", {}]',
    b'["EVENT", {"id": "\xed\xa0\x80"}]',
    b'["CONFIRM", {"kind": 1, "id": "\xed\xa0\x80"}]',
    b'["AUTH", {"id": "\xed\xa0\x80"}]',
)


async def test_frame_with_invalid_utf8_is_refused(edge: Edge) -> None:
    async with wire(edge) as connection:
        await connection.upgrade()
        for payload in (b'["CLOSE", "\xff"]', b'["\xff"]', b"\xff", *SURROGATES):
            await connection.send(masked(payload))
            opcode, answer = await connection.frame()
            assert (opcode, json.loads(answer)[:2]) == (1, ["NOTICE", "json_invalid"])
        await connection.send(masked(b"binary", 0x82))
        assert json.loads((await connection.frame())[1])[1] == "frame_not_text"
        await connection.send(masked(b"ping", 0x89))
        assert await connection.frame() == (10, b"ping")


@pytest.mark.parametrize(
    "frame",
    [
        masked(b"x", 0xF1),  # reserved bits
        masked(b"x", 0x83),  # reserved opcode
        masked(b"x" * 126, 0x89),  # long control frame
        masked(b"x", 0x80),  # continuation of nothing
    ],
)
async def test_broken_websocket_is_closed(edge: Edge, frame: bytes) -> None:
    async with wire(edge) as connection:
        await connection.upgrade()
        await connection.send(frame)
        assert await connection.close_code() == 1002
        assert await connection.read_all() == b""
    assert (await edge.get("/healthz")).status == 200


async def test_frame_too_large_gets_a_notice_and_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", frame_bytes=10_000) as edge, wire(edge) as connection:
        await connection.upgrade()
        await connection.send(masked(b'["CLOSE", "' + b"s" * 20_000 + b'"]'))
        assert json.loads((await connection.frame())[1])[1] == "frame_too_large"
        assert await connection.close_code() == 1009


async def test_peer_that_answers_the_close_frame_gets_no_second_one(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", faults_per_connection=1) as edge, wire(edge) as connection:
        await connection.upgrade()
        await connection.send(masked(b"garbage"))
        assert await connection.close_code() == 1008
        await connection.send(masked(b"\x03\xf0", 0x88))
        assert await connection.read_all() == b""


async def test_stream_that_does_not_log_in_is_closed(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", login_s=0.3) as edge, edge.stream(author) as member, edge.stream() as late:
        assert await late.notice() == "login_too_slow"
        assert await late.receive() == ["END", 1008]
        await member.send("COUNT", "c")
        assert await member.expect("COUNT") == ["c", 0]


async def test_frame_before_the_login_is_small(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", stranger_frame_bytes=10_000) as edge, wire(edge) as connection:
        await connection.upgrade()
        for _ in range(5):  # frames one by one may be more in all
            await connection.send(masked(b'["CLOSE", "' + b"s" * 5_000 + b'"]'))
            assert json.loads((await connection.frame())[1])[1] == "subscription_id_invalid"
        head = masked(b'["CLOSE", "' + b"s" * 1_000_000 + b'"]')[:30_000]  # the rest never comes
        await connection.send(head)
        assert json.loads((await connection.frame())[1])[1] == "frame_too_large"
        assert await connection.close_code() == 1009
        async with edge.stream(author) as member:
            await member.send("CLOSE", "s" * 50_000)
            assert await member.notice() == "subscription_id_invalid"


async def test_fragments_are_bounded_together(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", frame_bytes=10_000) as edge, wire(edge) as connection:
        await connection.upgrade()
        await connection.send(masked(b"[" + b" " * 4_000, 0x01))
        for _ in range(3):
            await connection.send(masked(b" " * 4_000, 0x00))
        assert json.loads((await connection.frame())[1])[1] == "frame_too_large"


async def test_flood_of_commands_is_slowed_and_ended(tmp_path: Path) -> None:
    author = Author()
    async with (
        running(tmp_path / "relay", commands_per_s=1, commands_burst=5, faults_per_connection=10) as edge,
        edge.stream(author) as stream,
        edge.stream(author) as other,
    ):
        for _ in range(40):
            await stream.send("CLOSE", "s")
        codes: list[str] = []
        while (command := await stream.receive())[0] == "NOTICE":
            codes.append(command[1])
        assert command == ["END", 1008]
        assert "commands_too_fast" in codes
        assert len(codes) == 10
        await other.send("COUNT", "c")
        assert await other.expect("COUNT") == ["c", 0]


async def test_garbage_ends_the_connection_after_a_while(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", faults_per_connection=5) as edge, edge.stream() as stream:
        for _ in range(20):
            await stream.socket.send_str("garbage")
        codes = [await stream.notice() for _ in range(5)]
        assert codes == ["json_invalid"] * 5
        assert await stream.receive() == ["END", 1008]


async def test_subscriptions_of_a_connection_are_bounded(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", subscriptions_per_connection=3) as edge, edge.stream(author) as stream:
        for number in range(3):
            await stream.send("REQ", f"s{number}", {"limit": 0})
            await stream.expect("EOSE")
        await stream.send("REQ", "s3", {"limit": 0})
        assert (await stream.expect("CLOSED"))[1]["code"] == "subscriptions_exhausted"
        await stream.send("CLOSE", "s0")
        await stream.send("REQ", "s3", {"limit": 0})
        await stream.expect("EOSE")


async def test_filter_values_of_a_connection_are_bounded(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", filter_values_per_connection=1_000) as edge, edge.stream(author) as stream:
        wanted = {"#t": [str(number) for number in range(400)]}
        for sub, verb in (("a", "EOSE"), ("b", "EOSE"), ("c", "CLOSED")):
            await stream.send("REQ", sub, {"limit": 0}, wanted)
            await stream.expect(verb)
        await stream.send("CLOSE", "a")
        await stream.send("REQ", "c", {"limit": 0}, wanted)
        await stream.expect("EOSE")


async def test_failed_authentication_gets_a_notice_and_closes(edge: Edge, author: Author) -> None:
    async with edge.stream() as first:
        async with edge.stream() as second:
            stolen = author.proof(edge.relay, ("challenge", first.hello["challenge"]))
            await second.send("AUTH", stolen)
            assert await second.notice() == "challenge_invalid"
            assert await second.receive() == ["END", 1008]
        await first.send("AUTH", stolen)
        assert (await first.expect("AUTHED"))[0]["node"] == author.node
        await first.send("AUTH", stolen)
        assert await first.notice() == "already_authenticated"


async def test_silent_peer_is_pinged_and_dropped(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", ping_s=0.2, pong_s=0.2) as edge:
        async with wire(edge) as dead, edge.stream() as alive:
            receiving = asyncio.create_task(alive.receive())  # the library answers pings while it reads
            await dead.upgrade()
            assert (await dead.frame())[0] == 9
            assert await dead.read_all() == b""
            await asyncio.wait({receiving}, timeout=1.0)
            assert not receiving.done()
            assert len(edge.server.context.connections) == 1
            receiving.cancel()
        meters = edge.server.context.meters
        assert meters.counted("posthouse_relay_streams_closed_total", "dead") == 1


async def test_half_a_frame_counts_as_silence(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", ping_s=0.2, pong_s=0.2) as edge, wire(edge) as slow:
        await slow.upgrade()
        await slow.send(masked(b'["CLOSE", "s"]')[:9])
        assert (await slow.frame())[0] == 9
        assert await slow.read_all() == b""


async def test_peer_whose_events_wait_for_the_disk_is_not_dropped(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", ping_s=0.2, pong_s=0.2, events_in_flight=1) as edge, edge.stream() as stream:
        free = threading.Event()
        blocking = edge.server.context.engine.store.submit(lambda unit: free.wait(20))  # the writer is busy with this
        await stream.send("EVENT", author.event())
        answer = asyncio.create_task(stream.receive())
        done, _ = await asyncio.wait({answer}, timeout=1.2)  # several times the interval of the keep-alive
        assert not done
        free.set()
        assert (await answer)[0:3:2] == ["OK", True]
        await blocking
