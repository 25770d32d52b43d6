"""Senders and readers of messages on real sockets."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.relay.edge import Author, Edge, Reply, Stream

MESSAGE, CONFIRMATION = 1000, 1001
_ids = itertools.count(1)

Event = dict[str, Any]


def direct(sender: Author, reader: Author, body: str = "hello", c: str | None = None, *tags: Sequence[str]) -> Event:
    """Return a direct message in the clear."""
    named = [("p", reader.node), ("c", c or f"c-{next(_ids)}"), *tags]
    return sender.event(MESSAGE, body, named)


def post(sender: Author, topic: str, body: str = "hello", c: str | None = None, *tags: Sequence[str]) -> Event:
    """Return a message to a topic."""
    return sender.event(MESSAGE, body, [("t", topic), ("c", c or f"c-{next(_ids)}"), *tags])


def confirmation(reader: Author, sender: Author, ids: Sequence[str], *tags: Sequence[str]) -> Event:
    """Return a confirmation of messages of one sender."""
    return reader.event(CONFIRMATION, "", [("p", sender.node), *(("e", id_) for id_ in ids), *tags])


class Reading:
    """A stream with an open mailbox."""

    def __init__(self, edge: Edge, stream: Stream, reader: Author) -> None:
        self.edge = edge
        self.stream = stream
        self.reader = reader
        self.roster: list[dict[str, Any]] = []
        #: commands that no test has asked for yet
        self.other: list[list[Any]] = []

    async def open(self, mesh: str = "main", **options: Any) -> None:
        """Send RECEIVE and wait for the ROSTER."""
        await self.stream.send("RECEIVE", mesh, options)
        self.roster = (await self.next("ROSTER"))[1]

    async def next(self, verb: str) -> list[Any]:
        """Return the arguments of the next command with this verb; others are kept."""
        for number, command in enumerate(self.other):
            if command[0] == verb:
                return self.other.pop(number)[1:]
        while True:
            command = await self.stream.receive()
            if command[0] == verb:
                return command[1:]
            assert command[0] != "END" or verb == "END", command
            self.other.append(command)

    async def delivered(self, count: int) -> list[tuple[Event, dict[str, Any]]]:
        """Return the next messages and what is said of them."""
        found = [await self.next("DELIVER") for _ in range(count)]
        return [(event, about) for _seq, event, about in found]

    async def bodies(self, count: int) -> list[str]:
        """Return the bodies of the next messages."""
        return [event["content"] for event, _ in await self.delivered(count)]

    async def confirm(self, sender: Author, *ids: str) -> list[Any]:
        """Confirm messages and return the OK."""
        event = confirmation(self.reader, sender, ids)
        await self.stream.send("CONFIRM", event)
        return await self.next("OK")

    async def silence(self) -> list[list[Any]]:
        """Return everything that comes until nothing is left that could be sent."""
        mailboxes = self.edge.server.context.engine.sessions

        async def is_sent() -> bool:
            return mailboxes.statistics()["behind"] == 0

        await self._reading_until(is_sent)
        await self.stream.send("COUNT", "silence", {"limit": 1})
        while (command := await self.stream.receive())[0] != "COUNT":
            self.other.append(command)
        return self.other

    async def _reading_until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Receive commands until something holds: pings are answered only while a client reads."""
        while not await holds():
            await self.stream.send("COUNT", "so far", {"limit": 1})
            while (command := await self.stream.receive())[0] != "COUNT":
                self.other.append(command)


@asynccontextmanager
async def reading(edge: Edge, reader: Author, mesh: str = "main", **options: Any) -> AsyncIterator[Reading]:
    """Open the mailbox of a reader."""
    async with edge.stream(reader) as stream:
        mailbox = Reading(edge, stream, reader)
        await mailbox.open(mesh, **options)
        yield mailbox


async def send(edge: Edge, *messages: Event) -> list[Reply]:
    """Send messages one by one over HTTP."""
    return [await edge.post("/v1/events", message) for message in messages]


async def states(edge: Edge, viewer: Author, message_id: str) -> dict[str, str]:
    """Return the state of a message per recipient, as a node sees it."""
    reply = await edge.get(f"/v1/messages/{message_id}", await edge.token(viewer))
    assert reply.status == 200, reply.body
    return {each["recipient"]: each["state"] for each in reply.value["deliveries"]}
