"""Messages over three relays of one database, while relays, the database and the connections to it fail.

Clients know all relays and begin at different ones. Whatever fails: nothing that was answered is lost, nothing is
stored twice or handed out by a session that was opened after its confirmation, each reader gets its mail in order, and
the audit finds nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from posthouse.client.daemon import AsyncDaemonClient, daemon_address
from posthouse.relay.ops.server_copy import backup_server
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.faults.campaign import chance, rounds
from tests.faults.cluster_relays import ClusterRelays
from tests.faults.daemon_process import DaemonProcess
from tests.faults.messages_campaign import Correspondence
from tests.faults.messages_checker import check_messages
from tests.postgresql.server import PostgresServer
from tests.relay.both_stores import server_findings

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.xdist_group("cluster")]
LIMIT_S = rounds(300, 1_200)  # far longer than a run takes on a quiet machine
BURST = 20
AHEAD = 200  # far from the length of a queue
#: what every run does; the others come by chance
ALWAYS = ("restart the database", "kill in a transaction", "lose the answer to COMMIT")


class Sender:
    """Sends numbered messages to one reader until it is told to stop."""

    def __init__(self, correspondence: Correspondence, name: str) -> None:
        self.correspondence = correspondence
        self._name = name
        self.bursts = 0

    async def serve(self, stop: asyncio.Event) -> None:
        """Send bursts, never so far ahead that the queue would be full."""
        while not stop.is_set():
            await self.correspondence.await_reader(AHEAD)
            first = self.bursts * BURST
            await self.correspondence.send([f"{self._name}-{number}" for number in range(first, first + BURST)])
            self.bursts += 1


class Host:
    """A daemon that sends numbered messages to another one."""

    def __init__(self, process: DaemonProcess) -> None:
        self.process = process
        #: bodies that the daemon has taken, in order
        self.sent: list[str] = []

    async def serve(self, to: Host, stop: asyncio.Event) -> None:
        """Send until it is told to stop."""
        async with self._client() as client:
            while not stop.is_set():
                body = f"letter {len(self.sent)}"
                await client.send(to.process.node, body, client_message_id=body)
                self.sent.append(body)
                await asyncio.sleep(0.05)  # a person writes no faster

    async def received(self, count: int) -> list[str]:
        """Return the whole inbox, oldest first, once it has so many messages."""
        async with self._client() as client:
            while True:
                bodies, last = [], None
                while page := await client.inbox(order="oldest", after=last, limit=500):
                    bodies += [str(item.body) for item in page]
                    last = page[-1].id
                if len(bodies) >= count:
                    return bodies
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncDaemonClient]:
        client = AsyncDaemonClient(daemon_address(self.process.directory, None), 10, "")
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def running_hosts(folder: Path, relays: ClusterRelays, count: int) -> AsyncIterator[list[Host]]:
    """Daemons that know all relays."""
    async with AsyncExitStack() as stack:
        hosts = [Host(DaemonProcess(folder / f"h{number}", relays.url(number + 1))) for number in range(count)]
        for host in hosts:
            stack.callback(host.process.kill)
        await asyncio.gather(*[asyncio.to_thread(host.process.start) for host in hosts])
        yield hosts


async def fail_all_the_time(relays: ClusterRelays, senders: Sequence[Sender], faults: int) -> None:
    """Let one thing after the other fail; each time everybody goes on before the next."""
    kinds = list(ALWAYS)
    while len(kinds) < faults:
        kinds += relays.kinds()
    for kind in kinds[:faults]:
        await relays.harm(kind)
        goals = [sender.bursts + 1 for sender in senders]
        while any(sender.bursts < goal for sender, goal in zip(senders, goals, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_messages_survive_everything_that_fails_around_three_relays(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    relays = ClusterRelays(tmp_path, postgres, database, chance("cluster messages"))
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(LIMIT_S))
        await stack.enter_async_context(relays.running())
        hosts = await stack.enter_async_context(running_hosts(tmp_path, relays, rounds(2, 4)))
        pairs = [correspond(relays, number, stack) for number in range(rounds(2, 10))]
        senders = [Sender(pair, f"sender{number}") for number, pair in enumerate(pairs)]
        for pair in pairs:
            await pair.start_reader()
        async with asyncio.TaskGroup() as work:
            for sender in senders:
                work.create_task(sender.serve(stop))
            for host, to in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
                work.create_task(host.serve(to, stop))
            await fail_all_the_time(relays, senders, rounds(4, 60))
            stop.set()
        for pair in pairs:
            await pair.finish()
            await pair.hear(pair.sender_key, len(pair.ledger.sent))
        for host, to in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
            assert host.sent and await to.received(len(host.sent)) == host.sent
    copy = tmp_path / "copy"
    copy.mkdir()
    await asyncio.to_thread(backup_server, database, copy / FILE_NAME)
    assert check_messages(copy, *[pair.ledger for pair in pairs], has_several=True) == [], relays.done
    assert server_findings(database) == []


def correspond(relays: ClusterRelays, number: int, stack: AsyncExitStack) -> Correspondence:
    """Return a reader and its sender that begin at one of the relays; the reader ends with the stack."""
    pair = Correspondence(lambda: relays.url(number), relays.chance)
    stack.push_async_callback(pair.kill_reader)
    return pair
