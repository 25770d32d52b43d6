"""The daemon campaign: three agents on each of two hosts write to each other while everything around them fails.

Each agent waits for its 2xx before it sends the next message, and sends the same message again until it has it; so its
order is known, and so is what was promised. Its program, a process of its own, reads its mail and tells what it was
shown. Between them programs, daemons and the relay are killed, wires cut, disks filled and clocks set.
daemon_checker.py compares what was promised with what the inboxes, the programs and the senders' outboxes say.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from posthouse.client.daemon import AsyncDaemonClient, InboxItem, OutboxRow, calls, daemon_address
from posthouse.client.daemon.async_transport import AsyncTransport
from posthouse.client.daemon.calls import SendOptions
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import DAY_S
from tests.faults.agent_process import AgentProcess, Shown
from tests.faults.agent_program import WAYS
from tests.faults.daemon_between import Manner, between
from tests.faults.daemon_network import Network
from tests.faults.daemon_process import DaemonProcess
from tests.faults.host_faults import filled, write_offset
from tests.faults.relay_process import RelayProcess

PATIENCE_S = 300
#: far longer than the longest wait of a daemon, 30 s, and the receipts after it
SETTLED_S = 120
HOSTS = ("north", "south")
TOPIC = "builds"
#: far above what the campaign sends; the queue may hold all of it
_RELAY_FLAGS = ("--event-rate", "1000000", "--event-burst", "1000000", "--queue-max", "100000")
_PAUSE_S = 0.02
_WATCH_S = 0.3
_PAGE = 500
#: refusals of a daemon that is down, full, or not ready: the program sends again
_AGAIN = ("daemon_unreachable", "daemon_busy", "daemon_stopping", "store_full", "insufficient_storage")
_STEPS_S = (20 * 60, 8 * DAY_S, 31 * DAY_S)
_STATES = ("queued", "sent", "confirmed", "read")


class Agent(NamedTuple):
    """An agent, which is named after the way in which its program reads."""

    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.name}@{self.host}"


AGENTS = tuple(Agent(host, way) for host in HOSTS for way in WAYS)


def body_of(sender: Agent, to: Agent | str, number: int) -> str:
    """Return the text of a message, which is also its client_message_id."""
    return f"{sender}>{to} {number}"


@dataclass
class Ledger:
    """What happened, as the programs saw it."""

    #: sender -> bodies in the order of their 2xx
    accepted: dict[Agent, list[str]] = field(default_factory=dict)
    #: agent -> its inbox, oldest first
    inbox: dict[Agent, list[InboxItem]] = field(default_factory=dict)
    #: agent -> lines that its programs told: a list of messages, or a word
    told: dict[Agent, list[list[Shown] | str]] = field(default_factory=dict)
    #: agent -> inbox ids in the order of its event stream, where one was followed
    heard: dict[Agent, list[str]] = field(default_factory=dict)
    #: host -> rows of its outbox
    outbox: dict[str, list[OutboxRow]] = field(default_factory=dict)
    #: what settled last
    unsettled: str = ""
    #: what was wrong while the campaign ran
    findings: list[str] = field(default_factory=list)
    #: sends that were refused or got no answer, and were repeated
    refusals: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Campaign:
    """A relay, two daemons with a network each, six programs, and the fire."""

    def __init__(self, folder: Path, chance: random.Random, *, has_small_disks: bool = False) -> None:
        self.folder = folder
        self.relay = RelayProcess(folder / "r", *_RELAY_FLAGS)
        self.networks: dict[str, Network] = {}
        self.daemons: dict[str, DaemonProcess] = {}
        self.programs: dict[Agent, AgentProcess] = {}
        self.ledger = Ledger()
        self._chance = chance
        self._has_small_disks = has_small_disks
        self._count = 0
        #: how far each message has come, as last seen
        self._reached: dict[str, int] = {}

    def stores(self) -> list[Path]:
        """Return the files of every store of the campaign."""
        names = ("outbox.db", "inbox.db")
        daemons = [daemon.directory / "main" / name for daemon in self.daemons.values() for name in names]
        return [self.relay.data_dir / "relay.db", *daemons]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything up, and gone afterwards."""
        self.relay.environ["POSTHOUSE_TEST_CLOCK"] = str(self._clock_file("relay"))
        await asyncio.to_thread(self.relay.start)
        try:
            for host in HOSTS:
                network = self.networks[host] = Network(self.relay.port)
                network.is_cut = True  # until the agents are there: the first list of them that a host tells has all
                await network.open()
                daemon = self.daemons[host] = DaemonProcess(self.folder / host[0], network.url)
                daemon.environ["POSTHOUSE_TEST_CLOCK"] = str(self._clock_file(host))
            await asyncio.gather(*(asyncio.to_thread(daemon.start) for daemon in self.daemons.values()))
            await self._introduce()
            yield
        finally:
            for program in self.programs.values():
                await asyncio.to_thread(program.kill)
            for daemon in self.daemons.values():
                await asyncio.to_thread(daemon.kill)
            for network in self.networks.values():
                await network.close()
            await asyncio.to_thread(self.relay.kill)

    async def _introduce(self) -> None:
        """Add the agents, let all of them follow the topic, and start their programs."""
        for agent in AGENTS:
            async with self._client(agent.host, agent.name) as client:
                await client.register(agent.name)
        for network in self.networks.values():
            network.is_cut = False
        async with self._client("north") as client:
            await self._insist(lambda: client.create_topic(TOPIC))
        for agent in AGENTS:
            async with self._client(agent.host, agent.name) as client:
                await self._insist(lambda client=client: client.subscribe(TOPIC))  # type: ignore[misc]
            daemon = self.daemons[agent.host].directory
            program = self.programs[agent] = AgentProcess(agent.name, daemon, self.folder / f"{agent}.log")
            await asyncio.to_thread(program.start)

    @asynccontextmanager
    async def _client(self, host: str, agent: str = "") -> AsyncIterator[AsyncDaemonClient]:
        client = AsyncDaemonClient(daemon_address(self.daemons[host].directory, None), 10, agent)
        try:
            yield client
        finally:
            await client.close()

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeat a call that needs the relay until it succeeds."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(PosthouseError):
                    await call()
                    return
                await asyncio.sleep(_PAUSE_S)

    # the senders

    async def send_all(
        self, sender: Agent, count: int, manner: Manner = "forgetful", *, is_naive: bool = False
    ) -> None:
        """Send numbered messages to every other agent and to the topic, one after the other, and lose answers.

        A naive sender gives its message a new id each time it sends it.
        """
        accepted = self.ledger.accepted.setdefault(sender, [])
        targets: list[Agent | str] = [*(agent for agent in AGENTS if agent != sender), f"#{TOPIC}"]
        async with AsyncExitStack() as stack:
            daemon = self.daemons[sender.host]
            front = await stack.enter_async_context(between(daemon.directory, self.folder / f"{sender}f", manner))
            session = AsyncTransport(daemon_address(front, None), 10, sender.name)
            stack.push_async_callback(session.close)
            for number in range(count):
                target = targets[number % len(targets)]
                body = body_of(sender, target, number)
                await self._send(session, self._address(target), body, is_naive)
                accepted.append(body)
                self._count += 1

    def _address(self, target: Agent | str) -> str:
        return target if isinstance(target, str) else f"{target.name}@{self.daemons[target.host].node}"

    async def _send(self, session: AsyncTransport, to: str, body: str, is_naive: bool) -> None:
        """Send until there is an answer; the repeats are made here, where they are counted."""
        tries = 0
        while True:
            again = f" try {tries}" if is_naive and tries else ""
            options: SendOptions = {"client_message_id": body + again}
            tries += 1
            try:
                await session.execute(replace(calls.send(to, body, options), is_repeatable=False))
                return
            except PosthouseError as failure:
                assert failure.code in _AGAIN, failure
                assert not self.ledger.findings, (self.ledger.findings, self.ledger.faults)
                self.ledger.refusals[failure.code] += 1
                await asyncio.sleep(_PAUSE_S)

    async def listen(self, agent: Agent) -> None:
        """Follow the event stream of an agent, over the ends of its daemon."""
        heard = self.ledger.heard.setdefault(agent, [])
        async with self._client(agent.host, agent.name) as client:
            async for event in client.events():
                if event.event == "message" and event.id is not None:
                    heard.append(event.id)

    async def watch(self) -> None:
        """Look at every outbox again and again: no state goes back, and no receipt comes before its reading."""
        while True:
            for host in HOSTS:
                with suppress(PosthouseError):
                    for row in await self._outbox(host):
                        self._note_state(row)
                if self.daemons[host].has_ended:
                    self.ledger.findings.append(f"ended: the daemon of {host}: {self.daemons[host].child.errors}")
                    return
            await asyncio.sleep(_WATCH_S)

    def _note_state(self, row: OutboxRow) -> None:
        body, state = row.client_message_id, row.state
        if state not in _STATES:
            self.ledger.findings.append(f"state: {body} is {state}: {row.last_error or row.reject_reason}")
            return
        reached, before = _STATES.index(state), self._reached.get(body, 0)
        if reached < before:
            self.ledger.findings.append(f"state: {body} went from {_STATES[before]} back to {state}")
        if state == "read" and before != reached:
            if row.confirmed_at is None:
                self.ledger.findings.append(f"receipt: {body} was read and never confirmed")
            reader = next(agent for agent in AGENTS if f">{agent} " in body)
            if not self.programs[reader].has_told(body):
                self.ledger.findings.append(f"receipt: {body} counts as read, and {reader} was not shown it")
        self._reached[body] = reached

    # faults

    async def burn(self, faults: int, every: int) -> None:
        """Do so many bad things, each after so many more accepted sends."""
        for number in range(faults):
            await self._until(lambda goal=(number + 1) * every: self._count >= goal)  # type: ignore[misc]
            name, fault = self._chance.choice(self._faults())
            self.ledger.faults.append(name)
            await fault()

    def _faults(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        host, agent = self._chance.choice(HOSTS), self._chance.choice(AGENTS)
        network, seconds = self.networks[host], self._chance.uniform(0.05, 0.8)
        step_s = self._chance.choice(_STEPS_S) * self._chance.choice((-1, 1))
        small_s = _STEPS_S[0] * self._chance.choice((-1, 1))
        found: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            (f"kill the program of {agent}", lambda: self.restart_program(agent)),
            (f"kill the program of {agent}", lambda: self.restart_program(agent)),
            (f"kill {host}", lambda: self.restart_daemon(host)),
            ("kill relay", self.restart_relay),
            (f"cut {host}", lambda: network.cut(seconds)),
            (f"slow {host}", lambda: network.slow(self._chance.uniform(0.005, 0.1), seconds)),
            (f"set the clock of {host} by {step_s} s", lambda: self._set_clock(host, step_s, seconds)),
            (f"set the clock of {host} by {step_s} s, kill it", lambda: self._restart_at(host, step_s, seconds)),
            (f"set the clock of the relay by {small_s} s", lambda: self._set_clock("relay", small_s, seconds)),
        ]
        if self._has_small_disks:
            found += [
                (f"fill the disk of {host}", lambda: self._fill(self.folder / host[0], seconds)),
                (f"fill the disk of {host}, kill it", lambda: self._restart_on_full_disk(host)),
                ("fill the disk of the relay", lambda: self._fill(self.folder / "r", seconds)),
            ]
        return found

    async def restart_program(self, agent: Agent) -> None:
        """kill -9, and up again."""
        await asyncio.to_thread(self.programs[agent].kill)
        await asyncio.to_thread(self.programs[agent].start)

    async def restart_relay(self) -> None:
        """kill -9, and up again."""
        await asyncio.to_thread(self.relay.kill)
        await asyncio.sleep(self._chance.uniform(0, 0.2))
        await asyncio.to_thread(self.relay.start)

    async def restart_daemon(self, host: str) -> None:
        """kill -9, and up again."""
        await asyncio.to_thread(self.daemons[host].kill)
        await asyncio.sleep(self._chance.uniform(0, 0.2))
        await asyncio.to_thread(self.daemons[host].start)

    async def _set_clock(self, host: str, by_s: int, seconds: float) -> None:
        """Set a wall clock for a while."""
        with self._stepped(host, by_s):
            await asyncio.sleep(seconds)

    async def _restart_at(self, host: str, by_s: int, seconds: float) -> None:
        """Start a daemon while its clock is wrong."""
        with self._stepped(host, by_s):
            await self.restart_daemon(host)
            await asyncio.sleep(seconds)

    async def _restart_on_full_disk(self, host: str) -> None:
        """Start a daemon on a full disk, where it may refuse to start, and again when there is room."""
        daemon = self.daemons[host]
        with filled(self.folder / host[0]):
            await asyncio.to_thread(daemon.kill)
            with suppress(AssertionError):
                await asyncio.to_thread(daemon.start)
        if daemon.has_ended or not daemon.is_running:
            await asyncio.to_thread(daemon.start)

    async def _fill(self, disk: Path, seconds: float) -> None:
        with filled(disk):
            await asyncio.sleep(seconds)

    @contextmanager
    def _stepped(self, name: str, by_s: int) -> Iterator[None]:
        path = self._clock_file(name)
        write_offset(path, by_s)
        try:
            yield
        finally:
            write_offset(path, 0)

    def _clock_file(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    # afterwards

    async def settle(self) -> None:
        """Wait until every message was read and its sender knows, or for long enough; then write everything down."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_S):
                while not self.ledger.findings:
                    reason = await self._unsettled()
                    if reason is None:
                        break
                    self.ledger.unsettled = reason
                    await asyncio.sleep(_WATCH_S)
        for agent in AGENTS:
            self.ledger.inbox[agent] = await self._inbox(agent)
            self.ledger.told[agent] = self.programs[agent].told()
        for host in HOSTS:
            self.ledger.outbox[host] = await self._outbox(host)

    async def _unsettled(self) -> str | None:
        """Return what is still to come; None if every row is done, every message read, and every post everywhere."""
        try:
            rows = [row for host in HOSTS for row in await self._outbox(host)]
            inboxes = {agent: await self._inbox(agent) for agent in AGENTS}
        except PosthouseError as failure:
            return str(failure)
        for row in rows:
            if row.status != "done" or (row.to_agent and row.state != "read"):
                return f"{row.client_message_id} is {row.status}, {row.state}: {row.last_error}"
        posts = {row.client_message_id for row in rows if not row.to_agent}
        for agent, items in inboxes.items():
            unread = [item.client_message_id for item in items if item.seen_at is None]
            missing = [body for body in posts - {item.client_message_id for item in items} if not is_own(body, agent)]
            if unread or missing:
                return f"{agent} has not read {unread}, and has not got {missing}"
            if agent in self.ledger.heard and len(self.ledger.heard[agent]) < len(items):
                return f"{agent} has not heard of everything"
        return None

    async def _outbox(self, host: str) -> list[OutboxRow]:
        rows: list[OutboxRow] = []
        async with self._client(host) as client:
            while True:
                bound = {"after": rows[-1].id} if rows else {}
                page = await client.outbox(order="oldest", limit=_PAGE, **bound)
                rows += page
                if page.next is None:
                    return rows

    async def _inbox(self, agent: Agent) -> list[InboxItem]:
        """Return every message of an agent, oldest first."""
        items: list[InboxItem] = []
        async with self._client(agent.host, agent.name) as client:
            while True:
                page = await client.inbox(order="oldest", after=items[-1].id if items else None, limit=_PAGE)
                items += page
                if page.next is None:
                    return items

    async def _until(self, is_so: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_so():  # noqa: ASYNC110 - under load means: so much was accepted
                    await asyncio.sleep(0.005)
        except TimeoutError as late:
            states = [await self._health(host) for host in HOSTS]
            raise AssertionError(f"stuck after {self.ledger.faults}, {self.ledger.refusals}: {states}") from late

    async def _health(self, host: str) -> object:
        try:
            async with self._client(host) as client:
                return await client.health()
        except PosthouseError as failure:
            return failure


def is_own(body: str, agent: Agent) -> bool:
    """Return True if an agent sent a message, by its text: no post comes back to its author."""
    return body.startswith(f"{agent}>")
