"""Removing event content and pruning on PostgreSQL: the statements of posthouse.relay.store.removing_events.

Changes are queued in the pipeline of the group; only results that are needed are read. Implements its part of
posthouse.relay.store.protocol.Unit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from posthouse.model.event import decode_event, read_fence_tag
from posthouse.model.limits import INT64_MAX
from posthouse.model.node import node_from_key, node_key
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.closing_deliveries import Found
from posthouse.relay.store.event_rows import (
    NO_TOMBSTONES,
    ContentRow,
    Pruned,
    Tombstones,
    Usage,
    event_address,
    event_terms,
)
from posthouse.relay.store.postgresql.pg_deliveries import PgDeliveries, insert_columns
from posthouse.relay.store.postgresql.pg_delivery_reads import unfinished_deliveries
from posthouse.relay.store.postgresql.pg_journal import JOURNAL_SQL, PgTransaction
from posthouse.relay.store.postgresql.pg_locks import all_locks, last_token
from posthouse.relay.store.postgresql.pg_meshes import read_mesh_rows
from posthouse.relay.store.postgresql.pg_queries import EVENTS_SQL, content_rows, contents_of_ids
from posthouse.relay.store.removing_events import Emptied, RemovingEvents, sum_usage

_PRUNABLE = f"{EVENTS_SQL.prunable}\n{EVENTS_SQL.not_needed}"
_RELEASABLE = f"{EVENTS_SQL.releasable}\n{EVENTS_SQL.not_needed}"
_UNNEEDED = f"{EVENTS_SQL.among}\n{EVENTS_SQL.not_needed}"
_OLDEST = f"{EVENTS_SQL.oldest_of_mesh}\n{EVENTS_SQL.not_needed}\nORDER BY e.seq"
_OF_SEQS = f"{EVENTS_SQL.content_rows}\n{EVENTS_SQL.of_seqs}"
_OF_ADDRESS = f"{EVENTS_SQL.content_rows}\n{EVENTS_SQL.of_address}"
_ROWS_PER_READ = 1_000
_USAGE_CHANGES_MOST = 500  # a group that needs the usage of a mesh reads as many rows of each relay


class RetentionTables(RemovingEvents):
    """Sweeping, deleting, pruning and reindexing, inside a transaction."""

    _tx: PgTransaction
    deliveries: PgDeliveries
    #: rows of usage_changes that this relay has written since it last added them up
    _usage_changes = 0

    def snapshot_journal(self, through_seq: int) -> int:
        body = {"through_seq": through_seq, "state": _snapshot_state(self._tx.db)}
        return self._tx.append("journal.snapshot", ref=str(through_seq), body=body)

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        db = self._tx.db
        self._tx.flush()
        pruned_through, _snapshot = db.row(JOURNAL_SQL.state) or (0, None)
        emptied = 0
        if horizon_ns is not None:
            emptied = self._archive(self._seqs(_PRUNABLE, pruned_through, through_seq, horizon_ns))
            db.queue(EVENTS_SQL.keep_events, pruned_through, through_seq)
        if through_seq <= pruned_through:
            return Pruned(0, emptied)
        db.queue(JOURNAL_SQL.delete_prefix, through_seq)
        db.queue(JOURNAL_SQL.set_pruned, through_seq, snapshot_seq)
        return Pruned(through_seq - pruned_through, emptied)

    def reindex(self) -> None:
        db, seq = self._tx.db, 0
        db.queue(EVENTS_SQL.clear_derived)
        while rows := db.rows(EVENTS_SQL.events_after, seq, _ROWS_PER_READ):
            _index(db, rows)
            seq = rows[-1][0]
        insert_derived(db, [], db.rows(EVENTS_SQL.erased_versions), [])  # they keep their place

    def find_contents(self, ids: Sequence[str]) -> list[ContentRow]:
        return contents_of_ids(self._tx.db, ids)

    def find_contents_of(self, seqs: Sequence[int]) -> list[ContentRow]:
        return content_rows(self._tx.db, _OF_SEQS, list(seqs)) if seqs else []

    def find_versions(self, address: bytes, through_ns: int, limit: int) -> list[ContentRow]:
        return content_rows(self._tx.db, _OF_ADDRESS, address, through_ns, limit)

    def find_tombstones(self, ids: Sequence[str], addresses: Collection[bytes]) -> Tombstones:
        if not self._tx.has_tombstones:
            return NO_TOMBSTONES
        blocked = self._tx.db.queue(EVENTS_SQL.blocked_ids, [bytes.fromhex(id_) for id_ in ids])
        deleted = self._tx.db.rows(EVENTS_SQL.deleted_addresses, list(addresses)) if addresses else []
        return Tombstones(frozenset((id_.hex(), node_from_key(author)) for id_, author in blocked), dict(deleted))

    def block_ids(self, ids: Sequence[str], author: str, created_at_ns: int) -> None:
        self._tx.has_tombstones = True
        keys = [bytes.fromhex(id_) for id_ in ids]
        self._tx.db.queue(EVENTS_SQL.block_ids, keys, node_key(author), created_at_ns)

    def delete_address(self, address: bytes, through_ns: int, *, is_pending: bool) -> None:
        self._tx.has_tombstones = True
        self._tx.db.queue(EVENTS_SQL.delete_address, address, through_ns, is_pending)

    def _pending_address(self) -> tuple[bytes, int] | None:
        found: tuple[Any, ...] | None = self._tx.db.row(EVENTS_SQL.pending_address)
        return None if found is None else (found[0], found[1])

    def _finish_address(self, address: bytes) -> None:
        self._tx.db.queue(EVENTS_SQL.finish_address, address)

    def _count_removed(self, changes: Sequence[tuple[str, int, int]]) -> None:
        self.count_usage(changes)

    def count_usage(self, changes: Sequence[tuple[str, int, int]]) -> None:
        insert_columns(self._tx.db, EVENTS_SQL.count_usage, sum_usage(changes))
        self._usage_changes += 1
        if self._usage_changes >= _USAGE_CHANGES_MOST:
            self._usage_changes = 0
            self._tx.db.queue(EVENTS_SQL.add_up_usage)
            self._tx.db.queue(EVENTS_SQL.forget_usage_changes)

    def mesh_usage(self, mesh: str) -> Usage:
        return Usage(*(self._tx.db.row(EVENTS_SQL.usage_of, mesh) or (0, 0)))

    def begin_mesh_erasure(self, mesh: str, actor: str) -> None:
        self._tx.db.queue(EVENTS_SQL.begin_mesh_erasure, mesh, actor)

    def release_pages(self, limit: int) -> int:
        del limit  # PostgreSQL reuses free space by itself
        return 0

    def _oldest_unneeded(self, term: bytes, limit: int) -> Found:
        return self._tx.db.rows(_OLDEST, term, limit, INT64_MAX)

    def _events_of_mesh(self, term: bytes, after_seq: int, limit: int, versions: int) -> Found:
        return self._tx.db.rows(EVENTS_SQL.events_of_mesh, term, after_seq, limit, versions)

    def _unneeded_among(self, seqs: Sequence[int]) -> list[int]:
        return self._seqs(_UNNEEDED, list(seqs), None, INT64_MAX) if seqs else []

    def _pending_mesh(self) -> tuple[str, str, int] | None:
        found: tuple[Any, ...] | None = self._tx.db.row(EVENTS_SQL.pending_mesh)
        return None if found is None else (found[0], found[1], found[2])

    def _seqs_of_mesh(self, mesh: str, low: int, high: int) -> list[int]:
        return self._seqs(EVENTS_SQL.seqs_of_mesh, mesh, low, high)

    def _note_mesh_erased(self, mesh: str, through_seq: int, *, is_done: bool) -> None:
        if is_done:
            self._tx.db.queue(EVENTS_SQL.end_mesh_erasure, mesh)
        else:
            self._tx.db.queue(EVENTS_SQL.note_mesh_erased, mesh, through_seq)

    def _known_events(self, after_seq: int, limit: int) -> Found:
        return self._tx.db.rows(EVENTS_SQL.known_events, after_seq, limit)

    def _forget(self, seqs: Sequence[int]) -> None:
        self._tx.db.queue(EVENTS_SQL.forget_events, list(seqs))

    def _forget_tombstones(self, before_ns: int) -> None:
        self._tx.db.queue(EVENTS_SQL.forget_blocked, before_ns)
        self._tx.db.queue(EVENTS_SQL.forget_deleted, before_ns)

    def _expired(self, now_s: int, limit: int) -> list[int]:
        return self._seqs(EVENTS_SQL.expired, now_s, limit)

    def _kept_through(self, after_seq: int, limit: int) -> tuple[int, int | None]:
        found: Any = self._tx.db.row(EVENTS_SQL.kept_through, after_seq, limit)
        return found or (0, None)

    def _releasable(self, low: int, high: int, horizon_ns: int) -> list[int]:
        return self._seqs(_RELEASABLE, low, high, horizon_ns)

    def _seqs(self, statement: str, *parameters: Any) -> list[int]:
        return [seq for (seq,) in self._tx.db.rows(statement, *parameters)]

    def _remove_terms(self, terms: Sequence[tuple[bytes, int]]) -> None:
        insert_columns(self._tx.db, EVENTS_SQL.remove_terms, terms)

    def _empty(self, rows: Sequence[Emptied], *, is_erased: bool) -> None:
        seqs, digests = map(list, zip(*rows, strict=True))
        self._tx.db.queue(EVENTS_SQL.empty_events, seqs, digests, is_erased)

    def _pass_on_current(self, rows: Sequence[tuple[bytes, int]]) -> None:
        if rows:
            self._tx.db.queue(EVENTS_SQL.remove_current, [seq for _address, seq in rows])
            self._tx.db.queue(EVENTS_SQL.next_current, [address for address, _seq in rows])

    def _remove_fenced(self, seqs: Sequence[int]) -> None:
        self._tx.db.queue(EVENTS_SQL.remove_fenced, list(seqs))

    def _forget_kept(self, seqs: Sequence[int]) -> None:
        self._tx.db.queue(EVENTS_SQL.forget_kept, list(seqs))


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
