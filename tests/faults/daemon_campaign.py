"""The daemon campaign: two hosts send to a third while everything between them ends again and again.

A sender waits for its 2xx before it sends the next message, and sends the same message again until it has it; so
its order is known, and so is what was promised. daemon_checker.py compares that with the reader's inbox.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from posthouse.client import Client, Pins
from posthouse.client.daemon import AsyncDaemonClient, DaemonClient, InboxItem, OutboxRow, calls, daemon_address
from posthouse.client.daemon.async_transport import AsyncTransport
from posthouse.client.daemon.calls import SendOptions
from posthouse.keys import keyfile
from posthouse.model.errors import PosthouseError
from tests.faults.daemon_between import Manner, between
from tests.faults.daemon_network import Network
from tests.faults.daemon_process import DaemonProcess
from tests.faults.relay_process import RelayProcess

PATIENCE_S = 300
#: far above what the campaign sends; the queue may hold all of it
_RELAY_FLAGS = ("--event-rate", "1000000", "--event-burst", "1000000", "--queue-max", "100000")
_PAUSE_S = 0.02
_PAGE = 1_000


@dataclass
class Ledger:
    """What happened, as the programs saw it."""

    #: sender's name -> bodies in the order of their 2xx
    accepted: dict[str, list[str]] = field(default_factory=dict)
    #: bodies in the order of the reader's inbox
    inbox: list[InboxItem] = field(default_factory=list)
    #: inbox ids in the order a program that listened was told
    heard: list[str] = field(default_factory=list)
    #: sender's name -> rows of its outbox
    outbox: dict[str, list[OutboxRow]] = field(default_factory=dict)
    #: sends that got no answer and were repeated
    repeats: int = 0
    faults: list[str] = field(default_factory=list)


class Campaign:
    """A relay, three daemons with a network each, and the fire."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.relay = RelayProcess(folder / "r", *_RELAY_FLAGS)
        self.networks: dict[str, Network] = {}
        self.daemons: dict[str, DaemonProcess] = {}
        self.ledger = Ledger()
        self._chance = chance
        self._count = 0

    def stores(self) -> list[Path]:
        """Return the files of every store of the campaign."""
        names = ("outbox.db", "inbox.db")
        daemons = [daemon.directory / "main" / name for daemon in self.daemons.values() for name in names]
        return [self.relay.data_dir / "relay.db", *daemons]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything up, and gone afterwards."""
        await asyncio.to_thread(self.relay.start)
        try:
            for name in ("a", "b", "c"):
                network = self.networks[name] = Network(self.relay.port)
                await network.open()
                self.daemons[name] = DaemonProcess(self.folder / name, network.url)
                await asyncio.to_thread(self.daemons[name].start)
            yield
        finally:
            for daemon in self.daemons.values():
                await asyncio.to_thread(daemon.kill)
            for network in self.networks.values():
                await network.close()
            await asyncio.to_thread(self.relay.kill)

    # programs

    async def send_all(self, name: str, count: int, manner: Manner = "forgetful", *, is_naive: bool = False) -> None:
        """Send numbered messages to the reader, one after the other, through somebody who loses answers.

        A naive program gives its message a new id each time it sends it.
        """
        accepted = self.ledger.accepted.setdefault(name, [])
        async with AsyncExitStack() as stack:
            daemon = self.daemons[name]
            front = await stack.enter_async_context(between(daemon.directory, self.folder / f"{name}f", manner))
            session = AsyncTransport(daemon_address(front, None), 10)
            stack.push_async_callback(session.close)
            for number in range(count):
                await self._insist(session, f"{name} {number}", is_naive)
                accepted.append(f"{name} {number}")
                self._count += 1

    async def _insist(self, session: AsyncTransport, body: str, is_naive: bool) -> None:
        """Send until there is an answer; the repeats are made here, where they are counted."""
        options: SendOptions = {} if is_naive else {"client_message_id": body}
        while True:
            call = calls.send(self.daemons["c"].node, body, options)
            try:
                await session.execute(replace(call, is_repeatable=False))
                return
            except PosthouseError as failure:
                assert failure.code in ("daemon_unreachable", "daemon_busy", "daemon_stopping"), failure
                self.ledger.repeats += 1
                await asyncio.sleep(_PAUSE_S)

    async def listen(self) -> None:
        """Hear every message of the reader's daemon, over its ends."""
        client = AsyncDaemonClient(daemon_address(self.daemons["c"].directory, None), 10)
        try:
            async for event in client.events():
                if event.event == "message" and event.id is not None:
                    self.ledger.heard.append(event.id)
        finally:
            await client.close()

    # faults

    async def burn(self, faults: int, every: int) -> None:
        """Do so many bad things, each after so many more accepted sends."""
        for number in range(faults):
            await self._until(lambda goal=(number + 1) * every: self._count >= goal)  # type: ignore[misc]
            name, fault = self._chance.choice(self._faults())
            self.ledger.faults.append(name)
            await fault()

    def _faults(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        who = self._chance.choice("abc")
        network, seconds = self.networks[who], self._chance.uniform(0.05, 0.5)
        return [
            ("kill relay", self.restart_relay),
            (f"kill {who}", lambda: self.restart_daemon(who)),
            ("kill c", lambda: self.restart_daemon("c")),
            (f"cut {who}", lambda: network.cut(seconds)),
            (f"slow {who}", lambda: network.slow(self._chance.uniform(0.005, 0.1), seconds)),
        ]

    async def restart_relay(self) -> None:
        """kill -9, and up again."""
        await asyncio.to_thread(self.relay.kill)
        await asyncio.sleep(self._chance.uniform(0, 0.2))
        await asyncio.to_thread(self.relay.start)

    async def restart_daemon(self, name: str) -> None:
        """kill -9, and up again."""
        await asyncio.to_thread(self.daemons[name].kill)
        await asyncio.sleep(self._chance.uniform(0, 0.2))
        await asyncio.to_thread(self.daemons[name].start)

    # afterwards

    async def settle(self) -> None:
        """Wait until both outboxes are empty and the inbox stands still; then write everything down."""
        for name in ("a", "b"):
            if name in self.ledger.accepted:
                await self._until_empty(name)
        async with DaemonClient(self.daemons["c"].directory) as reader:
            await self._until_read()
            self.ledger.inbox = await _whole_inbox(reader)
        for name in self.ledger.accepted:
            async with DaemonClient(self.daemons[name].directory) as sender:
                self.ledger.outbox[name] = await sender.outbox(limit=500)

    async def await_heard(self) -> None:
        """Wait until the program that listens has heard as much as there is."""
        await self._until(lambda: len(self.ledger.heard) >= len(self.ledger.inbox))

    async def _until_empty(self, name: str) -> None:
        async with DaemonClient(self.daemons[name].directory) as client, asyncio.timeout(PATIENCE_S):
            while (health := await client.health()).queue_depth + health.inflight:  # noqa: ASYNC110 - polled
                await asyncio.sleep(_PAUSE_S)

    async def _until_read(self) -> None:
        """Wait until the reader's queue at the relay is empty: each of its messages is in the inbox then."""
        key = keyfile.load(self.daemons["c"].directory / "main" / "keypair.json")
        async with Client(self.relay.url, key, pins=Pins(None)) as client, asyncio.timeout(PATIENCE_S):
            while await client.queues.rows("main", key.node, limit=1):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(_PAUSE_S)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110 - under load means: so much was accepted
                await asyncio.sleep(0.005)


async def _whole_inbox(reader: AsyncDaemonClient) -> list[InboxItem]:
    """Return every row, oldest first."""
    items: list[InboxItem] = []
    while True:
        page = await reader.inbox(order="oldest", after=items[-1].id if items else None, limit=_PAGE)
        items += page
        if page.next is None:
            return items
