"""The relay without sockets: accept, store, read and meshes behind one object.

Callers pass bytes and authenticated node ids and get values back; `listen` gives them new events, after their
commit. Every read names the node that it is for and returns only events which that node may read. Everything belongs
to the event loop that `start` ran on. Nothing here knows HTTP or WebSockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from posthouse.files import private_dir
from posthouse.journal.cursor import Cursor, Extent, parse_cursor, resolve_cursor
from posthouse.journal.digest import Record
from posthouse.journal.store import exit_process
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, error
from posthouse.model.event import Coordinate, Event, is_event_id
from posthouse.model.filters import Filter
from posthouse.model.limits import (
    EPHEMERAL_BURST,
    EPHEMERAL_RATE_PER_S,
    EVENT_BURST,
    EVENT_RATE_PER_S,
    QUERY_MAX_LIMIT,
    QUERY_PAGE_BYTES,
    WAIT_QUEUE_MAX,
)
from posthouse.model.lock_scope import validate_resource
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.rate import Rate
from posthouse.model.ulid import UlidGenerator
from posthouse.relay.accept.authorize import Authorizer, Mesh, Meshes, RateBuckets, Right
from posthouse.relay.accept.group_commit import GroupCommitter
from posthouse.relay.accept.path import AcceptPath, Refusals
from posthouse.relay.accept.submission import Answered, OnAnswers, Submitter
from posthouse.relay.accept.verify import count_processors, verifier_threads, verify_proof
from posthouse.relay.locks.decide import start_run
from posthouse.relay.locks.service import Locks
from posthouse.relay.meshes.administration import Administration, MeshChanges, prepare_main, prepare_pinch
from posthouse.relay.meshes.fence_rules import FenceRules
from posthouse.relay.meshes.invites import Invites
from posthouse.relay.meshes.participation import Participation
from posthouse.relay.messages.accept import MessageHandlers
from posthouse.relay.messages.operator_view import MessageStatus, QueueOperations
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.messages.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.messages.sweeper import QueueSweeper
from posthouse.relay.ops.housekeeping import ArchivedRange, Housekeeping, MarkKeeper, Pruning
from posthouse.relay.store.event_rows import Page, Pruned, Query, Scope, StoredEvent
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.store.sqlite.store import FILE_NAME, SqliteStore
from posthouse.relay.wire.accept_results import Answer, Committed, Listener
from posthouse.sqlite.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS

Order = Literal["asc", "desc"]


class Reads:
    """Every read of the relay; each names the node that it is for."""

    def __init__(self, store: RelayStore, meshes: Meshes) -> None:
        self.store = store
        #: rights of nodes in meshes, as committed
        self.meshes = meshes

    def scope(self, node: str, filters: Sequence[Filter] = ()) -> Scope:
        """Return which events a node may read; raise if a filter names a mesh that it may not read."""
        for each in filters:
            if each.mesh is not None:
                self.meshes.require(node, each.mesh, Right.READ)
        return Scope(node, self.meshes.readable(node))

    def cursor(self, seq: int) -> str:
        """Return the cursor of a seq in this store."""
        return str(Cursor(self.store.epoch, seq))

    async def query(
        self,
        node: str,
        filters: Sequence[Filter],
        *,
        cursor: str | None = None,
        limit: int = QUERY_MAX_LIMIT,
        order: Order = "asc",
        max_bytes: int = QUERY_PAGE_BYTES,
    ) -> Page:
        """Return stored events that match one of the filters, in commit order."""
        scope = self.scope(node, filters)
        from_seq = await self._from_seq(cursor)
        return await self.store.query(Query(filters, scope, from_seq, limit, order == "desc", max_bytes))

    async def count(self, node: str, filters: Sequence[Filter]) -> int:
        """Return how many stored events match one of the filters."""
        return await self.store.count(filters, self.scope(node, filters))

    async def event(self, node: str, event_id: str) -> StoredEvent:
        """Return one event, or raise event_unknown."""
        found = await self.store.event(event_id, self.scope(node)) if is_event_id(event_id) else None
        if found is None:
            raise error("event_unknown", id=event_id[:64])
        return found

    async def address(self, node: str, coordinate: Coordinate) -> StoredEvent:
        """Return the latest event of a coordinate, or raise address_unknown."""
        found = await self.store.current(coordinate, self.scope(node))
        if found is None:
            raise error("address_unknown", coordinate=str(coordinate))
        return found

    async def pointer(self, node: str, mesh: str, resource: str) -> StoredEvent:
        """Return the newest event under the fence of a resource, over all authors, or raise pointer_unknown."""
        self.meshes.require(node, mesh, Right.READ)
        found = await self.store.pointer(mesh, validate_resource(resource), self.scope(node))
        if found is None:
            raise error("pointer_unknown", mesh=mesh, resource=resource)
        return found

    async def history(
        self,
        node: str,
        coordinate: Coordinate,
        *,
        cursor: str | None = None,
        limit: int = QUERY_MAX_LIMIT,
        order: Order = "asc",
    ) -> Page:
        """Return all versions of a coordinate, in commit order."""
        query = Query((), self.scope(node), await self._from_seq(cursor), limit, order == "desc")
        return await self.store.history(coordinate, query)

    async def journal(
        self,
        node: str,
        *,
        after: str | None = None,
        types: Collection[str] | None = None,
        limit: int = QUERY_MAX_LIMIT,
    ) -> tuple[list[Record], str]:
        """Return journal records and the cursor after them; only for admins of the relay."""
        self.require_admin(node)
        seq = resolve_cursor(await self.store.extent(), after)
        records = await self.store.journal(seq, limit, types)
        return records, self.cursor(records[-1].seq if records else seq)

    async def newest_journal(
        self,
        node: str,
        *,
        before: str | None = None,
        types: Collection[str] | None = None,
        limit: int = QUERY_MAX_LIMIT,
    ) -> tuple[list[Record], str | None]:
        """Return journal records newest first, and the cursor before them, None at the end; only for relay admins.

        One call looks at a bounded number of records, so it may return fewer than exist; the cursor goes on.
        """
        self.require_admin(node)
        extent = await self.store.extent()
        through = extent.head if before is None else min(resolve_cursor(extent, before), extent.head)
        found: list[Record] = []
        for _ in range(_NEWEST_STEPS):
            after = max(extent.pruned_through, through - _NEWEST_WINDOW)
            window = [each for each in await self.store.journal(after, _NEWEST_WINDOW, types) if each.seq <= through]
            found += reversed(window)
            through = after
            if len(found) >= limit or through <= extent.pruned_through:
                break
        if len(found) > limit:
            through = found[limit - 1].seq - 1
        return found[:limit], None if through <= extent.pruned_through else self.cursor(through)

    async def feed(
        self, node: str, name: str, *, after: str | None = None, limit: int = QUERY_MAX_LIMIT
    ) -> tuple[list[str], list[tuple[Any, ...]], str]:
        """Return columns and rows of a feed and the cursor after them; only for admins of the relay."""
        self.require_admin(node)
        seq = resolve_cursor(await self.store.extent(), after)
        columns, rows = await self.store.feed(name, seq, limit)
        return columns, rows, self.cursor(rows[-1][0] if rows else seq)

    def meshes_of(self, node: str) -> list[dict[str, Any]]:
        """Return the meshes that a node may read, with its role and its member name in each."""
        found = [mesh for mesh in self.meshes.all() if Right.READ in mesh.rights(node)]
        return [_describe_mesh(mesh, node) for mesh in found]

    def require_admin(self, node: str) -> None:
        """Raise unless a node administers the relay, that is, the mesh main."""
        self.meshes.require(node, DEFAULT_MESH, Right.ADMINISTER)

    async def _from_seq(self, cursor: str | None) -> int | None:
        """Return the seq of a cursor; it may be below the journal's horizon, because events outlive their records."""
        if cursor is None:
            return None
        extent = await self.store.extent()
        parsed = parse_cursor(cursor)
        is_below_horizon = parsed.epoch == extent.epoch and parsed.seq < extent.pruned_through
        return parsed.seq if is_below_horizon else resolve_cursor(extent, cursor)


_NEWEST_WINDOW = 2_000  # records that one step backwards looks at
_NEWEST_STEPS = 25


def _describe_mesh(mesh: Mesh, node: str) -> dict[str, Any]:
    member = mesh.members.get(node)
    return {
        "mesh": mesh.row.mesh,
        "open": mesh.row.is_open,
        "role": mesh.role(node),
        "name": None if member is None else member.name,
    }


EVENT_RATE = Rate(EVENT_RATE_PER_S, EVENT_BURST)
EPHEMERAL_RATE = Rate(EPHEMERAL_RATE_PER_S, EPHEMERAL_BURST)


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
    #: whether the relay's key was made in this start: with a new store, fencing tokens then begin at 0
    has_new_key: bool = False
    #: where the high-water mark of the store is kept; None: nowhere
    mark_file: MarkFile | None = None
    #: whether there is a mesh of Pinch addresses
    has_pinch: bool = False
    #: clients that may wait for one lock
    wait_queue_max: int = WAIT_QUEUE_MAX
    #: URL of a PostgreSQL database; None: relay.db in the data directory
    store: str | None = None
    #: units of work, and their bytes, that may wait for the store's writer
    writer_max_items: int = MAX_WAITING_ITEMS
    writer_max_bytes: int = MAX_WAITING_BYTES
    #: threads that verify signatures; 0: the event loop verifies
    verifier_threads: int = field(default_factory=lambda: verifier_threads(count_processors()))


def exit_unless_damaged(failure: Fatal) -> None:
    """End the process, but serve reads from a damaged file: the writer refuses everything, and health says so."""
    if failure.code != "store_damaged":
        exit_process(failure)


def open_store(
    settings: EngineSettings, clock: Clock, on_fatal: Callable[[Fatal], None], vfs: str | None = None
) -> RelayStore:
    """Open the store that the settings name; blocks."""
    bounds = {"writer_max_items": settings.writer_max_items, "writer_max_bytes": settings.writer_max_bytes}
    if settings.store is None:
        private_dir(settings.data_dir)
        return SqliteStore(settings.data_dir / FILE_NAME, clock, on_fatal=on_fatal, vfs=vfs, **bounds)
    with _driver_required():
        from posthouse.relay.store.postgresql.pg_store import PgStore
    return PgStore(settings.store, clock, on_fatal=on_fatal, **bounds)


def server_extent(url: str) -> Extent | None:
    """Return the extent of the store in a database, None if there is no store; blocks."""
    with _driver_required():
        from posthouse.relay.store.postgresql.pg_store import stored_extent
    return stored_extent(url)


@contextmanager
def _driver_required() -> Iterator[None]:
    """Explain that the driver of PostgreSQL, an extra, is not installed."""
    try:
        yield
    except ImportError as failure:
        raise error("store_driver_missing", reason=str(failure)) from failure


class RelayEngine(Reads):
    """A running relay without its sockets; made by `start`."""

    def __init__(
        self,
        settings: EngineSettings,
        clock: Clock,
        store: RelayStore,
        meshes: Meshes,
        lock_run: str,
        mark_keeper: MarkKeeper | None,
    ) -> None:
        super().__init__(store, meshes)
        self.settings = settings
        self.clock = clock
        self.committer = committer = GroupCommitter(store)
        self.changes = MeshChanges(store, meshes, committer)
        self.administration = Administration(self.changes, may_open_main=settings.is_main_open)
        self.participation = Participation(self.changes)
        self.fence_rules = FenceRules(self.changes)
        self.invites = Invites(self.changes, settings.relay, UlidGenerator(clock))
        self.locks = Locks(store, meshes, clock, lock_run, max_per_lock=settings.wait_queue_max)
        self.sessions = ReaderSessions(store, committer, meshes, clock, settings.deliveries)
        self.participation.on_blocked = self.sessions.apply_closed
        self.queues = QueueOperations(self.sessions, meshes)
        self.states = MessageStatus(store, meshes, clock, settings.deliveries)
        self.refusals = Refusals(clock)
        self.authorizer = Authorizer(
            meshes, clock, RateBuckets(settings.event_rate), RateBuckets(settings.ephemeral_rate)
        )
        self.strangers = self.authorizer.strangers
        self._path = AcceptPath(
            committer,
            self.authorizer,
            self.refusals,
            settings.verifier_threads,
            MessageHandlers(settings.deliveries),
            self.sessions.apply_effects,
        )
        self.sweeper = QueueSweeper(self.sessions)
        self._pruning = Pruning(store)
        self._housekeeping = Housekeeping(store, self.refusals, committer)
        self._mark_keeper = mark_keeper

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
            rows = await prepare_main(store, settings.relay, is_open=settings.is_main_open, admins=settings.admins)
            if settings.has_pinch:
                rows = await prepare_pinch(store, settings.relay, settings.admins)
            mark = None if settings.mark_file is None else settings.mark_file.read()
            lock_run = await start_run(store, clock, mark, has_new_key=settings.has_new_key)
            keeper = None if settings.mark_file is None else MarkKeeper(store, clock, settings.mark_file)
            if keeper is not None:
                await keeper.start()
        except BaseException:
            await asyncio.to_thread(store.close)
            raise
        return cls(settings, clock, store, Meshes(rows), lock_run, keeper)

    async def close(self) -> None:
        """Answer submitted events, commit deferred writes, and release everything."""
        self.locks.close()
        await self._path.close()
        await self.sweeper.close()
        await self._housekeeping.close()
        if self._mark_keeper is not None:
            await self._mark_keeper.close()
        await asyncio.to_thread(self.store.close)

    def open_submitter(self, on_answers: OnAnswers, payer: str | None = None) -> Submitter:
        """Return the entry of one connection to the accept path; it keeps the order of submissions.

        `payer` is the node or address whose rate pays for events of keys that may not write.
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
        """Delete what the archive holds; return what was deleted and the oldest seq left. Only for relay admins."""
        self.require_admin(node)
        return await self._pruning.prune(archived)

    async def verify(self, event: bytes) -> Event:
        """Return an event that is not published, such as a proof, with structure, id and signature verified."""
        return await asyncio.to_thread(verify_proof, event)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on the loop with events as they are committed, in commit order; return its end."""
        return self._path.listen(listener)

    def may_read(self, committed: Committed, node: str) -> bool:
        """Return True if a node may read an event: it may read the mesh, and a direct message is its own."""
        return committed.may_read(node) and Right.READ in self.meshes.rights(node, committed.mesh)

    @property
    def state(self) -> str:
        """`open`, `full` (read-only until there is room), `damaged`, `failed` or `closed`."""
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
