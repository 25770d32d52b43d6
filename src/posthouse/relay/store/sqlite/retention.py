"""Removing event content on SQLite: expired events, and what the archive provably holds.

The row stays without its JSON, so its id is known for ever and the same signed bytes are never accepted twice;
derived rows go, and the next larger event of a line becomes current. Pruning runs in small steps, one transaction
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
from posthouse.relay.store.sqlite.meshes_and_locks import all_locks, read_mesh_rows
from posthouse.relay.store.sqlite.queries import EVENTS_SQL


def sweep_expired(tx: JournalTransaction, limit: int) -> int:
    """Empty up to `limit` events whose expiration has come, and return how many."""
    rows: list[Any] = tx.db.execute(EVENTS_SQL.expired, (tx.now_ns // SECOND_NS, limit)).fetchall()
    if rows:
        SqliteDeliveries(tx).expire_events([seq for seq, _address in rows])
        empty_events(tx.db, rows)
    return len(rows)


def empty_events(db: apsw.Connection, rows: Sequence[tuple[int, bytes | None]]) -> None:
    """Take content and derived rows of events, given as (seq, address), away."""
    terms: list[tuple[bytes, int]] = []
    for seq, address in rows:
        raw, mesh = db.execute(EVENTS_SQL.raw_of, (seq,)).fetchone() or (b"", "")
        terms += [(term, seq) for term in event_terms(decode_event(raw), mesh, address)]
    db.executemany(EVENTS_SQL.remove_term, sorted(terms))  # in the order of the tree, as they were written
    db.executemany(EVENTS_SQL.empty_event, [(seq,) for seq, _ in rows])
    for seq, address in rows:
        if address is not None:
            db.execute(EVENTS_SQL.remove_current, (address, seq))
            db.execute(EVENTS_SQL.next_current, (address,))


_PRUNABLE = f"{EVENTS_SQL.prunable} {EVENTS_SQL.not_needed}"
_RELEASABLE = f"{EVENTS_SQL.releasable} {EVENTS_SQL.not_needed}"


def snapshot_journal(tx: JournalTransaction, through_seq: int) -> int:
    """Append the snapshot below which records up to `through_seq` can go."""
    return append_snapshot(tx, through_seq, snapshot_state(tx.db))


def prune(tx: JournalTransaction, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
    """Delete the oldest records up to `through_seq`; with a horizon also the content that nobody needs."""
    pruned_through, _snapshot, _bytes = tx.db.execute(JOURNAL_SQL.state).fetchone() or (0, None, 0)
    emptied = 0
    if horizon_ns is not None:
        emptied = _empty(tx, _PRUNABLE, pruned_through, through_seq, horizon_ns)
        tx.db.execute(EVENTS_SQL.keep_events, (pruned_through, through_seq))
    return Pruned(delete_prefix(tx, through_seq, snapshot_seq), emptied)


def release_kept(tx: JournalTransaction, after_seq: int, horizon_ns: int, limit: int) -> Released:
    """Empty those of the next kept events that nobody needs any more."""
    looked_at, through_seq = tx.db.execute(EVENTS_SQL.kept_through, (after_seq, limit)).fetchone() or (0, None)
    if through_seq is None:
        return Released(0, 0, None)
    return Released(_empty(tx, _RELEASABLE, after_seq, through_seq, horizon_ns), looked_at, through_seq)


def read_contents(db: apsw.Connection, after_seq: int, through_seq: int) -> list[bytes]:
    """Return the JSON of the events in a range of which the archive has to prove that it holds them."""
    return [raw for (raw,) in db.execute(EVENTS_SQL.contents, (after_seq, through_seq))]


def snapshot_state(db: apsw.Connection) -> dict[str, Any]:
    """Return what replay of the journal starts from."""
    state: dict[str, Any] = msgspec.to_builtins(read_mesh_rows(db))
    state["deliveries"] = unfinished_deliveries(db)
    state["locks"] = [entry.snapshot() for entry in all_locks(db)]
    return state


def _empty(tx: JournalTransaction, statement: str, low: int, high: int, horizon_ns: int) -> int:
    bindings = {"low": low, "high": high, "horizon_ns": horizon_ns}
    rows: Sequence[Any] = tx.db.execute(statement, bindings).fetchall()
    if rows:
        seqs = [seq for seq, _address in rows]
        empty_events(tx.db, rows)
        SqliteDeliveries(tx).archive(seqs)
        tx.db.executemany(EVENTS_SQL.forget_kept, [(seq,) for seq in seqs])
    return len(rows)
