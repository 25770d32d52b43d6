"""Removing event content on SQLite: expired events, and events that the archive provably holds.

The row stays without its JSON, so its id is known for ever and the same signed bytes are never accepted twice.
Derived rows go, and the next larger event of an address becomes current. Pruning runs in small steps, one transaction
each; current events, open messages and waiting confirmations keep their content and are remembered for a later
pruning. The snapshot carries what replay needs. posthouse.relay.ops.housekeeping compares the digests first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import SQL as JOURNAL_SQL
from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import append_snapshot, delete_prefix
from posthouse.model.event import decode_event
from posthouse.model.limits import SECOND_NS
from posthouse.relay.store.event_rows import Pruned, Released, event_terms
from posthouse.relay.store.sqlite.deliveries import SqliteDeliveries
from posthouse.relay.store.sqlite.delivery_reads import unfinished_deliveries
from posthouse.relay.store.sqlite.meshes_and_locks import all_locks, last_token, read_mesh_rows
from posthouse.relay.store.sqlite.queries import EVENTS_SQL

_PRUNABLE = f"{EVENTS_SQL.prunable} {EVENTS_SQL.not_needed}"
_RELEASABLE = f"{EVENTS_SQL.releasable} {EVENTS_SQL.not_needed}"


class RetentionTables:
    """Sweeping and pruning, inside a transaction; implements its part of posthouse.relay.store.protocol.Unit."""

    _db: apsw.Connection
    _tx: JournalTransaction
    deliveries: SqliteDeliveries

    def sweep_expired(self, limit: int) -> int:
        rows: list[Any] = self._db.execute(EVENTS_SQL.expired, (self._tx.now_ns // SECOND_NS, limit)).fetchall()
        if rows:
            self.deliveries.expire_events([seq for seq, _address in rows])
            _empty_events(self._db, rows)
        return len(rows)

    def snapshot_journal(self, through_seq: int) -> int:
        return append_snapshot(self._tx, through_seq, _snapshot_state(self._db))

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        pruned_through, _snapshot, _bytes = self._db.execute(JOURNAL_SQL.state).fetchone() or (0, None, 0)
        emptied = 0
        if horizon_ns is not None:
            emptied = self._empty(_PRUNABLE, pruned_through, through_seq, horizon_ns)
            self._db.execute(EVENTS_SQL.keep_events, (pruned_through, through_seq))
        return Pruned(delete_prefix(self._tx, through_seq, snapshot_seq), emptied)

    def release_kept(self, after_seq: int, horizon_ns: int, limit: int) -> Released:
        checked, through_seq = self._db.execute(EVENTS_SQL.kept_through, (after_seq, limit)).fetchone() or (0, None)
        if through_seq is None:
            return Released(0, 0, None)
        return Released(self._empty(_RELEASABLE, after_seq, through_seq, horizon_ns), checked, through_seq)

    def _empty(self, statement: str, low: int, high: int, horizon_ns: int) -> int:
        bindings = {"low": low, "high": high, "horizon_ns": horizon_ns}
        rows: Sequence[Any] = self._db.execute(statement, bindings).fetchall()
        if rows:
            seqs = [seq for seq, _address in rows]
            _empty_events(self._db, rows)
            self.deliveries.archive(seqs)
            self._db.executemany(EVENTS_SQL.forget_kept, [(seq,) for seq in seqs])
        return len(rows)


def _empty_events(db: apsw.Connection, rows: Sequence[tuple[int, bytes | None]]) -> None:
    """Delete the content and the derived rows of events, given as (seq, address)."""
    terms: list[tuple[bytes, int]] = []
    for seq, address in rows:
        raw, mesh = db.execute(EVENTS_SQL.raw_of, (seq,)).fetchone() or (b"", "")
        terms += [(term, seq) for term in event_terms(decode_event(raw), mesh, address)]
    db.executemany(EVENTS_SQL.remove_term, sorted(terms))  # in the order of the index: neighbours share their pages
    db.executemany(EVENTS_SQL.empty_event, [(seq,) for seq, _ in rows])
    for seq, address in rows:
        if address is not None:
            db.execute(EVENTS_SQL.remove_current, (address, seq))
            db.execute(EVENTS_SQL.next_current, (address,))
            db.execute(EVENTS_SQL.remove_fenced, (seq,))


def _snapshot_state(db: apsw.Connection) -> dict[str, Any]:
    """Return the state from which a replay of the journal starts."""
    state: dict[str, Any] = msgspec.to_builtins(read_mesh_rows(db))
    state["deliveries"] = unfinished_deliveries(db)
    state["locks"] = [entry.snapshot() for entry in all_locks(db)]
    state["token_counter"] = last_token(db)
    return state
