"""The event stream: what happens, as it happens, and what was missed from the inbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from posthouse.daemon.settings import IpcLimits
from tests.client.house import House
from tests.client.waiting import PATIENCE_S, until
from tests.daemon.hosts import Host, host_at


class Stream:
    """An open event stream, read event by event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.comments = 0

    async def next(self, *kinds: str) -> tuple[str | None, str, dict[str, Any]]:
        """Return the next event of some kinds: its id, its kind and its data."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                fields = await self._block()
                if fields and (not kinds or fields["event"] in kinds):
                    return fields.get("id"), fields["event"], json.loads(fields["data"])

    async def comment(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self._block():
                pass

    async def ended(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await self.response.content.read() is not None

    async def _block(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        while (line := (await self.response.content.readline()).decode()) != "\n":
            assert line, "the stream ended"
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
        fields.pop("", None)
        return fields


@asynccontextmanager
async def stream(host: Host, last_id: str | None = None) -> AsyncIterator[Stream]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with host.session.get("http://localhost/v1/events", headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        opened = Stream(response)
        await opened.comment()
        yield opened


async def test_the_event_of_a_new_message_has_its_inbox_id(alice: Host, bob: Host) -> None:
    async with stream(bob) as events:
        await alice.send(bob.node, "line one\nline two")
        event_id, _kind, data = await events.next("message")
        [item] = (await bob.get("/v1/inbox"))["items"]
        assert event_id == item["id"]
        assert data["body"] == "line one\nline two"
        assert data["ts"] == item["received_at"]


async def test_a_stream_resumes_from_the_inbox_without_gap_or_repetition(alice: Host, bob: Host) -> None:
    for number in range(3):
        await alice.send(bob.node, f"m{number}")
    await bob.until_bodies(3)
    first = (await bob.get("/v1/inbox"))["items"][-1]["id"]
    async with stream(bob, first) as events:
        for number in range(3, 6):
            await alice.send(bob.node, f"m{number}")
        seen = [(await events.next("message"))[2]["body"] for _ in range(5)]
    assert seen == ["m1", "m2", "m3", "m4", "m5"]


async def test_an_unknown_last_id_is_refused(bob: Host) -> None:
    answer = await bob.ask("GET", "/v1/events", headers={"Last-Event-ID": "01ARZ3NDEKTSV4RRFFQ69G5FAV"})
    assert answer.status == 404
    await until(lambda: bob.daemon.context.streams.count == 0)


async def test_peers_that_join_and_leave_are_events(house: House, alice: Host) -> None:
    async with stream(alice) as events:
        async with host_at(house, "bob") as bob:
            _id, kind, data = await events.next("peer_join", "peer_leave")
            assert (kind, data["node"]) == ("peer_join", bob.node)
        _id, kind, data = await events.next("peer_join", "peer_leave")
        assert (kind, data["node"]) == ("peer_leave", bob.node)


async def test_changes_of_the_connection_are_events(house: House, alice: Host) -> None:
    async with stream(alice) as events:
        await house.down()
        assert (await events.next("broker_status"))[2]["status"] == "disconnected"
        await house.up()
        assert (await events.next("broker_status"))[2]["status"] == "connected"


async def test_a_silent_stream_has_comments(house: House) -> None:
    async with host_at(house, "a", limits=IpcLimits(comment_s=0.05)) as host, stream(host) as events:
        await events.comment()
        await events.comment()


async def test_a_stream_ends_when_the_daemon_stops(house: House) -> None:
    async with host_at(house, "a") as host, stream(host) as events:
        stopping = asyncio.create_task(host.daemon.stop())
        assert await events.ended()
        await stopping
        host.daemon.stop = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    pass


async def test_a_reader_that_falls_behind_is_ended_and_can_resume(house: House, alice: Host) -> None:
    async with host_at(house, "bob", limits=IpcLimits(stream_events=5)) as bob:
        listener = bob.daemon.events.subscribe(5)
        for number in range(10):
            await alice.send(bob.node, f"m{number}")
        await bob.until_bodies(10)
        assert listener.is_closed
        first = (await bob.get("/v1/inbox"))["items"][-1]["id"]
        async with stream(bob, first) as events:
            assert [(await events.next("message"))[2]["body"] for _ in range(9)] == [f"m{n}" for n in range(1, 10)]
