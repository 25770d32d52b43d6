"""GET /v1/events/stream: a subscription over HTTP with the rules of the WebSocket, resumable with what it sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from posthouse.model.clock import FakeClock
from tests.relay.edge import PATIENCE_S, Author, Edge, running
from tests.relay.hostile.test_slow_readers import MANY, narrow, publish_many
from tests.relay.hostile.wire import wire


class Lines:
    """A reader of NDJSON, line by line."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> dict[str, Any]:
        """Return the next line that is not empty; {} at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.response.content.readline():
                if line.strip():
                    found: dict[str, Any] = json.loads(line)
                    return found
        return {}

    async def until(self, kind: str) -> list[dict[str, Any]]:
        lines = [await self.next()]
        while lines[-1].get("type") != kind:
            lines.append(await self.next())
            assert lines[-1], lines
        return lines

    async def contents(self, count: int) -> list[str]:
        return [(await self.next())["event"]["content"] for _ in range(count)]


@asynccontextmanager
async def opened(edge: Edge, author: Author, query: str = "", **headers: str) -> AsyncIterator[Lines]:
    token = await edge.token(author)
    sent = {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): text for name, text in headers.items()}
    url = URL(f"{edge.url}/v1/events/stream{query}", encoded=True)
    async with edge.session.get(url, headers=sent) as response:
        assert response.status == 200, await response.read()
        yield Lines(response)


def contents(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"]["content"] for line in lines if line["type"] == "event"]


async def test_stored_events_then_eose_then_live_ones_as_lines(edge: Edge, author: Author) -> None:
    seqs = await edge.publish(*(author.event(content=f"stored {number}") for number in range(3)))
    async with opened(edge, author, "?kinds=1") as lines:
        assert lines.response.headers["Content-Type"] == "application/x-ndjson"
        stored = await lines.until("eose")
        assert contents(stored) == ["stored 0", "stored 1", "stored 2"]
        assert [line["event"]["seq"] for line in stored[:-1]] == seqs
        await edge.publish(author.event(content="live"), author.event(2, "other kind"), author.event(content="more"))
        assert await lines.contents(2) == ["live", "more"]


async def test_any_cursor_resumes_without_gap_or_repetition(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(4)))
    async with opened(edge, author) as lines:
        seen = await lines.until("eose")
    await edge.publish(author.event(content="missed"))
    async with opened(edge, author, f"?cursor={seen[-1]['cursor']}") as lines:
        assert contents(await lines.until("eose")) == ["missed"]
    async with opened(edge, author, f"?cursor={seen[1]['cursor']}") as lines:
        assert contents(await lines.until("eose")) == ["2", "3", "missed"]


async def test_server_sent_events_carry_type_cursor_and_the_same_object(edge: Edge, author: Author) -> None:
    await edge.publish(author.event(content="two\nlines"))
    async with opened(edge, author, Accept="text/event-stream") as lines:
        assert lines.response.headers["Content-Type"] == "text/event-stream"
        async with asyncio.timeout(PATIENCE_S):
            block = await lines.response.content.readuntil(b"\n\n")
        kind, identity, data = block.decode().strip().split("\n")
    value = json.loads(data.removeprefix("data: "))
    assert (kind, identity) == ("event: event", f"id: {value['cursor']}")
    assert value["event"]["content"] == "two\nlines"


async def test_last_event_id_wins_over_the_address_it_was_opened_with(edge: Edge, author: Author) -> None:
    async with opened(edge, author, "?format=sse&limit=0") as lines:
        async with asyncio.timeout(PATIENCE_S):
            block = (await lines.response.content.readuntil(b"\n\n")).decode()
    last = block.split("id: ")[1].split("\n")[0]
    await edge.publish(author.event(content="while away"), author.event(content="and more"))
    async with opened(edge, author, "?limit=0", Last_Event_ID=last) as lines:
        assert contents(await lines.until("eose")) == ["while away", "and more"]


async def test_limit_begins_with_the_newest(edge: Edge, author: Author) -> None:
    await edge.publish(*(author.event(content=str(number)) for number in range(10)))
    async with opened(edge, author, "?limit=3") as lines:
        assert contents(await lines.until("eose")) == ["7", "8", "9"]


async def test_several_filters_as_json_select_an_event_once(edge: Edge, author: Author) -> None:
    await edge.publish(author.event(1, "a"), author.event(2, "b"), author.event(3, "c"))
    first, second = quote('{"kinds":[1,2]}'), quote(json.dumps({"kinds": [2], "since_ns": "0"}))
    async with opened(edge, author, f"?filter={first}&filter={second}") as lines:
        assert contents(await lines.until("eose")) == ["a", "b"]


async def test_ephemeral_event_has_neither_seq_nor_cursor(edge: Edge, author: Author) -> None:
    async with opened(edge, author, "?limit=0") as lines:
        await lines.until("eose")
        await edge.publish(author.event(21_000, "now"))
        line = await lines.next()
    assert (line["event"]["content"], line["event"]["seq"], line["cursor"]) == ("now", None, None)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?cursor=nonsense", 400, "cursor_invalid"),
        ("?cursor=" + "A" * 32, 409, "cursor_reset"),
        ("?format=xml", 400, "parameter_invalid"),
        ("?format=sse&format=sse", 400, "parameter_invalid"),
        ("?kinds=none", 400, "filter_invalid"),
        ("?limit=501", 400, "filter_invalid"),
        ("?filter={", 400, "json_invalid"),
        ("?filter=%7B%7D&kinds=1", 400, "parameter_invalid"),
        ("?order=desc", 400, "filter_invalid"),
        ("?mesh=secret", 404, "mesh_unknown"),
    ],
)
async def test_bad_request_is_a_problem_with_its_status(
    edge: Edge, author: Author, query: str, status: int, code: str
) -> None:
    reply = await edge.get("/v1/events/stream" + query, await edge.token(author))
    assert (reply.status, reply.code) == (status, code)


async def test_stream_needs_a_token(edge: Edge) -> None:
    reply = await edge.get("/v1/events/stream")
    assert (reply.status, reply.code) == (401, "authentication_required")


async def test_head_answers_without_a_stream(edge: Edge, author: Author) -> None:
    reply = await edge.send("HEAD", "/v1/events/stream", token=await edge.token(author))
    assert (reply.status, reply.body) == (200, b"")
    assert not edge.server.context.event_streams


async def test_client_of_http_1_0_gets_plain_lines_and_the_end_of_the_connection(edge: Edge, author: Author) -> None:
    await edge.publish(author.event(content="plain"))
    token = (await edge.token(author)).encode()
    async with wire(edge) as client:
        await client.send(
            b"GET /v1/events/stream HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % token
        )
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert json.loads(await client.reader.readline())["event"]["content"] == "plain"


async def test_member_that_is_removed_gets_closed_with_the_reason(edge: Edge, author: Author) -> None:
    token = await edge.token(author)
    await edge.post("/v1/meshes", {"name": "team"}, token)
    guest = Author()
    await edge.post("/v1/meshes/team/members", {"node": guest.node, "name": "guest", "role": "reader"}, token)
    async with opened(edge, guest, "?mesh=team&limit=0") as named, opened(edge, guest, "?limit=0") as every:
        await named.until("eose")
        await every.until("eose")
        await edge.send("DELETE", f"/v1/meshes/team/members?node={guest.node}", token=token)
        closed = await named.next()
        assert (closed["type"], closed["problem"]["code"]) == ("closed", "not_member")
        assert await named.next() == {}
        await edge.publish(author.event(content="hidden", tags=[("mesh", "team")]), author.event(content="main"))
        assert await every.contents(1) == ["main"]


async def test_stop_of_the_relay_ends_the_stream_with_a_cursor(tmp_path: Path, author: Author) -> None:
    async with running(tmp_path / "relay") as edge:
        await edge.publish(author.event(content="before"))
        async with opened(edge, author) as lines:
            stored = await lines.until("eose")
            await edge.server.stop()
            closed = await lines.next()
            assert (closed["type"], closed["problem"]["code"]) == ("closed", "relay_stopping")
            assert closed["cursor"] == stored[-1]["cursor"]
            assert await lines.next() == {}


async def test_stream_ends_when_its_token_expires(tmp_path: Path) -> None:
    clock = FakeClock()
    author = Author(clock)
    async with running(tmp_path / "relay", clock, ping_s=0.05) as edge, opened(edge, author) as lines:
        await lines.until("eose")
        clock.advance(86_400)
        assert (await lines.next())["problem"]["code"] == "token_invalid"


async def test_silent_stream_gets_empty_lines(tmp_path: Path, author: Author) -> None:
    async with running(tmp_path / "relay", ping_s=0.05) as edge, opened(edge, author) as lines:
        await lines.until("eose")
        async with asyncio.timeout(PATIENCE_S):
            assert await lines.response.content.readline() == b"\n"


async def test_stream_of_a_client_that_left_is_released(edge: Edge, author: Author) -> None:
    async with opened(edge, author) as lines:
        await lines.until("eose")
        assert len(edge.server.context.live) == len(edge.server.context.event_streams) == 1
        lines.response.close()
        async with asyncio.timeout(PATIENCE_S):
            while edge.server.context.event_streams:
                await edge.get("/v1/info")
    assert len(edge.server.context.live) == 0


async def test_reader_that_does_not_read_gets_closed_with_a_cursor_that_resumes(tmp_path: Path) -> None:
    author = Author()
    async with running(tmp_path / "relay", buffer_events=100) as edge, wire(edge) as stalled:
        narrow(stalled)
        token = (await edge.token(author)).encode()
        await stalled.send(
            b"GET /v1/events/stream?limit=0 HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % token
        )
        await stalled.reader.readuntil(b"\r\n\r\n")
        assert b"eose" in await stalled.reader.readline()
        stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await publish_many(edge, author, MANY)
        assert edge.server.context.meters.counted("posthouse_relay_slow_readers_total") == 1
        stalled.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE_S):
            lines = [json.loads(line) for line in (await stalled.reader.read(-1)).splitlines() if line]
        assert lines[-1]["problem"]["code"] == "reader_too_slow"
        seen = [int(text.split()[0]) for text in contents(lines)]
        async with opened(edge, author, f"?cursor={lines[-1]['cursor']}") as rest:
            seen += [int(text.split()[0]) for text in contents(await rest.until("eose"))]
        assert seen == list(range(MANY))


async def test_streams_of_one_member_are_limited_as_its_connections(tmp_path: Path) -> None:
    async with running(tmp_path / "relay", connections_per_node=2) as edge:
        token = await edge.token(edge.admin)
        async with opened(edge, edge.admin), opened(edge, edge.admin):
            headers = {"Authorization": f"Bearer {token}"}
            async with (
                aiohttp.ClientSession() as other,
                other.get(f"{edge.url}/v1/events/stream", headers=headers) as refused,
            ):
                assert (await refused.json(content_type=None))["code"] == "connections_exhausted"


async def test_nanoseconds_are_text_for_a_caller_that_asks(edge: Edge, author: Author) -> None:
    event = author.event(content='{"at_ns":5}')
    await edge.publish(event)
    text = str(event["created_at_ns"])
    async with opened(edge, author, Posthouse_Ns="string") as lines:
        sent = (await lines.next())["event"]
    page = await edge.send("GET", "/v1/events", token=await edge.token(author), headers={"Posthouse-Ns": "string"})
    assert sent["created_at_ns"] == page.value["events"][0]["created_at_ns"] == text
    assert sent["content"] == page.value["events"][0]["content"] == event["content"]
    reply = await edge.send("GET", "/v1/info", headers={"Posthouse-Ns": "number"})
    assert (reply.status, reply.code) == (400, "parameter_invalid")


async def test_nanoseconds_are_accepted_as_text(edge: Edge, author: Author) -> None:
    event = author.event(content="from JavaScript")
    as_text = event | {"created_at_ns": str(event["created_at_ns"])}
    assert (await edge.post("/v1/events", as_text)).status == 201
    given = (await edge.post("/v1/auth/challenge", {"pubkey": author.node})).value
    proof = author.proof(given["relay"], ("challenge", given["challenge"]))
    login = await edge.post("/v1/auth", {"event": proof | {"created_at_ns": str(proof["created_at_ns"])}})
    assert login.status == 200
    stored = await edge.get(f"/v1/events/{event['id']}", login.value["token"])
    assert stored.value["created_at_ns"] == event["created_at_ns"]
    for wrong in ("01", "-1", "1e3", "", "99999999999999999999"):
        assert (await edge.post("/v1/events", event | {"created_at_ns": wrong})).status == 400
