"""One mesh of a daemon: this host as a node of it, with its key, stores, uplink, drain and bridge.

Start: the directory and its lock, the identity checked against this machine, the stores after a check for damage, the
bridge, then the uplink. Stop: the reverse. None of this needs a reachable relay. An uplink that fails permanently
leaves the stores open, so that mail stays readable; `failure` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog

from posthouse.client.meshes import RotatedMember
from posthouse.client.messages.sender import Composer
from posthouse.client.trust.signing import Login, Signer, open_content
from posthouse.daemon.addresses import AddressBook
from posthouse.daemon.agents.marks import Marks
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.agents.subscriptions import Subscriptions
from posthouse.daemon.bridge import Bridge
from posthouse.daemon.clock_watch import ClockWatch
from posthouse.daemon.directory import MeshDirectory
from posthouse.daemon.drain import Drain
from posthouse.daemon.event_hub import EventHub
from posthouse.daemon.failure_notices import Failed, FailureNotices
from posthouse.daemon.features import Offer, bounded_max_age_h
from posthouse.daemon.housekeeping import Housekeeper, KeptAfter, Pressure, keep_nothing
from posthouse.daemon.identity import check_host, ephemeral_identity, has_begun_rotation, persistent_identity, read_host
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.mailroom import LocalLane, Mailroom
from posthouse.daemon.metrics import Meters
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.own_posts import OwnPosts
from posthouse.daemon.receipts import ReceiptDesk
from posthouse.daemon.reconcile import Reconciler, find_at_relay
from posthouse.daemon.recovery import check_outbox, quarantine_inbox
from posthouse.daemon.registrar import Registrar
from posthouse.daemon.request_desk import RequestDesk
from posthouse.daemon.roster import Roster
from posthouse.daemon.send import Sending
from posthouse.daemon.settings import MeshSettings
from posthouse.daemon.successors import Successors
from posthouse.daemon.threads import Threads
from posthouse.daemon.uplink import Uplink
from posthouse.keys import NodeKey
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.model.limits import BODY_MAX_BYTES
from posthouse.model.ulid import UlidGenerator

log = structlog.get_logger(__name__)


async def ignore_open(_node: MeshNode) -> None:
    """Do nothing when a mesh opens."""


class MeshNode:
    """This host in one mesh."""

    key: NodeKey
    outbox: Outbox
    inbox: Inbox
    roster: Roster
    clock_watch: ClockWatch
    uplink: Uplink
    addresses: AddressBook
    mailroom: Mailroom
    drain: Drain
    sending: Sending
    registrar: Registrar
    own_posts: OwnPosts
    receipts: ReceiptDesk
    threads: Threads
    pressure: Pressure
    housekeeper: Housekeeper

    def __init__(
        self,
        settings: MeshSettings,
        directory: MeshDirectory,
        agents: AgentRegistry,
        events: EventHub,
        meters: Meters,
        on_fatal: Callable[[Fatal], None],
    ) -> None:
        self.settings = settings
        self.directory = directory
        self._agents = agents
        self._clock = settings.clock
        self._events = events
        self._meters = meters
        #: callback(failure), on any thread, when a store can no longer write
        self._on_fatal = on_fatal
        self._opened = AsyncExitStack()
        self.is_open = False
        #: why the mesh cannot be used, or why its uplink has ended
        self.failure: PosthouseError | None = None
        #: callback(new messages of a commit)
        self.on_new: Callable[[Sequence[InboxItem]], None] = lambda _items: None
        #: callback(node, is connected) when the uplink was connected or lost
        self.on_uplink: Callable[[MeshNode, bool], None] = lambda _node, _is_connected: None
        #: returns the seq after which a journal must not be pruned, None if all of it may be
        self.kept_after: KeptAfter = keep_nothing
        #: awaited with the open node before anything is received or sent
        self.on_open: Callable[[MeshNode], Awaitable[None]] = ignore_open
        #: True while this host's key is being replaced
        self.is_rotating = False
        #: callback(node) if the relay knows only the successor of this host's key, which the directory has
        self.on_key_rotated: Callable[[MeshNode], None] = lambda _node: None
        #: callback(failure) after the uplink has ended permanently
        self.on_failed: Callable[[PosthouseError], None] = lambda _failure: None
        #: callback(task) when any other task ends
        self.on_task_end: Callable[[asyncio.Task[None]], None] = lambda _task: None

    @property
    def mesh(self) -> str:
        """The name of the mesh."""
        return self.settings.mesh

    async def open(self) -> None:
        """Open everything; if a part fails, close the others and raise."""
        try:
            await self._open()
        except BaseException as failure:
            if isinstance(failure, PosthouseError):
                self.failure = failure
            await self._opened.aclose()
            raise
        self.failure = None
        self.is_open = True

    async def close(self) -> None:
        """Stop gracefully: accepted messages are committed, and rows in flight are sent again after the next start."""
        self.is_open = False
        await self._opened.aclose()

    # opening

    async def _open(self) -> None:
        self.directory.prepare()
        self._opened.callback(self.directory.lock().close)
        if not self.settings.is_ephemeral:
            self.key = persistent_identity(self.directory)
            fingerprint, policy = self.directory.host_fingerprint, self.settings.clone_policy
            check_host(fingerprint, read_host(), policy, self.directory.root)
        await self._open_stores()
        self._assemble()
        self._check_max_age()
        await self.mailroom.move_renamed()
        await self.on_open(self)
        await self._open_bridge()
        await self.housekeeper.measure()
        self._start_task(self.uplink.run(), self._on_uplink_end)
        self._start_task(self.registrar.run(), self.on_task_end)
        self._start_task(self.reconciler.run(), self.on_task_end)
        self._start_task(self.own_posts.run(), self.on_task_end)
        self._start_task(self.receipts.run(), self.on_task_end)
        self._start_task(self.notices.run(), self.on_task_end)
        self._opened.push_async_callback(self.drain.close)
        await self.drain.start()
        self._start_task(self.housekeeper.run(), self.on_task_end)

    async def _open_stores(self) -> None:
        settings, directory = self.settings, self.directory
        self.roster = Roster(directory.roster)
        clock = self.clock_watch = ClockWatch(self._clock, self.roster.last_login(self._clock.boot_id))
        check_outbox(directory.outbox)
        quarantined = quarantine_inbox(directory.inbox, self._clock)
        self.outbox = Outbox(directory.outbox, settings.mesh, clock, on_fatal=self._on_fatal)
        self._opened.callback(self.outbox.close)
        is_bridged = settings.bus_dir is not None
        self.inbox = Inbox(directory.inbox, settings.mesh, clock, is_bridged=is_bridged, on_fatal=self._on_fatal)
        self._opened.callback(self.inbox.close)
        if settings.is_ephemeral:
            self.key = await ephemeral_identity(self.outbox)
        reopened = await self.outbox.recover()
        if reopened:
            log.info("outbox_reopened", mesh=settings.mesh, rows=reopened)
        if quarantined is not None:
            self._publish("system", state="inbox_quarantined", path=str(quarantined))

    def _assemble(self) -> None:
        settings, clock, key = self.settings, self.clock_watch, self.key
        signer = Signer(key, clock)
        signer.login = clock.login
        subscriptions = Subscriptions(self._agents, settings.mesh)
        mailroom = self.mailroom = Mailroom(self.inbox, self.outbox, self._agents, subscriptions)
        self.own_posts = OwnPosts(self.outbox, self.inbox, mailroom, key.node, self.roster.name_of)
        self.uplink = Uplink(settings, key, self.inbox, mailroom, self.own_posts, self.roster, clock)
        self._opened.callback(subscriptions.close)
        self.registrar = Registrar(settings.mesh, self.uplink, self._agents, subscriptions)
        self._opened.callback(self.registrar.close)
        self.receipts = ReceiptDesk(self.inbox, self.outbox, self._agents, self.uplink, key.node)
        self.addresses = AddressBook(key.node, self.uplink, self.roster, self._agents)
        self.drain = Drain(self.outbox, self.uplink.submit, self.uplink, clock)
        self.drain.tracer = self.inbox.tracer = tracer = settings.client.tracer
        lane = LocalLane(mailroom, self.inbox, lambda event: open_content(key, event), self.roster.name_of)
        self.drain.lanes |= {each.node: lane for each in (key, *key.former)}
        self.pressure = Pressure(settings.outbox_max_bytes, self.directory.root)
        composer = Composer(signer, UlidGenerator(clock))
        self.sending = Sending(
            settings.mesh,
            composer,
            self.outbox,
            self.inbox,
            self.addresses.resolve,
            lambda event: open_content(key, event),
            lambda: self.pressure.capacity_bytes,
            clock,
        )
        self.notices = FailureNotices(key.node, settings.mesh, self.outbox, composer, lane, self.roster)
        self.threads = Threads(
            key.node, self.inbox, self.outbox, lambda event: open_content(key, event), self.roster.name_of
        )
        self.sending.tracer = tracer
        self.sending.resolve_past = self.addresses.resolve_past
        self.sending.check_route = self.addresses.check_route
        self.sending.absence_of = self.addresses.absence_of
        self.sending.find_at_relay = partial(find_at_relay, self.uplink)
        self.reconciler = Reconciler(
            settings.mesh,
            self.outbox,
            self.inbox,
            self.uplink,
            lambda topic: bool(subscriptions.followers(topic)),
            lambda event: open_content(key, event),
            settings.inbox_keep_days,
            clock,
        )
        self.housekeeper = Housekeeper(self.outbox, self.inbox, self.drain, self.pressure, settings, self.kept_after)
        self._connect_parts(signer)

    def _connect_parts(self, signer: Signer) -> None:
        uplink, drain, meters = self.uplink, self.drain, self._meters

        def note_login(login: Login) -> None:
            signer.login = login
            self.roster.set_login(login, self._clock.boot_id)

        self.clock_watch.on_login = note_login
        self.outbox.on_queued = drain.wake
        self.inbox.on_new += [self._publish_messages, self.on_new]
        uplink.on_status = self._publish_status
        self.reconciler.on_reopened = drain.wake
        self.reconciler.on_checked = self._accept_after_restore
        self.sending.is_held = self.reconciler.is_restored = self.directory.unreconciled.exists()
        self.reconciler.max_age_h = lambda: drain.max_age_h
        uplink.on_presence = lambda presence: self._publish(
            "peer_join" if presence.is_online else "peer_leave",
            node=presence.node,
            name=self.roster.name_of(presence.node),
        )
        uplink.on_rotated = self._publish_rotated
        uplink.on_offer = self._apply_offer
        uplink.on_confirmed, uplink.on_receipts = self.receipts.on_confirmed, self.receipts.on_receipts
        self.receipts.on_rejected = self.notices.tell
        self.inbox.on_handed = uplink.on_may_send = self.receipts.wake
        self.inbox.reader_of = self._reader_of
        successors = Successors(self.inbox, self.outbox, Marks(self._agents.store))
        self._agents.on_successor.append(successors.on_successor)
        self._opened.callback(self._agents.on_successor.remove, successors.on_successor)
        uplink.on_task_end = self.on_task_end
        drain.on_sent = lambda count: meters.count("posthouse_daemon_outbox_sent_total", by=count)
        drain.on_dead = self._publish_dead
        drain.on_posted = self.own_posts.wake
        drain.on_task_end = self.on_task_end
        self.pressure.on_change = lambda used, capacity, is_high: self._publish(
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
        desk = RequestDesk(self.sending, self._agents)
        if self.settings.bus_dir is None:
            self.inbox.on_new.append(desk.on_new)
            self._start_task(desk.run(), self.on_task_end)
        else:
            bridge = Bridge(
                self.settings.bus_dir,
                self.settings.mesh,
                self.key.node,
                self.inbox,
                self.outbox,
                self.sending,
                desk,
                self._agents,
                self._clock,
            )
            bridge.on_task_end = self.on_task_end
            await bridge.start()
            self._opened.push_async_callback(bridge.close)

    def _start_task(self, work: Coroutine[Any, Any, None], on_end: Callable[[asyncio.Task[None]], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(on_end)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._opened.push_async_callback(cancel)

    # callbacks

    def _reader_of(self, agent: str) -> str | None:
        found = self._agents.agents.get(agent)
        return None if found is None or found.process is None else found.process.key

    def _on_uplink_end(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if not isinstance(failure, PosthouseError) or isinstance(failure, Fatal):
            self.on_task_end(task)
            return
        if failure.code == "key_rotated" and (self.is_rotating or has_begun_rotation(self.directory)):
            self.on_key_rotated(self)
            return
        self.fail(failure)

    def fail(self, failure: PosthouseError) -> None:
        """Record that the uplink has ended permanently; the stores stay open."""
        log.error("uplink_ended", mesh=self.mesh, code=failure.code, reason=str(failure))
        self.failure = failure
        self._publish("mesh_failed", error=failure.code, reason=str(failure))
        self.on_failed(failure)

    def _publish_status(self, status: str) -> None:
        self._publish("broker_status", status=status)
        self.on_uplink(self, status == "connected")
        if status == "connected":
            self.reconciler.wake()
        else:
            self.reconciler.interrupt()

    def _accept_after_restore(self) -> None:
        self.directory.unreconciled.unlink(missing_ok=True)
        self.sending.is_held = False

    def _publish(self, event: str, /, **data: Any) -> None:
        self._events.publish(event, mesh=self.mesh, **data)

    def _publish_rotated(self, member: RotatedMember) -> None:
        log.warning("member_key_rotated", mesh=self.mesh, name=member.name, before=member.before, node=member.node)
        self.roster.note_rotated(member.node, member.before)
        self._publish("member_key_rotated", name=member.name, before=member.before, node=member.node)

    def _publish_messages(self, items: Sequence[InboxItem]) -> None:
        self._meters.count("posthouse_daemon_inbox_received_total", by=len({item.id for item in items}))
        for item in items:
            shown = item.to_api(item.received_at_ns)
            self._events.publish_message(item.id, item.position, shown, item.received_at_ns, item.agent)

    def _publish_dead(self, row_id: str, client_message_id: str, reason: str) -> None:
        self._meters.count("posthouse_daemon_outbox_dead_total", reason)
        self._publish("outbox_dead", row_id=row_id, client_message_id=client_message_id, reason=reason)
        self.notices.add(Failed(row_id, reason))

    def _apply_offer(self, offer: Offer, max_age_h: int) -> None:
        self.drain.max_age_h = max_age_h
        self.sending.max_payload = min(offer.max_payload, BODY_MAX_BYTES)
        log.info(
            "relay_offer",
            mesh=self.mesh,
            retention_days=offer.retention_days,
            policy=offer.policy,
            max_age_h=max_age_h,
        )
