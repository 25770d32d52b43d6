"""The relay without sockets: accept, store, read and meshes behind one object.

Callers pass bytes and authenticated node ids and get values back; `listen` gives them new events, after their
commit. Every read names the requesting node, and returns only events that this node may read. Everything belongs to the
event loop that `start` ran on. Nothing here knows HTTP or WebSockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posthouse.files import private_dir
from posthouse.journal.store import exit_process
from posthouse.keys import NodeKey
from posthouse.model import limits
from posthouse.model.api import ArchivedRange
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal
from posthouse.model.event import Event
from posthouse.model.rate import Rate
from posthouse.model.ulid import UlidGenerator
from posthouse.postgresql.store_url import driver_required
from posthouse.relay.accept.authorize import Authorizer
from posthouse.relay.accept.group_commit import GroupCommitter
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.accept.path import AcceptPath, Refusals
from posthouse.relay.accept.rates import RateBuckets, RateShare
from posthouse.relay.accept.submission import Answered, OnAnswers, Submitter
from posthouse.relay.accept.verify import count_processors, verifier_threads, verify_proof
from posthouse.relay.cluster.cluster import Cluster
from posthouse.relay.cluster.cluster_locks import ClusterLocks
from posthouse.relay.cluster.following import Following
from posthouse.relay.locks.decide import start_run
from posthouse.relay.locks.service import Locks
from posthouse.relay.meshes.administration import Administration, MeshChanges, prepare_main, prepare_pinch
from posthouse.relay.meshes.approvals import Approvals
from posthouse.relay.meshes.fence_rules import FenceRules
from posthouse.relay.meshes.invites import Invites
from posthouse.relay.meshes.key_changes import KeyChanges
from posthouse.relay.meshes.mesh_control import MeshControl
from posthouse.relay.meshes.participation import Participation
from posthouse.relay.messages.accept import MessageHandlers
from posthouse.relay.messages.open_requests import OpenRequests
from posthouse.relay.messages.operator_view import MessageStatus, QueueOperations
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.messages.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.messages.sweeper import QueueSweeper
from posthouse.relay.ops.deletion import AdminDeletion, DeletionOrder, DeletionResult
from posthouse.relay.ops.housekeeping import Housekeeping, MarkKeeper, Pruning
from posthouse.relay.ops.retention_sweeper import RetentionSweeper
from posthouse.relay.reads import Reads
from posthouse.relay.replication.followers import Followers, FollowSettings
from posthouse.relay.replication.mirroring import Mirroring, MirrorRights
from posthouse.relay.store.event_rows import Pruned
from posthouse.relay.store.high_water import MarkFile, StoredState
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.store.shared_store import Charge
from posthouse.relay.store.sqlite.recording import MAX_BYTES as FOLLOW_MAX_BYTES
from posthouse.relay.store.sqlite.store import FILE_NAME, SqliteStore
from posthouse.relay.webhooks.dispatcher import Dispatcher
from posthouse.relay.webhooks.incoming import IncomingHooks
from posthouse.relay.webhooks.managing import Webhooks
from posthouse.relay.webhooks.sending import PUBLIC_ONLY, SendingSettings, WebhookSender
from posthouse.relay.wire.accept_results import Answer, Committed, Listener
from posthouse.storage.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS
from posthouse.tracing import Tracer

EVENT_RATE = Rate(limits.EVENT_RATE_PER_S, limits.EVENT_BURST)
EPHEMERAL_RATE = Rate(limits.EPHEMERAL_RATE_PER_S, limits.EPHEMERAL_BURST)


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a relay that shares its store."""

    #: URL under which the other relays reach this one
    advertise: str
    #: returns a token that proves to another relay that this one has the relay's key
    token: Callable[[], str]


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine."""

    data_dir: Path
    #: node id of the relay's own key; invites and authentication are bound to it
    relay: str
    #: whether the mesh main may be open to every key that authenticates
    is_main_open: bool = True
    #: nodes that administer main, and so the relay
    admins: tuple[str, ...] = ()
    event_rate: Rate = EVENT_RATE
    ephemeral_rate: Rate = EPHEMERAL_RATE
    deliveries: DeliverySettings = DEFAULT_SETTINGS
    #: how long ids of removed events stay known; older events are refused
    known_ids_ns: int = limits.KNOWN_IDS_DAYS * limits.DAY_S * limits.SECOND_NS
    #: whether this start created the relay's key: with a new store, fencing tokens then begin at 0
    has_new_key: bool = False
    #: where the high-water mark of the store is kept; None: nowhere
    mark_file: MarkFile | None = None
    #: whether there is a mesh of Pinch addresses
    has_pinch: bool = False
    #: clients that may wait for one lock
    wait_queue_max: int = limits.WAIT_QUEUE_MAX
    #: URL of a PostgreSQL database; None: relay.db in the data directory
    store: str | None = None
    #: settings of a relay that shares the database; None: this relay is alone
    cluster: ClusterSettings | None = None
    #: units of work, and their bytes, that may wait for the store's writer
    writer_max_items: int = MAX_WAITING_ITEMS
    writer_max_bytes: int = MAX_WAITING_BYTES
    #: how webhooks are sent
    sending: SendingSettings = PUBLIC_ONLY
    #: webhooks, and incoming hooks, of one mesh
    webhooks_per_mesh: int = 50
    #: which nodes may follow
    follow: FollowSettings = field(default_factory=FollowSettings)
    #: bytes of changes that are kept for followers
    follow_max_bytes: int = FOLLOW_MAX_BYTES
    #: which nodes may mirror which meshes
    mirrors: MirrorRights = field(default_factory=MirrorRights)
    #: threads that verify signatures; 0: the event loop verifies
    verifier_threads: int = field(default_factory=lambda: verifier_threads(count_processors()))


def exit_unless_damaged(failure: Fatal) -> None:
    """End the process, unless a file is damaged: then reads continue, the writer refuses all, /healthz reports it."""
    if failure.code != "store_damaged":
        exit_process(failure)


def open_store(
    settings: EngineSettings, clock: Clock, on_fatal: Callable[[Fatal], None], vfs: str | None = None
) -> RelayStore:
    """Open the store that the settings name; blocks."""
    bounds = {"writer_max_items": settings.writer_max_items, "writer_max_bytes": settings.writer_max_bytes}
    if settings.store is None:
        private_dir(settings.data_dir)
        path = settings.data_dir / FILE_NAME
        follow_max_bytes = settings.follow_max_bytes
        return SqliteStore(path, clock, on_fatal=on_fatal, vfs=vfs, follow_max_bytes=follow_max_bytes, **bounds)
    with driver_required():
        from posthouse.relay.store.postgresql.pg_store import PgStore
    mark = None if settings.mark_file is None else settings.mark_file.read()
    is_shared = settings.cluster is not None
    return PgStore(settings.store, clock, on_fatal=on_fatal, is_shared=is_shared, mark=mark, **bounds)


def server_state(url: str) -> StoredState:
    """Return what a starting relay has to know about a store in a database. Blocks."""
    with driver_required():
        from posthouse.relay.store.postgresql.pg_journal import find_stored
    return find_stored(url)


class RelayEngine(Reads):
    """A running relay without its sockets; made by `start`."""

    def __init__(
        self,
        settings: EngineSettings,
        clock: Clock,
        store: RelayStore,
        meshes: Meshes,
        lock_run: str | None,
        mark_keeper: MarkKeeper | None,
    ) -> None:
        super().__init__(store, meshes)
        self.settings = settings
        self.clock = clock
        self.committer = committer = GroupCommitter(store, clock)
        self.changes = MeshChanges(store, meshes, committer)
        self.administration = Administration(self.changes, may_open_main=settings.is_main_open)
        self.participation = Participation(self.changes)
        self.fence_rules = FenceRules(self.changes)
        self.approvals = Approvals(self.changes)
        self.invites = Invites(self.changes, settings.relay, UlidGenerator(clock))
        self.sessions = ReaderSessions(store, committer, meshes, clock, settings.deliveries)
        self._open_locks(lock_run)
        self.participation.on_blocked = self.sessions.apply_closed
        self.queues = QueueOperations(self.sessions, meshes)
        self.states = MessageStatus(store, meshes, clock, settings.deliveries)
        self.refusals = Refusals(clock)
        share = self.rate_share
        rates = RateBuckets(settings.event_rate, share=share), RateBuckets(settings.ephemeral_rate, share=share)
        self.authorizer = Authorizer(meshes, clock, *rates, share, settings.relay, settings.known_ids_ns)
        self.strangers = self.authorizer.strangers
        self._path = AcceptPath(
            committer,
            self.authorizer,
            self.refusals,
            settings.verifier_threads,
            MessageHandlers(settings.deliveries, settings.relay, meshes.successor),
            self.sessions.apply_effects,
        )
        self.key_changes = KeyChanges(self.changes, self._path.announce)
        self._open_requests_and_webhooks()
        self.sweeper = QueueSweeper(self.sessions, self.charge)
        self._open_retention()
        self._open_copies()
        self._pruning = Pruning(store)
        self._housekeeping = Housekeeping(store, self.refusals, committer, clock, self.charge)
        self._mark_keeper = mark_keeper

    def _open_locks(self, lock_run: str | None) -> None:
        """Open the locks: those of a relay that is alone, or those of the cluster."""
        store, meshes, clock, settings = self.store, self.meshes, self.clock, self.settings
        self.rate_share = RateShare()
        #: None: this relay is alone
        self.cluster: Cluster | None = None
        self.locks: Locks | ClusterLocks
        if settings.cluster is not None and store.shared is not None:
            self.cluster = Cluster(
                store,
                store.shared,
                meshes,
                self.sessions,
                clock,
                advertise=settings.cluster.advertise,
                token=settings.cluster.token,
                wait_queue_max=settings.wait_queue_max,
                rate_share=self.rate_share,
            )
            self.locks = self.cluster.locks
        else:
            self.locks = Locks(store, meshes, clock, lock_run or "", max_per_lock=settings.wait_queue_max)
        self.charge = Charge(self.cluster)

    def _open_copies(self) -> None:
        parts = self.store, self.meshes, self.clock
        self.mirroring = Mirroring(*parts, self._path.open_mirror, self._from_seq, self.listen, self.settings.mirrors)
        self.followers = Followers(self.store.changes, self.settings.data_dir, self.clock, self.settings.follow)

    def _open_retention(self) -> None:
        self._deletion = AdminDeletion(self.store, self.accept_many, self.clock)
        self.retention = RetentionSweeper(
            self.store,
            self.meshes,
            self.clock,
            self.settings.known_ids_ns,
            self.sessions.apply_closed,
            self.charge,
        )
        self.mesh_control = MeshControl(self.changes, self.store, self.retention.wake)

    def _open_requests_and_webhooks(self) -> None:
        store, meshes, clock, settings = self.store, self.meshes, self.clock, self.settings
        self.requests = OpenRequests(store, self.listen)
        sender = WebhookSender(settings.sending, clock)
        self.webhooks = Webhooks(store, meshes, sender, clock, settings.webhooks_per_mesh)
        self.dispatcher = Dispatcher(store, meshes, sender, clock, self.charge, self.listen)
        self.webhooks.on_change = self.dispatcher.wake
        self.incoming_hooks = IncomingHooks(
            store, meshes, self.administration, self.accept, clock, settings.webhooks_per_mesh, self.rate_share
        )
        self.dispatcher.start()

    @classmethod
    async def start(
        cls,
        settings: EngineSettings,
        clock: Clock,
        *,
        on_fatal: Callable[[Fatal], None] = exit_unless_damaged,
        vfs: str | None = None,
    ) -> RelayEngine:
        """Open the store, create the mesh main and its admins, and start the threads."""
        store = await asyncio.to_thread(open_store, settings, clock, on_fatal, vfs)
        try:
            if store.shared is not None:
                await store.shared.claim(settings.relay)
            rows = await prepare_main(store, settings.relay, is_open=settings.is_main_open, admins=settings.admins)
            if settings.has_pinch:
                rows = await prepare_pinch(store, settings.relay, settings.admins)
            mark = None if settings.mark_file is None else settings.mark_file.read()
            lock_run = None  # of a relay that shares its store: it begins a run when it leads
            if settings.cluster is None:
                lock_run = await start_run(store, clock, mark, has_new_key=settings.has_new_key)
            keeper = None if settings.mark_file is None else MarkKeeper(store, clock, settings.mark_file)
            if keeper is not None:
                await keeper.start()
            engine = cls(settings, clock, store, Meshes(rows), lock_run, keeper)
            await engine.followers.start()
            await engine._join_others(on_fatal)
        except BaseException:
            await asyncio.to_thread(store.close)
            raise
        return engine

    async def _join_others(self, on_fatal: Callable[[Fatal], None]) -> None:
        """Connect this relay to the others of its store, if it shares one."""
        cluster, shared = self.cluster, self.store.shared
        if cluster is None or shared is None:
            return
        cluster.open_submitter = self._path.open_submitter
        cluster.announce = self._path.announce
        self._path.other_relays = cluster
        self.sessions.take_over = cluster.take_over
        self.sessions.presence.on_change = cluster.tell_online
        shared.follow(Following(self.meshes, self.sessions, self._path.announce, on_fatal).apply)
        await cluster.start()

    async def close(self) -> None:
        """Answer submitted events, commit deferred writes, and release everything."""
        if self.cluster is not None:
            await self.cluster.close()
        self.locks.close()
        await self.dispatcher.close()
        await self.followers.close()
        await self._path.close()
        await self.sweeper.close()
        await self.retention.close()
        await self._housekeeping.close()
        if self._mark_keeper is not None:
            await self._mark_keeper.close()
        await asyncio.to_thread(self.store.close)

    def trace_with(self, tracer: Tracer) -> None:
        """Record from now on how long traced events take to be accepted and delivered."""
        self._path.tracer = self.sessions.tracer = tracer

    def open_submitter(self, on_answers: OnAnswers, payer: str | None = None) -> Submitter:
        """Return the entry of one connection to the accept path; it keeps the order of submissions.

        `payer` is the node or address whose rate is charged for events of keys that may not write.
        """
        return self._path.open_submitter(on_answers, payer)

    async def accept(self, event: bytes, payer: str | None = None) -> Answer:
        """Accept one event given as JSON."""
        (answer,) = await self.accept_many([event], payer)
        return answer

    async def accept_many(self, events: Sequence[bytes], payer: str | None = None) -> list[Answer]:
        """Accept a list of events given as JSON; the answers are in its order."""
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        if not events:
            return []

        def on_answers(answered: Sequence[Answered]) -> None:
            if not answers.done():  # the caller may be gone
                answers.set_result([each.answer for each in answered])

        self._path.open_submitter(on_answers, payer).submit(events)
        return await answers

    async def prune(self, node: str, archived: ArchivedRange) -> tuple[Pruned, int]:
        """Delete a range that the archive holds; return the result and the oldest seq left. Only for relay admins."""
        self.require_admin(node)
        return await self._pruning.prune(archived)

    async def delete(self, key: NodeKey, order: DeletionOrder) -> DeletionResult:
        """Delete events of any author with deletions that `key`, the relay's, signs. Only for relay admins."""
        self.require_admin(order.actor)
        return await self._deletion.delete(key, order)

    async def verify(self, event: bytes) -> Event:
        """Return an event that is not published, such as a proof, with structure, id and signature verified."""
        return await asyncio.to_thread(verify_proof, event)

    @property
    def accepted(self) -> Mapping[str, int]:
        """How many events were stored, already known, or only passed on."""
        return self._path.accepted

    @property
    def refused(self) -> Mapping[str, int]:
        """How many events were refused, by error code."""
        return self._path.refused

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on the loop with events as they are committed, in commit order; return its end."""
        return self._path.listen(listener)

    def may_read(self, committed: Committed, node: str) -> bool:
        """Return True if a node may read an event: it may read the mesh, and a direct message is its own."""
        return committed.may_read(node) and Right.READ in self.meshes.rights(node, committed.mesh)

    @property
    def state(self) -> str:
        """`open`, `full` or `locked` (read-only until a commit succeeds), `damaged`, `failed` or `closed`."""
        return self.store.state

    @property
    def damage(self) -> int:
        """How often a read or a write met a damaged page since the start."""
        found: int = self.store.statistics()["damaged_reads"] + (self.state == "damaged")
        return found

    def info(self) -> dict[str, Any]:
        """Return the public facts about the engine."""
        return {"epoch": self.store.epoch, "relay": self.settings.relay}

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the engine."""
        return {"accept": self._path.statistics(), "store": self.store.statistics(), "meshes": len(self.meshes)}
