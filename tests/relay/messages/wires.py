"""Two wires to the same queues, as the table of cases sees them: parties that send, read and confirm.

A case knows nothing of frames; it is run over every wire that implements Wire and Party.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol

from tests.relay.edge import Author, Edge
from tests.relay.messages.correspondents import Event, Reading, confirmation, direct
from tests.relay.messages.waiting import eventually


class Got(NamedTuple):
    """A message as its reader sees it."""

    id: str
    body: str


class SentConfirmation(NamedTuple):
    """A confirmation as the sender of the message gets it."""

    id: str
    was_stored: bool


class Party(Protocol):
    """One identity; it can be connected or away."""

    async def connect(self) -> None:
        """Come and read."""
        ...

    async def disconnect(self) -> None:
        """Go."""
        ...

    async def cut(self) -> None:
        """Lose the connection without a word; return once the relay has noticed."""
        ...

    async def pending(self) -> int:
        """Return how many messages the relay says are waiting, just after connecting."""
        ...

    async def send(self, to: Any, body: str) -> str:
        """Send a message that must be accepted and return its id."""
        ...

    async def send_refused(self, to: Any, body: str) -> tuple[str, str]:
        """Send a message that finds the queue full; return its id and the id the refusal names."""
        ...

    async def receive(self, count: int) -> list[Got]:
        """Return the next messages."""
        ...

    async def confirm(self, sender: Any, *ids: str) -> None:
        """Confirm messages; return once the relay has decided about it."""
        ...

    async def confirmed(self, count: int) -> list[SentConfirmation]:
        """Return the next confirmations of this party's own messages."""
        ...

    async def left(self) -> list[Got]:
        """Return every message that comes until nothing is left that could be sent."""
        ...

    async def unread_confirmations(self) -> list[SentConfirmation]:
        """Return every confirmation that comes until nothing is left that could be sent."""
        ...

    async def block(self, other: Any) -> None: ...

    async def unblock(self, other: Any) -> None: ...


class Wire(Protocol):
    """One way to the queues of a relay."""

    def party(self) -> Party:
        """Return a party with a new key."""
        ...


class StreamWire:
    """Signed events over the relay's own stream."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    def party(self) -> StreamParty:
        return StreamParty(self.edge)


class StreamParty:
    """A node of the mesh main."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.author = Author()
        self._opened = AsyncExitStack()
        self._box: Reading | None = None

    @property
    def box(self) -> Reading:
        assert self._box is not None
        return self._box

    async def connect(self) -> None:
        self._opened = AsyncExitStack()
        stream = await self._opened.enter_async_context(self.edge.stream(self.author))
        self._box = Reading(self.edge, stream, self.author)
        await self._box.open(window=1_000)

    async def disconnect(self) -> None:
        await self._opened.aclose()

    async def cut(self) -> None:
        relay = self.edge.server.context
        before = len(relay.connections)
        response: Any = self.box.stream.socket._response
        response.connection.transport.abort()
        await self._opened.aclose()

        async def is_gone() -> bool:
            return len(relay.connections) < before

        await eventually(is_gone)

    async def pending(self) -> int:
        (count,) = await self.box.next("QUEUE_STATUS")
        return int(count)

    async def send(self, to: StreamParty, body: str) -> str:
        event = direct(self.author, to.author, body)
        reply = await self.edge.post("/v1/events", event)
        assert reply.status == 201, reply.body
        return str(event["id"])

    async def send_refused(self, to: StreamParty, body: str) -> tuple[str, str]:
        event = direct(self.author, to.author, body)
        await self.box.stream.send("EVENT", event)
        named, recipient, _reason = await self.box.next("QUEUE_FULL")
        assert recipient == to.author.node
        return event["id"], named

    async def receive(self, count: int) -> list[Got]:
        return [_got(event) for event, _about in await self.box.delivered(count)]

    async def confirm(self, sender: StreamParty, *ids: str) -> None:
        for start in range(0, len(ids), 50):
            await self.box.stream.send("CONFIRM", confirmation(self.author, sender.author, ids[start : start + 50]))
            await self.box.next("OK")

    async def confirmed(self, count: int) -> list[SentConfirmation]:
        found: list[SentConfirmation] = []
        while len(found) < count:
            found += _confirmed((await self.box.next("CONFIRMED"))[0])
        return found

    async def left(self) -> list[Got]:
        return [_got(command[2]) for command in await self._silence() if command[0] == "DELIVER"]

    async def unread_confirmations(self) -> list[SentConfirmation]:
        return [
            each for command in await self._silence() if command[0] == "CONFIRMED" for each in _confirmed(command[1])
        ]

    async def _silence(self) -> list[list[Any]]:
        """Take what comes until nothing waits for this node; others may be behind."""
        (mailbox,) = self.edge.server.context.engine.sessions._open["main", self.author.node]
        is_over = False
        while not is_over:
            is_over = not mailbox.is_behind  # then the answer to what is asked next comes after everything
            await self.box.stream.send("COUNT", "so far", {"limit": 1})
            while (command := await self.box.stream.receive())[0] != "COUNT":
                self.box.other.append(command)
        return self.box.other

    async def block(self, other: StreamParty) -> None:
        token = await self.edge.token(self.author)
        reply = await self.edge.post("/v1/meshes/main/blocks", {"node": other.author.node}, token)
        assert reply.status in (200, 201), reply.body

    async def unblock(self, other: StreamParty) -> None:
        token = await self.edge.token(self.author)
        path = f"/v1/meshes/main/blocks?node={other.author.node}"
        reply = await self.edge.send("DELETE", path, token=token)
        assert reply.status == 200, reply.body


def _got(event: Event) -> Got:
    return Got(event["id"], event["content"])


def _confirmed(items: Sequence[dict[str, Any]]) -> list[SentConfirmation]:
    return [SentConfirmation(item["id"], item["was_stored"]) for item in items]
