"""Removing event content on PostgreSQL: expired events, and events that the archive provably holds.

The row stays without its JSON, so its id is known for ever and the same signed bytes are never accepted twice.
Derived rows go, and the next larger event of an address becomes current. Implements its part of
posthouse.relay.store.protocol.Unit; the rules are those of posthouse.relay.store.sqlite.retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from posthouse.model.event import decode_event, read_fence_tag
from posthouse.model.limits import SECOND_NS
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.event_rows import Pruned, Released, event_address, event_terms
from posthouse.relay.store.postgresql.pg_deliveries import PgDeliveries, insert_columns
from posthouse.relay.store.postgresql.pg_delivery_reads import unfinished_deliveries
from posthouse.relay.store.postgresql.pg_journal import JOURNAL_SQL, PgTransaction
from posthouse.relay.store.postgresql.pg_locks import all_locks, last_token
from posthouse.relay.store.postgresql.pg_meshes import read_mesh_rows
from posthouse.relay.store.postgresql.pg_queries import EVENTS_SQL

_PRUNABLE = f"{EVENTS_SQL.prunable}\n{EVENTS_SQL.not_needed}"
_RELEASABLE = f"{EVENTS_SQL.releasable}\n{EVENTS_SQL.not_needed}"
_ROWS_PER_READ = 1_000


class RetentionTables:
    """Sweeping, pruning and reindexing, inside a transaction."""

    _tx: PgTransaction
    deliveries: PgDeliveries

    def sweep_expired(self, limit: int) -> int:
        rows = self._tx.db.rows(EVENTS_SQL.expired, self._tx.now_ns // SECOND_NS, limit)
        if rows:
            self.deliveries.expire_events([seq for seq, _address in rows])
            _empty_events(self._tx.db, rows)
        return len(rows)

    def snapshot_journal(self, through_seq: int) -> int:
        body = {"through_seq": through_seq, "state": _snapshot_state(self._tx.db)}
        return self._tx.append("journal.snapshot", ref=str(through_seq), body=body)

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        db = self._tx.db
        self._tx.flush()
        pruned_through, _snapshot = db.row(JOURNAL_SQL.state) or (0, None)
        emptied = 0
        if horizon_ns is not None:
            emptied = self._empty(_PRUNABLE, pruned_through, through_seq, horizon_ns)
            db.queue(EVENTS_SQL.keep_events, pruned_through, through_seq)
        if through_seq <= pruned_through:
            return Pruned(0, emptied)
        db.queue(JOURNAL_SQL.delete_prefix, through_seq)
        db.queue(JOURNAL_SQL.set_pruned, through_seq, snapshot_seq)
        return Pruned(through_seq - pruned_through, emptied)

    def release_kept(self, after_seq: int, horizon_ns: int, limit: int) -> Released:
        checked, through_seq = self._tx.db.row(EVENTS_SQL.kept_through, after_seq, limit) or (0, None)
        if through_seq is None:
            return Released(0, 0, None)
        return Released(self._empty(_RELEASABLE, after_seq, through_seq, horizon_ns), checked, through_seq)

    def reindex(self) -> None:
        db, seq = self._tx.db, 0
        db.queue(EVENTS_SQL.clear_derived)
        while rows := db.rows(EVENTS_SQL.events_after, seq, _ROWS_PER_READ):
            _index(db, rows)
            seq = rows[-1][0]

    def _empty(self, statement: str, low: int, high: int, horizon_ns: int) -> int:
        rows = self._tx.db.rows(statement, low, high, horizon_ns)
        if rows:
            seqs = [seq for seq, _address in rows]
            _empty_events(self._tx.db, rows)
            self.deliveries.archive(seqs)
            self._tx.db.queue(EVENTS_SQL.forget_kept, seqs)
        return len(rows)


def _empty_events(db: ServerConnection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Delete the content and the derived rows of events, given as (seq, address)."""
    seqs = [seq for seq, _address in rows]
    terms = [
        (term, seq)
        for seq, address, mesh, raw in db.rows(EVENTS_SQL.contents_of, seqs)
        for term in event_terms(decode_event(raw), mesh, address)
    ]
    insert_columns(db, EVENTS_SQL.remove_terms, terms)
    db.queue(EVENTS_SQL.empty_events, seqs)
    addresses = [address for _seq, address in rows if address is not None]
    if addresses:
        db.queue(EVENTS_SQL.remove_current, seqs)
        db.queue(EVENTS_SQL.next_current, addresses)
        db.queue(EVENTS_SQL.remove_fenced, seqs)


def _index(db: ServerConnection, rows: Sequence[tuple[Any, ...]]) -> None:
    terms, current, fenced = [], [], []
    for seq, raw, mesh in rows:
        event = decode_event(raw)
        address = event_address(event)
        terms += [(term, seq) for term in event_terms(event, mesh, address)]
        if address is not None:
            current.append((address, event.created_at_ns, bytes.fromhex(event.id), seq))
            if (fence := read_fence_tag(event)) is not None:
                fenced.append((seq, mesh, fence.resource.encode(), fence.token))
    insert_derived(db, terms, current, fenced)


def insert_derived(
    db: ServerConnection,
    terms: Sequence[tuple[bytes, int]],
    current: Sequence[tuple[bytes, int, bytes, int]],
    fenced: Sequence[tuple[int, str, bytes, int]],
) -> None:
    """Write the rows that are derived from events."""
    insert_columns(db, EVENTS_SQL.insert_terms, terms)
    insert_columns(db, EVENTS_SQL.insert_current, current)
    insert_columns(db, EVENTS_SQL.insert_fenced, fenced)


def _snapshot_state(db: ServerConnection) -> dict[str, Any]:
    """Return the state from which a replay of the journal starts."""
    state: dict[str, Any] = msgspec.to_builtins(read_mesh_rows(db))
    state["deliveries"] = unfinished_deliveries(db)
    state["locks"] = [entry.snapshot() for entry in all_locks(db)]
    state["token_counter"] = last_token(db)
    return state
