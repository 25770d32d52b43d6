"""A daemon: what it opens, in which order, how its parts are connected, and how it stops.

Start: the directory and its lock, the identity checked against this machine, the stores after a check for damage,
then the uplink, the bridge, and the local API last, so that a client that can connect finds everything ready. Stop:
the reverse. Nothing of it needs the relay to be reachable. A store or a task that fails for good ends the daemon with
that failure after the stores were closed: a daemon that lives on without its writer would only look healthy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from posthouse.client.messages.sender import Composer
from posthouse.client.trust.signing import Signer, open_content
from posthouse.daemon.addresses import AddressBook
from posthouse.daemon.agents.marks import Marks
from posthouse.daemon.agents.pauses import Pauses
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.bridge import Bridge
from posthouse.daemon.context import DaemonContext
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.drain import Drain
from posthouse.daemon.event_hub import EventHub
from posthouse.daemon.features import Offer, bounded_max_age_h
from posthouse.daemon.housekeeping import Housekeeper, Pressure
from posthouse.daemon.identity import check_host, load_identity, read_host
from posthouse.daemon.inbox.inbox import Inbox, InboxItem
from posthouse.daemon.ipc.local_server import LocalServer
from posthouse.daemon.ipc.routes import ROUTES
from posthouse.daemon.mailroom import LocalLane, Mailroom
from posthouse.daemon.metrics import Meters
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.recovery import check_outbox, quarantine_inbox
from posthouse.daemon.roster import Roster
from posthouse.daemon.send import Sending
from posthouse.daemon.settings import DaemonSettings
from posthouse.daemon.uplink import Uplink
from posthouse.daemon.wake.announcements import Announcer
from posthouse.daemon.wake.waker import Waker
from posthouse.journal.store import exit_process
from posthouse.keys import NodeKey
from posthouse.model.address import Address
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.model.limits import BODY_MAX_BYTES
from posthouse.model.node import KEY_PREFIX_MIN_DIGITS, node_hex, validate_mesh_name
from posthouse.model.ulid import UlidGenerator

log = structlog.get_logger(__name__)
_FATAL_STOP_S = 10.0  # for closing the stores of a daemon that has failed


class Daemon:
    """One running daemon."""

    key: NodeKey
    outbox: Outbox
    inbox: Inbox
    agents: AgentRegistry
    pauses: Pauses
    roster: Roster
    uplink: Uplink
    addresses: AddressBook
    mailroom: Mailroom
    drain: Drain
    sending: Sending
    waker: Waker
    pressure: Pressure
    housekeeper: Housekeeper
    context: DaemonContext
    server: LocalServer

    def __init__(self, settings: DaemonSettings) -> None:
        validate_mesh_name(settings.mesh)
        self.settings = settings
        self.clock = settings.clock
        self.directory = DaemonDirectory(settings.directory)
        self.meters = Meters()
        self.events = EventHub(self.clock)
        self._started_ns = self.clock.boot_ns()
        self._opened = AsyncExitStack()
        self._ended = asyncio.Event()
        self._failure: PosthouseError | None = None
        #: ends the process if the stores of a failed daemon cannot be closed
        self._last_resorts: list[threading.Timer] = []

    @property
    def port(self) -> int | None:
        """The port on loopback, if the daemon listens there."""
        return self.server.port

    async def start(self) -> None:
        """Open everything, or raise why not, with nothing left open."""
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        log.info("daemon_started", node=self.key.node, mesh=self.settings.mesh, relay=self.settings.relay)

    async def wait(self) -> None:
        """Wait until the daemon has to stop; raises the failure that ended it, if there is one."""
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def end(self, failure: PosthouseError | None = None) -> None:
        """Let `wait` return, or raise the failure; only the first call counts."""
        if not self._ended.is_set():
            self._failure = failure
            self._ended.set()

    async def stop(self) -> None:
        """Stop gracefully: accepted messages are committed, and rows in flight are sent again after the next start."""
        if self._failure is not None:
            log.error("daemon_failed", code=self._failure.code, reason=str(self._failure))
        self.context.stop()
        self._ended.set()
        self.events.publish("system", state="stopping")
        self.events.close()
        await self._close()
        log.info("daemon_stopped", node=self.key.node)

    async def _close(self) -> None:
        await self._opened.aclose()
        for last_resort in self._last_resorts:
            last_resort.cancel()

    # opening

    async def _open(self) -> None:
        self.directory.prepare()
        self._opened.callback(self.directory.lock().close)
        self.directory.clear()
        self._opened.callback(self.directory.clear)
        if not self.settings.is_ephemeral:
            self._check_host()
        await self._open_stores()
        self._assemble()
        self._check_max_age()
        await self.mailroom.move_renamed()
        await self._open_bridge()
        await self.housekeeper.measure()
        self._start_task(self.uplink.run())
        self._opened.push_async_callback(self.drain.close)
        await self.drain.start()
        self._start_task(self.housekeeper.run())
        self._opened.push_async_callback(self.waker.close)
        self.waker.commands.start()
        await self._listen()
        self.directory.write_pid()
        if self.settings.ttl_s is not None:
            timer = asyncio.get_running_loop().call_later(self.settings.ttl_s, self.end)
            self._opened.callback(timer.cancel)

    def _check_host(self) -> None:
        directory = self.directory
        if not directory.key.exists():  # a new identity belongs to this machine
            directory.host_fingerprint.unlink(missing_ok=True)
        check_host(directory.host_fingerprint, read_host(), self.settings.clone_policy, directory.root)

    async def _open_stores(self) -> None:
        settings, directory, clock = self.settings, self.directory, self.clock
        check_outbox(directory.outbox)
        quarantined = quarantine_inbox(directory.inbox, clock)
        end_with = self._store_failure_handler()
        self.outbox = Outbox(directory.outbox, settings.mesh, clock, on_fatal=end_with)
        self._opened.callback(self.outbox.close)
        is_bridged = settings.bus_dir is not None
        self.inbox = Inbox(directory.inbox, settings.mesh, clock, is_bridged=is_bridged, on_fatal=end_with)
        self._opened.callback(self.inbox.close)
        self.agents = AgentRegistry(directory.agents, clock, on_fatal=end_with)
        self._opened.callback(self.agents.close)
        self.pauses = Pauses(self.agents.store, self.clock)
        self.agents.on_change.append(self.pauses.reload)
        self.key = await load_identity(directory, self.outbox, is_ephemeral=settings.is_ephemeral)
        reopened = await self.outbox.recover()
        if reopened:
            log.info("outbox_reopened", rows=reopened)
        if quarantined is not None:
            self.events.publish("system", state="inbox_quarantined", path=str(quarantined))

    def _store_failure_handler(self) -> Callable[[Fatal], None]:
        """Return the callback that a store calls, on any thread, when it can write no more.

        If the event loop does not close the stores in time, the process ends without it.
        """
        loop = asyncio.get_running_loop()

        def end_with(fatal: Fatal) -> None:
            last_resort = threading.Timer(_FATAL_STOP_S, exit_process, (fatal,))
            last_resort.daemon = True
            last_resort.start()
            self._last_resorts.append(last_resort)
            loop.call_soon_threadsafe(self.end, fatal)

        return end_with

    def _assemble(self) -> None:
        settings, clock, key = self.settings, self.clock, self.key
        self.roster = Roster(self.directory.roster)
        mailroom = self.mailroom = Mailroom(self.inbox, self.agents)
        self.uplink = Uplink(settings, key, self.inbox, mailroom, self.roster)
        self.addresses = AddressBook(key.node, self.uplink, self.roster, self.agents)
        self.drain = Drain(self.outbox, self.uplink.submit, self.uplink, clock)
        self.drain.lanes[key.node] = LocalLane(
            mailroom, self.inbox, lambda event: open_content(key, event), self.roster.name_of
        )
        self.pressure = Pressure(settings.outbox_max_bytes, self.directory.root)
        self.sending = Sending(
            settings.mesh,
            Composer(Signer(key, clock), UlidGenerator(clock)),
            self.outbox,
            self.inbox,
            self.addresses.resolve,
            lambda event: open_content(key, event),
            lambda: self.pressure.capacity_bytes,
            clock,
        )
        announcer = Announcer(lambda: (self.inbox,), self.roster.name_of)
        self.waker = Waker(self.agents, self.pauses, announcer, self._address_of, clock)
        self.housekeeper = Housekeeper(self.outbox, self.inbox, self.agents, self.drain, self.pressure, settings)
        self.context = DaemonContext(
            settings,
            clock,
            key,
            self.outbox,
            self.inbox,
            self.agents,
            Marks(self.agents.store),
            self.pauses,
            self.roster,
            self.uplink,
            self.addresses,
            self.mailroom,
            self.sending,
            self.waker,
            self.events,
            self.meters,
            self._started_ns,
        )
        self._connect_parts()

    def _connect_parts(self) -> None:
        events, uplink, drain, meters = self.events, self.uplink, self.drain, self.meters
        self.outbox.on_queued = drain.wake
        self.inbox.on_new.append(self._publish_messages)
        self.inbox.on_new.append(lambda items: self.waker.on_mail(item.agent for item in items))
        events.on_event = lambda event: meters.count("posthouse_daemon_events_total", event)
        uplink.on_status = lambda status: events.publish("broker_status", status=status)
        uplink.on_presence = lambda presence: events.publish(
            "peer_join" if presence.is_online else "peer_leave",
            node=presence.node,
            name=self.roster.name_of(presence.node),
        )
        uplink.on_offer = self._apply_offer
        uplink.on_task_end = self._on_task_end
        drain.on_sent = lambda count: meters.count("posthouse_daemon_outbox_sent_total", by=count)
        drain.on_dead = self._publish_dead
        drain.on_task_end = self._on_task_end
        self.pressure.on_change = lambda used, capacity, is_high: events.publish(
            "outbox_pressure", bytes=used, max_bytes=capacity, is_high=is_high
        )

    def _check_max_age(self) -> None:
        """Check a configured maximum age against the relay's last known offer, before the relay is connected."""
        max_age_h = self.settings.outbox_max_age_h
        retention = self.roster.retention
        if retention is not None:
            self.drain.max_age_h = bounded_max_age_h(retention.days, max_age_h)
        elif max_age_h is not None:
            self.drain.max_age_h = max_age_h

    async def _open_bridge(self) -> None:
        if self.settings.bus_dir is not None:
            bridge = Bridge(
                self.settings.bus_dir, self.settings.mesh, self.inbox, self.outbox, self.sending, self.clock
            )
            bridge.on_task_end = self._on_task_end
            await bridge.start()
            self._opened.push_async_callback(bridge.close)

    async def _listen(self) -> None:
        self.server = LocalServer(self.context, self.directory, ROUTES)
        await self.server.start()
        self._opened.push_async_callback(self.server.close)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_task_end)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._opened.push_async_callback(cancel)

    def _address_of(self, agent: str) -> str:
        node = self.key.node
        return str(Address(agent, self.roster.name_of(node) or node_hex(node)[:KEY_PREFIX_MIN_DIGITS]))

    # callbacks

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        failure = task.exception()
        if isinstance(failure, PosthouseError):
            log.error("task_failed", code=failure.code, reason=str(failure))
            self.end(failure)
        elif failure is not None:
            log.error("task_failed", exc_info=failure)
            self.end(error("internal", reason=f"{type(failure).__name__}: {failure}"))

    def _publish_messages(self, items: Sequence[InboxItem]) -> None:
        self.meters.count("posthouse_daemon_inbox_received_total", by=len({item.id for item in items}))
        for item in items:
            self.events.publish_message(item.id, item.position, item.to_api(), item.received_at_ns, item.agent)

    def _publish_dead(self, row_id: str, client_message_id: str, reason: str) -> None:
        self.meters.count("posthouse_daemon_outbox_dead_total", reason)
        self.events.publish("outbox_dead", row_id=row_id, client_message_id=client_message_id, reason=reason)

    def _apply_offer(self, offer: Offer, max_age_h: int) -> None:
        self.drain.max_age_h = max_age_h
        self.sending.max_payload = min(offer.max_payload, BODY_MAX_BYTES)
        log.info("relay_offer", retention_days=offer.retention_days, policy=offer.policy, max_age_h=max_age_h)
