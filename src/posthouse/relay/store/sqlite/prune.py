"""Pruning what the lake provably holds: a prefix of the journal, and the content of the events in it.

Here are the small steps, each for one transaction; posthouse.relay.ops.prune compares the digests first and puts the
steps together. Current replaceable and addressable events, messages on their way and confirmations that wait keep their
content and are remembered, so that a later pruning takes them; an event with an expiration goes by itself when that
comes. Records of messages and memberships live in their own tables, and the snapshot carries what replay needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import SQL as JOURNAL_SQL
from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import append_snapshot, delete_prefix
from posthouse.relay.deliver.sqlite import SqliteDeliveries
from posthouse.relay.deliver.sqlite.snapshot import unfinished
from posthouse.relay.locks.table import all_locks
from posthouse.relay.store.interface import Pruned, Released
from posthouse.relay.store.sqlite.mesh_rows import read_mesh_rows
from posthouse.relay.store.sqlite.plan import SQL
from posthouse.relay.store.sqlite.sweep import empty_events

_PRUNABLE = f"{SQL.prunable} {SQL.not_needed}"
_RELEASABLE = f"{SQL.releasable} {SQL.not_needed}"


def snapshot_journal(tx: JournalTransaction, through_seq: int) -> int:
    """Append the snapshot below which records up to `through_seq` can go."""
    return append_snapshot(tx, through_seq, snapshot_state(tx.db))


def prune(tx: JournalTransaction, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
    """Delete the oldest records up to `through_seq`; with a horizon also the content that nobody needs."""
    pruned_through, _snapshot, _bytes = tx.db.execute(JOURNAL_SQL.state).fetchone() or (0, None, 0)
    emptied = 0
    if horizon_ns is not None:
        emptied = _empty(tx, _PRUNABLE, pruned_through, through_seq, horizon_ns)
        tx.db.execute(SQL.keep_events, (pruned_through, through_seq))
    return Pruned(delete_prefix(tx, through_seq, snapshot_seq), emptied)


def release_kept(tx: JournalTransaction, after_seq: int, horizon_ns: int, limit: int) -> Released:
    """Empty those of the next kept events that nobody needs any more."""
    looked_at, through_seq = tx.db.execute(SQL.kept_through, (after_seq, limit)).fetchone() or (0, None)
    if through_seq is None:
        return Released(0, 0, None)
    return Released(_empty(tx, _RELEASABLE, after_seq, through_seq, horizon_ns), looked_at, through_seq)


def read_contents(db: apsw.Connection, after_seq: int, through_seq: int) -> list[bytes]:
    """Return the JSON of the events in a range of which the archive has to prove that it holds them."""
    return [raw for (raw,) in db.execute(SQL.contents, (after_seq, through_seq))]


def snapshot_state(db: apsw.Connection) -> dict[str, Any]:
    """Return what replay of the journal starts from."""
    state: dict[str, Any] = msgspec.to_builtins(read_mesh_rows(db))
    state["deliveries"] = unfinished(db)
    state["locks"] = [entry.snapshot() for entry in all_locks(db)]
    return state


def _empty(tx: JournalTransaction, statement: str, low: int, high: int, horizon_ns: int) -> int:
    bindings = {"low": low, "high": high, "horizon_ns": horizon_ns}
    rows: Sequence[Any] = tx.db.execute(statement, bindings).fetchall()
    if rows:
        seqs = [seq for seq, _address in rows]
        empty_events(tx.db, rows)
        SqliteDeliveries(tx).archive(seqs)
        tx.db.executemany(SQL.forget_kept, [(seq,) for seq in seqs])
    return len(rows)
