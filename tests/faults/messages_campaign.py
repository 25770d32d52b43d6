"""The message campaign: a backlog is read while reader, relay or the wire between them end again and again.

Messages are numbered in the order they were sent. What the reader wrote down is kept per run of its process;
messages_checker.py compares it with the store.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from posthouse.client import Client, ClientOptions, Confirmed, Pins, Receipt
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, Transient
from tests.faults.child import Child
from tests.faults.relay_process import RelayProcess

PATIENCE_S = 600
WINDOW = 60
#: agents of the senders' hosts, "" for the host itself
AGENTS = ("", "claude", "codex")
READER_AGENT = "gemini"
_LOOK_S = 0.005
_SILENT_LOOKS = 60  # until the relay is asked what is left: to ask costs as much as a message, and a reader may be slow
FLAGS = ("--event-rate", "1000000", "--event-burst", "1000000", "--queue-max", "10000")
OPTIONS = ClientOptions(publish_timeout_s=120, reconnect_most_s=0.2, connect_timeout_s=30)


class Seen(NamedTuple):
    """A message as the reader wrote it down."""

    #: run of the reader's process, and connection within it
    connection: tuple[int, int]
    seq: int
    body: str
    was_stored: bool
    attempt: int


@dataclass
class Ledger:
    """What happened, as sender and reader saw it."""

    #: node id of the reader
    reader: str
    #: body -> message id, in the order sent
    sent: dict[str, str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    #: body -> connection on which its confirmation was answered
    answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: bodies that were handed out after their confirmation was answered, on a later connection
    again: list[str] = field(default_factory=list)
    #: the same on that connection, to whose relay the confirmation was repeated
    overtaken: list[str] = field(default_factory=list)
    #: what senders heard of their readers
    told: list[Confirmed] = field(default_factory=list)
    #: body -> time of its receipt, once the relay has answered it
    receipts: dict[str, int] = field(default_factory=dict)
    #: receipts that senders heard
    heard_receipts: list[Receipt] = field(default_factory=list)
    faults: int = 0


class Correspondence:
    """One reader in a process, its senders, and what they saw."""

    def __init__(
        self, address: Callable[[], str], chance: random.Random, *, manner: str = "careful", window: int = WINDOW
    ) -> None:
        #: where senders find the relay now, and the reader unless `url` is set
        self._address = address
        self.chance = chance
        self.reader_key = NodeKey.generate()
        self.sender_key = NodeKey.generate()
        self.ledger = Ledger(self.reader_key.node)
        self.url = ""
        self._manner = manner
        self._window = window
        self._child: Child | None = None
        self._runs = 0
        self._taken = 0
        self._bodies: set[str] = set()

    def client(self, key: NodeKey) -> Client:
        """Make a client of a sender."""
        return Client(self._address(), key, pins=Pins(None), options=OPTIONS)

    async def send(self, bodies: Sequence[str], key: NodeKey | None = None) -> None:
        """Send messages in order; each is accepted once, whatever happens to the relay meanwhile."""
        async with self.client(key or self.sender_key) as client:
            await client.connect(is_patient=True)
            events = [
                await client.compose(
                    self.reader_key.node,
                    body,
                    client_message_id=bodies[number - number % len(AGENTS)],  # agents share ids
                    from_agent=AGENTS[number % len(AGENTS)],
                    to_agent=READER_AGENT,
                )
                for number, body in enumerate(bodies)
            ]
            for body, event, answer in zip(bodies, events, await client.publish_many(events), strict=True):
                assert not isinstance(answer, PosthouseError), answer
                self.ledger.sent[body] = event.id

    async def start_reader(self) -> None:
        """Start the reader's process."""
        self._runs += 1
        self._taken = 0
        args = (self.url or self._address(), self.reader_key.reveal_seed().hex(), self._window, self._manner)
        self._child = await asyncio.to_thread(Child, "tests.faults.messages_reader", *args)

    async def kill_reader(self) -> None:
        """End the reader without a warning, and take down what it told."""
        if self._child is not None:
            child, self._child = self._child, None
            await asyncio.to_thread(child.kill)
            self.take_down(child.lines)

    async def await_lines(self, count: int) -> bool:
        """Wait until the reader has told so many more lines; return False when there is nothing left for it."""
        goal, silent = self._taken + count, 0
        async with asyncio.timeout(PATIENCE_S):
            while self._read() < goal:
                before = self._taken
                await asyncio.sleep(_LOOK_S)
                silent = 0 if self._read() > before else silent + 1
                if silent == _SILENT_LOOKS:
                    silent = 0
                    if await self.is_empty():
                        return False
        return True

    async def await_reader(self, behind: int) -> None:
        """Wait until the reader has seen all but so many of the messages sent."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.ledger.sent) - self._count_seen() > behind:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(_LOOK_S)

    async def is_empty(self) -> bool:
        """Tell whether nothing waits for the reader any more; no relay may be able to say."""
        try:
            async with self.client(self.reader_key) as client:
                return not await client.queues.rows("main", self.reader_key.node, limit=1)
        except Transient:
            return False

    async def finish(self) -> None:
        """Wait until everything is confirmed; then end the reader, and hear as the sender what it confirmed."""
        async with asyncio.timeout(PATIENCE_S):
            while not await self.is_empty():  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)
        await self.kill_reader()

    async def hear(self, key: NodeKey, count: int) -> None:
        """Open the mailbox of a sender and take down what was confirmed of its messages, so many ids."""
        heard: set[str] = set()
        note = self.ledger.heard_receipts.extend
        async with self.client(key) as client, asyncio.timeout(PATIENCE_S):
            mailbox = await client.receive(on_receipts=note)
            async for confirmed in mailbox.confirmed():
                self.ledger.told.append(confirmed)
                heard.add(confirmed.id)
                if len(heard) == count:
                    return

    def _read(self) -> int:
        if self._child is not None:
            self.take_down(self._child.lines)
        return self._taken

    def _count_seen(self) -> int:
        self._read()
        return len(self._bodies)

    def take_down(self, lines: Sequence[str]) -> None:
        """Note what the present run of the reader has told, of which earlier calls have noted the beginning."""
        for line in lines[self._taken :]:
            kind, *rest = line.split(" ")
            if kind == "C":
                self.ledger.answered[rest[1]] = (self._runs, int(rest[0]))
            elif kind == "R":
                self.ledger.receipts[rest[0]] = int(rest[1])
            else:
                connection, seq, body, was_stored, attempt = rest
                place = (self._runs, int(connection))
                if (answered := self.ledger.answered.get(body)) is not None:
                    (self.ledger.again if answered < place else self.ledger.overtaken).append(body)
                self.ledger.seen.append(Seen(place, int(seq), body, was_stored == "1", int(attempt)))
                self._bodies.add(body)
        self._taken = len(lines)


class Campaign(Correspondence):
    """A correspondence over one relay, and what ends."""

    def __init__(self, folder: Path, chance: random.Random, *, manner: str = "careful", window: int = WINDOW) -> None:
        self.relay = RelayProcess(folder, *FLAGS)
        super().__init__(lambda: self.relay.url, chance, manner=manner, window=window)

    async def kill_relay(self) -> None:
        """End the relay without a warning, and start it again."""
        await asyncio.to_thread(self.relay.kill)
        await asyncio.to_thread(self.relay.start)
