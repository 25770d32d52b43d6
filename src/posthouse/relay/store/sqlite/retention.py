"""Removing event content on SQLite, and pruning the journal: the statements of posthouse.relay.store.removing_events.

Pruning runs in small steps, one transaction each; current events, open messages and waiting confirmations keep their
content and are remembered for a later pruning. The snapshot carries what replay needs. posthouse.relay.ops.housekeeping
compares the digests first.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import SQL as JOURNAL_SQL
from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import append_snapshot, delete_prefix
from posthouse.model.limits import INT64_MAX
from posthouse.model.node import node_key
from posthouse.relay.store.closing_deliveries import Found
from posthouse.relay.store.event_rows import ContentRow, Pruned, Tombstones, Usage
from posthouse.relay.store.removing_events import Emptied, RemovingEvents, sum_usage
from posthouse.relay.store.sqlite.deliveries import SqliteDeliveries
from posthouse.relay.store.sqlite.delivery_reads import unfinished_deliveries
from posthouse.relay.store.sqlite.event_index import EventIndex
from posthouse.relay.store.sqlite.lock_requests import LockRequests
from posthouse.relay.store.sqlite.meshes_and_locks import all_locks, last_token, read_mesh_rows
from posthouse.relay.store.sqlite.queries import EVENTS_SQL, content_rows, contents_of_ids, id_keys

_PRUNABLE = f"{EVENTS_SQL.prunable} {EVENTS_SQL.not_needed}"
_RELEASABLE = f"{EVENTS_SQL.releasable} {EVENTS_SQL.not_needed}"
_UNNEEDED = f"{EVENTS_SQL.among} {EVENTS_SQL.not_needed}"
_OLDEST = f"{EVENTS_SQL.oldest_of_mesh} {EVENTS_SQL.not_needed} ORDER BY e.seq"
_OF_SEQS = f"{EVENTS_SQL.content_rows} {EVENTS_SQL.of_seqs}"
_OF_ADDRESS = f"{EVENTS_SQL.content_rows} {EVENTS_SQL.of_address}"


class RetentionTables(RemovingEvents):
    """Sweeping, deleting and pruning, inside a transaction; implements its part of Unit."""

    _db: apsw.Connection
    _tx: JournalTransaction
    _index: EventIndex
    _requests: LockRequests
    deliveries: SqliteDeliveries
    #: set by the first deletion that blocks something; nothing else writes to the file
    has_tombstones: bool

    def snapshot_journal(self, through_seq: int) -> int:
        return append_snapshot(self._tx, through_seq, _snapshot_state(self._db))

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        pruned_through, _snapshot, _bytes = self._db.execute(JOURNAL_SQL.state).fetchone() or (0, None, 0)
        emptied = 0
        self._requests.write_through(through_seq)
        if horizon_ns is not None:
            emptied = self._archive(self._not_needed(_PRUNABLE, pruned_through, through_seq, horizon_ns))
            self._db.execute(EVENTS_SQL.keep_events, (pruned_through, through_seq))
        return Pruned(delete_prefix(self._tx, through_seq, snapshot_seq), emptied)

    def find_contents(self, ids: Sequence[str]) -> list[ContentRow]:
        return contents_of_ids(self._db, ids)

    def find_contents_of(self, seqs: Sequence[int]) -> list[ContentRow]:
        return content_rows(self._db, _OF_SEQS, (apsw.carray(array("q", seqs)),)) if seqs else []

    def find_versions(self, address: bytes, through_ns: int, limit: int) -> list[ContentRow]:
        return content_rows(self._db, _OF_ADDRESS, (address, through_ns, limit))

    def find_tombstones(self, ids: Sequence[str], addresses: Collection[bytes]) -> Tombstones:
        blocked: Any = self._db.execute(EVENTS_SQL.blocked_ids, (apsw.carray(id_keys(ids)),)) if ids else ()
        deleted: Any = ()
        if addresses:
            deleted = self._db.execute(EVENTS_SQL.deleted_addresses, (apsw.carray(tuple(addresses)),))
        return Tombstones(frozenset(blocked), dict(deleted))

    def block_ids(self, ids: Sequence[str], author: str, created_at_ns: int) -> None:
        self.has_tombstones = True
        rows = [(id_, node_key(author), created_at_ns) for id_ in id_keys(ids)]
        self._db.executemany(EVENTS_SQL.block_id, rows)

    def delete_address(self, address: bytes, through_ns: int, *, is_pending: bool) -> None:
        self.has_tombstones = True
        self._db.execute(EVENTS_SQL.delete_address, (address, through_ns, is_pending))

    def _pending_address(self) -> tuple[bytes, int] | None:
        found: tuple[Any, ...] | None = self._db.execute(EVENTS_SQL.pending_address).fetchone()
        return None if found is None else (found[0], found[1])

    def _finish_address(self, address: bytes) -> None:
        self._db.execute(EVENTS_SQL.finish_address, (address,))

    def _count_removed(self, changes: Sequence[tuple[str, int, int]]) -> None:
        self._db.executemany(EVENTS_SQL.count_usage, sum_usage(changes))

    def mesh_usage(self, mesh: str) -> Usage:
        return self._index.usage_of(mesh)

    def begin_mesh_erasure(self, mesh: str, actor: str) -> None:
        self._db.execute(EVENTS_SQL.begin_mesh_erasure, (mesh, actor))

    def release_pages(self, limit: int) -> int:
        self._db.execute(f"PRAGMA incremental_vacuum({limit})").fetchall()
        return int(self._db.pragma("freelist_count"))

    def _oldest_unneeded(self, term: bytes, limit: int) -> Found:
        self._index.write()
        bindings = {"term": term, "limit": limit, "horizon_ns": INT64_MAX}
        rows: list[Any] = self._db.execute(_OLDEST, bindings).fetchall()
        return rows

    def _events_of_mesh(self, term: bytes, after_seq: int, limit: int, versions: int) -> Found:
        self._index.write()
        rows: list[Any] = self._db.execute(EVENTS_SQL.events_of_mesh, (term, after_seq, limit, versions)).fetchall()
        return rows

    def _unneeded_among(self, seqs: Sequence[int]) -> list[int]:
        if not seqs:
            return []
        bindings = {"seqs": apsw.carray(array("q", seqs)), "horizon_ns": INT64_MAX}
        return _first_column(self._db.execute(_UNNEEDED, bindings))

    def _pending_mesh(self) -> tuple[str, str, int] | None:
        found: tuple[Any, ...] | None = self._db.execute(EVENTS_SQL.pending_mesh).fetchone()
        return None if found is None else (found[0], found[1], found[2])

    def _seqs_of_mesh(self, mesh: str, low: int, high: int) -> list[int]:
        return _first_column(self._db.execute(EVENTS_SQL.seqs_of_mesh, (mesh, low, high)))

    def _note_mesh_erased(self, mesh: str, through_seq: int, *, is_done: bool) -> None:
        if is_done:
            self._db.execute(EVENTS_SQL.end_mesh_erasure, (mesh,))
        else:
            self._db.execute(EVENTS_SQL.note_mesh_erased, (mesh, through_seq))

    def _known_events(self, after_seq: int, limit: int) -> Found:
        rows: list[Any] = self._db.execute(EVENTS_SQL.known_events, (after_seq, limit)).fetchall()
        return rows

    def _forget(self, seqs: Sequence[int]) -> None:
        if not seqs:
            return
        self._index.write()  # from here on it has the ids that are forgotten
        self._db.executemany(EVENTS_SQL.forget_id, [(seq,) for seq in seqs])
        self._db.executemany(EVENTS_SQL.forget_event, [(seq,) for seq in seqs])

    def _forget_tombstones(self, before_ns: int) -> None:
        self._db.execute(EVENTS_SQL.forget_blocked, (before_ns,))
        self._db.execute(EVENTS_SQL.forget_deleted, (before_ns,))

    def _expired(self, now_s: int, limit: int) -> list[int]:
        return _first_column(self._db.execute(EVENTS_SQL.expired, (now_s, limit)))

    def _kept_through(self, after_seq: int, limit: int) -> tuple[int, int | None]:
        return self._db.execute(EVENTS_SQL.kept_through, (after_seq, limit)).fetchone() or (0, None)

    def _releasable(self, low: int, high: int, horizon_ns: int) -> list[int]:
        return self._not_needed(_RELEASABLE, low, high, horizon_ns)

    def _not_needed(self, statement: str, low: int, high: int, horizon_ns: int) -> list[int]:
        return _first_column(self._db.execute(statement, {"low": low, "high": high, "horizon_ns": horizon_ns}))

    def _remove_terms(self, terms: Sequence[tuple[bytes, int]]) -> None:
        self._index.write()  # from here on it has the events that lose their terms
        self._db.executemany(EVENTS_SQL.remove_term, sorted(terms))  # in index order: neighbours share their pages

    def _empty(self, rows: Sequence[Emptied], *, is_erased: bool) -> None:
        self._db.executemany(EVENTS_SQL.empty_event, [(*row, is_erased) for row in rows])

    def _pass_on_current(self, rows: Sequence[tuple[bytes, int]]) -> None:
        self._db.executemany(EVENTS_SQL.remove_current, rows)
        self._db.executemany(EVENTS_SQL.next_current, [(address,) for address, _seq in rows])

    def _remove_fenced(self, seqs: Sequence[int]) -> None:
        self._db.executemany(EVENTS_SQL.remove_fenced, [(seq,) for seq in seqs])

    def _forget_kept(self, seqs: Sequence[int]) -> None:
        self._db.executemany(EVENTS_SQL.forget_kept, [(seq,) for seq in seqs])


def _first_column(rows: Any) -> list[int]:
    return [seq for (seq,) in rows]


def _snapshot_state(db: apsw.Connection) -> dict[str, Any]:
    """Return the state from which a replay of the journal starts."""
    state: dict[str, Any] = msgspec.to_builtins(read_mesh_rows(db))
    state["deliveries"] = unfinished_deliveries(db)
    state["locks"] = [entry.snapshot() for entry in all_locks(db)]
    state["token_counter"] = last_token(db)
    return state
