"""The relay's store on PostgreSQL: the group-commit writer over one session, reads over a few others.

Implements RelayStore and Unit of posthouse.relay.store.protocol, with their parts from the modules beside it. Only the
writer's thread ever sees a Unit. A lone unit is never committed on the loop's thread: a round trip to the server would
block it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import psycopg

from posthouse.journal.store import exit_process
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal
from posthouse.model.node import NODE_SCHEME
from posthouse.postgresql.server_connection import ServerConnection, check_server, translate
from posthouse.postgresql.server_schema import migrate_server
from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.store.event_rows import CurrentEvent, EventRow
from posthouse.relay.store.high_water import HighWater, refuse_moved
from posthouse.relay.store.postgresql.pg_deliveries import PgDeliveries, insert_columns
from posthouse.relay.store.postgresql.pg_delivery_reads import PgDeliveryReads
from posthouse.relay.store.postgresql.pg_epochs import open_epoch
from posthouse.relay.store.postgresql.pg_journal import RELAY_LOCK, SCHEMA, PgTransaction, read_stored
from posthouse.relay.store.postgresql.pg_locks import LockTables
from posthouse.relay.store.postgresql.pg_meshes import MeshTables
from posthouse.relay.store.postgresql.pg_pinch import PgPinch, PgPinchReads
from posthouse.relay.store.postgresql.pg_queries import EVENTS_SQL
from posthouse.relay.store.postgresql.pg_reads import EventReads
from posthouse.relay.store.postgresql.pg_retention import RetentionTables, insert_derived
from posthouse.relay.store.postgresql.pg_shared import PgShared, SharedTransaction
from posthouse.relay.store.postgresql.pg_webhooks import WEBHOOKS, PgWebhookReads, PgWebhooks
from posthouse.relay.store.protocol import Unit
from posthouse.storage.handover import LoopResults
from posthouse.storage.sql_files import Component
from posthouse.storage.writer import MAX_WAITING_BYTES, MAX_WAITING_ITEMS, Writer

R = TypeVar("R")
RELAY = Component("relay", SCHEMA)
COMPONENTS = (RELAY, WEBHOOKS)
_KEY_AT = len(NODE_SCHEME) + 1


class PgUnit(MeshTables, LockTables, RetentionTables):
    """Implements posthouse.relay.store.protocol.Unit; one object serves all transactions of the writer, in turn."""

    def __init__(self, tx: PgTransaction, clock: Clock) -> None:
        self._tx = self._journal = tx
        self._clock = clock
        #: set by `run`
        self.now_ns = 0
        self.deliveries = PgDeliveries(tx)

    @property
    def _db(self) -> ServerConnection:
        return self._tx.db

    @cached_property
    def pinch(self) -> PgPinch:
        return PgPinch(self._tx, self.deliveries)

    @cached_property
    def webhooks(self) -> PgWebhooks:
        return PgWebhooks(self._tx)

    @property
    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    has_tombstones = True  # another relay may have written some

    @property
    def meshes_changed_at(self) -> int:
        return self._tx.meshes_changed_at

    def run(self, work: Callable[[Unit], R]) -> R:
        """Run one unit of work in the transaction that is open."""
        self.now_ns = self._tx.now_ns
        return work(self)

    def append(
        self,
        type: str,  # noqa: A002 - the journal's word
        *,
        mesh: str | None = None,
        actor: str | None = None,
        ref: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> int:
        return self._tx.append(type, mesh=mesh, actor=actor, ref=ref, body=body)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        self._tx.undo.append(undo)

    def known(self, ids: Sequence[str]) -> dict[str, int]:
        return known_ids(self._db, ids)

    def add_events(self, rows: Sequence[EventRow]) -> list[int]:
        first = self._tx.append_many(
            [(row.record_type, row.mesh, row.event.pubkey, row.event.id, row.record_body) for row in rows]
        )
        seqs = list(range(first, first + len(rows)))
        events, terms, current, fenced = [], [], [], []
        for seq, row in zip(seqs, rows, strict=True):
            event, key, address = row.event, bytes.fromhex(row.event.id), row.address
            recipient = None if row.recipient is None else bytes.fromhex(row.recipient[_KEY_AT:])
            who = (bytes.fromhex(event.pubkey[_KEY_AT:]), event.kind, event.created_at_ns, row.mesh, recipient)
            events.append((seq, key, *who, row.expiration_s, address, row.raw))
            terms += [(term, seq) for term in row.index_terms]
            if address is not None:
                current.append((address, event.created_at_ns, key, seq))
            if row.fence is not None:
                fenced.append((seq, row.mesh, row.fence.resource.encode(), row.fence.token))
        insert_columns(self._db, EVENTS_SQL.insert_events, events)
        insert_derived(self._db, terms, current, fenced)
        self.count_usage([(row.mesh, 1, len(row.raw)) for row in rows])
        return seqs

    def find_current(self, addresses: Collection[bytes]) -> dict[bytes, CurrentEvent]:
        rows = self._db.rows(EVENTS_SQL.current_of_all, list(addresses)) if addresses else []
        return {address: CurrentEvent(seq, at_ns, key.hex()) for address, seq, at_ns, key in rows}


def known_ids(db: ServerConnection, ids: Sequence[str]) -> dict[str, int]:
    """Return the seq of each of these ids that was accepted before."""
    keys = [bytes.fromhex(id_) for id_ in ids]
    return {key.hex(): seq for key, seq in db.rows(EVENTS_SQL.known_ids, keys)} if keys else {}


class PgStore(EventReads):
    """A relay's store in one database of PostgreSQL."""

    changes = None  # followers use the streaming replication of PostgreSQL

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        on_fatal: Callable[[Fatal], None] = exit_process,
        readers: int = 4,
        writer_max_items: int = MAX_WAITING_ITEMS,
        writer_max_bytes: int = MAX_WAITING_BYTES,
        is_shared: bool = False,
        mark: HighWater | None = None,
    ) -> None:
        super().__init__()
        self._clock = clock
        check_server(url)
        for component in COMPONENTS:
            migrate_server(url, component, RELAY_LOCK)
        self._tx = SharedTransaction(url, clock) if is_shared else PgTransaction(url)
        try:
            refuse_moved(read_stored(self._tx.db).moved, shown_url(url))
            self._tx.epoch = open_epoch(self._tx.db, self._tx.server, url, clock, mark)
        except BaseException as exc:
            self._tx.close(is_failed=True)
            if isinstance(exc, psycopg.Error):
                raise translate(exc, url) from exc
            raise
        self._writer = Writer(
            lambda: self._tx,
            clock,
            shown_url(url),
            on_fatal=on_fatal,
            max_items=writer_max_items,
            max_bytes=writer_max_bytes,
        )
        self._unit = PgUnit(self._tx, clock)
        self._reads = SnapshotReads(url, size=readers, on_connect=self._tx.watch.check)
        self.shared = PgShared(url, clock, self._tx, self._writer, self._reads)
        self.deliveries = PgDeliveryReads(self._reads)
        self.pinch = PgPinchReads(self._reads)
        self.webhooks = PgWebhookReads(self._reads)

    @property
    def epoch(self) -> str:
        return self._tx.epoch

    @property
    def state(self) -> str:
        return self._writer.state

    def submit(self, work: Callable[[Unit], R], *, size: int = 0) -> asyncio.Future[R]:
        return self._writer.submit(lambda _tx: self._unit.run(work), size=size)

    def submit_with_callback(
        self,
        work: Callable[[Unit], Any],
        on_done: Callable[[Any, BaseException | None], None],
        *,
        size: int = 0,
        is_short: bool = False,
    ) -> None:
        del is_short
        self._writer.submit_with_callback(lambda _tx: self._unit.run(work), on_done, size=size)

    def loop_results(self) -> LoopResults:
        return self._writer.loop_results()

    async def known(self, ids: Sequence[str]) -> dict[str, int]:
        return await self._reads.run(lambda db: known_ids(db, ids))

    def statistics(self) -> dict[str, Any]:
        return self._writer.statistics() | self._reads.statistics() | {"wal_bytes": 0}

    def close(self) -> None:
        self._tx.stop_waiting()
        self.shared.close()
        self._writer.close()
        self._reads.close()
