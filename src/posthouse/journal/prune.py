"""Pruning: delete a prefix of the journal, after a snapshot of the state that replay needs from it.

The snapshot record follows the prefix that it replaces; rows that are still needed are in other tables. A cursor below
the horizon gets cursor_pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.cursor import lake_directory, read_committed
from posthouse.journal.read import JournalState, read_state
from posthouse.model.errors import error


def prunable_through(tx: JournalTransaction, lake: str | None) -> int:
    """Return the last seq that pruning may delete: the head, or the last one that the lake has committed."""
    if lake is None:
        return tx.head
    epoch, _parent, _fork = tx.db.execute(SQL.current_epoch).fetchone() or ("", None, 0)
    return min(tx.head, read_committed(lake_directory(lake), epoch))


def count_bytes(tx: JournalTransaction) -> JournalState:
    """Add the records appended since the last count to the size of the journal; return the state."""
    tx.flush()
    tx.db.execute(SQL.count_bytes, (tx.head,))
    return read_state(tx.db)


def prune_prefix(tx: JournalTransaction, through_seq: int, state: Mapping[str, Any]) -> int:
    """Snapshot `state` and delete the records up to `through_seq`; return the number of deleted records."""
    pruned_through = read_state(tx.db).pruned_through
    if through_seq > tx.head:
        raise error("cursor_invalid", cursor=str(through_seq))
    if through_seq <= pruned_through:
        return 0
    return delete_prefix(tx, through_seq, append_snapshot(tx, through_seq, state))


def append_snapshot(tx: JournalTransaction, through_seq: int, state: Mapping[str, Any]) -> int:
    """Append the state from which replay starts once the records up to `through_seq` are deleted; return its seq."""
    body = {"through_seq": through_seq, "state": dict(state)}
    return tx.append("journal.snapshot", ref=str(through_seq), body=body)


def delete_prefix(tx: JournalTransaction, through_seq: int, snapshot_seq: int) -> int:
    """Delete the records up to `through_seq`, which a snapshot replaces; return the number of deleted records.

    The snapshot may replace more than this call deletes: a long prefix is deleted in steps under one snapshot.
    """
    tx.flush()
    pruned_through = read_state(tx.db).pruned_through
    if through_seq <= pruned_through:
        return 0
    removed_bytes = tx.db.execute(SQL.prefix_bytes, (through_seq,)).get
    tx.db.execute(SQL.delete_prefix, (through_seq,))
    tx.db.execute(SQL.set_pruned, (through_seq, snapshot_seq, removed_bytes))
    return through_seq - pruned_through
