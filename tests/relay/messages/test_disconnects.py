"""Connections that break at every point of a backlog: nothing lost, order kept, everything confirmed once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.relay.edge import Author, Edge, Stream
from tests.relay.messages.correspondents import Event, confirmation, direct, reading, states
from tests.relay.messages.waiting import eventually

BACKLOG = 1_000
CUTS = (0, 1, 2, 3, 49, 50, 51, 52, 99, 100, 101, 250, 499, 500, 501)


def cut(stream: Stream) -> None:
    """Break a connection without a word."""
    response: Any = stream.socket._response
    response.connection.transport.abort()


async def quiet(edge: Edge) -> None:
    """Wait until the relay has noticed that all connections are gone and has accepted what they brought."""
    relay = edge.server.context

    async def is_quiet() -> bool:
        return not relay.connections and relay.engine.statistics()["accept"]["events_on_the_way"] == 0

    await eventually(is_quiet)


class Reader:
    """A reader that remembers what it saw, over all its connections."""

    def __init__(self, edge: Edge, reader: Author, sender: Author, seed: int) -> None:
        self.edge = edge
        self.reader = reader
        self.sender = sender
        self.rng = random.Random(seed)
        #: id -> what was said of it, each time
        self.seen: dict[str, list[dict[str, Any]]] = {}
        self.first_seen: list[str] = []
        #: ids of confirmations that were handed to the network
        self.tried: set[str] = set()

    async def read(self, commands: int) -> None:
        """Take so many commands on one connection, confirm some of the messages, and break it."""
        await quiet(self.edge)
        waiting = await self.edge.server.context.engine.store.deliveries.waiting("main", self.reader.node, 0)
        commands = min(commands, waiting + 2)
        seqs: list[int] = []
        async with self.edge.stream(self.reader) as stream:
            await stream.send("RECEIVE", "main", {"window": 200})
            held: list[str] = []
            for _ in range(commands if waiting else 1):
                command = await stream.receive()
                if command[0] == "QUEUE_STATUS":
                    assert command[1] == waiting
                if command[0] == "DELIVER":
                    seqs.append(command[1])
                    self._note(command[2], command[3])
                    held.append(command[2]["id"])
                if len(held) >= 30:
                    await self._confirm(stream, held)
                    held = []
            if self.rng.random() < 0.5 and held:
                await self._confirm(stream, held)
            cut(stream)
        assert seqs == sorted(set(seqs))

    def _note(self, event: Event, about: dict[str, Any]) -> None:
        if event["id"] not in self.seen:
            self.first_seen.append(event["id"])
        self.seen.setdefault(event["id"], []).append(about)

    async def _confirm(self, stream: Stream, ids: list[str]) -> None:
        chosen = [id_ for id_ in ids if self.rng.random() < 0.8] or ids
        self.tried.update(chosen)
        await stream.send("CONFIRM", confirmation(self.reader, self.sender, chosen[:50]))


@pytest.mark.parametrize("seed", [1, 2])
async def test_backlog_survives_connections_cut_at_every_point(
    edge: Edge, alice: Author, bob: Author, seed: int
) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(BACKLOG)]
    await edge.publish(*messages)
    reader = Reader(edge, bob, alice, seed)
    rest: list[str] = []
    async with asyncio.timeout(100):
        for commands in (*CUTS, *(reader.rng.randrange(1, 250) for _ in range(15))):
            await reader.read(commands)
        await quiet(edge)
        async with reading(edge, bob, window=1000) as box:
            if any(command[0] == "QUEUE_STATUS" for command in await box.silence()):
                (count,) = await box.next("QUEUE_STATUS")
                rest = [event["id"] for event, _ in await box.delivered(count)]
            for start in range(0, len(rest), 50):
                assert (await box.confirm(alice, *rest[start : start + 50]))[1] is True
    ids = [message["id"] for message in messages]
    places = {id_: place for place, id_ in enumerate(ids)}
    assert set(rest) | reader.tried == set(ids)
    assert [places[id_] for id_ in rest] == sorted(places[id_] for id_ in rest)
    assert [places[id_] for id_ in reader.first_seen] == sorted(places[id_] for id_ in reader.first_seen)
    for said in reader.seen.values():
        assert all(about["was_stored"] for about in said)
        attempts = [about["attempt"] for about in said]
        assert attempts == sorted(set(attempts))
    for id_ in (ids[0], ids[499], ids[999]):
        assert await states(edge, alice, id_) == {bob.node: "confirmed"}
    async with reading(edge, alice) as box:
        await box.silence()
        confirmed = [item["id"] for command in box.other if command[0] == "CONFIRMED" for item in command[1]]
        while len(confirmed) < BACKLOG:
            confirmed += [item["id"] for item in (await box.next("CONFIRMED"))[0]]
    assert sorted(confirmed) == sorted(ids)
