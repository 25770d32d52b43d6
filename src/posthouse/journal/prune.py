"""Pruning: the journal loses only a prefix, and only after a snapshot of what replay needs from it.

The snapshot record stands above the prefix it replaces; rows that are still needed live in their own tables. A
cursor below the horizon gets cursor_pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.cursor import read_committed
from posthouse.model.errors import error


def prunable_through(tx: JournalTransaction, lake: str | None) -> int:
    """Return the last seq that pruning may remove: the head, or what the lake has committed of this epoch."""
    if lake is None:
        return tx.head
    epoch, _parent, _fork = tx.db.execute(SQL.current_epoch).fetchone() or ("", None, 0)
    return min(tx.head, read_committed(Path(lake).expanduser(), epoch))


def prune_prefix(tx: JournalTransaction, through_seq: int, state: Mapping[str, Any]) -> int:
    """Snapshot `state` and delete the records up to `through_seq`; return how many went."""
    pruned_through, _snapshot, _bytes = tx.db.execute(SQL.state).fetchone() or (0, None, 0)
    if through_seq > tx.head:
        raise error("cursor_invalid", cursor=str(through_seq))
    if through_seq <= pruned_through:
        return 0
    return delete_prefix(tx, through_seq, append_snapshot(tx, through_seq, state))


def append_snapshot(tx: JournalTransaction, through_seq: int, state: Mapping[str, Any]) -> int:
    """Append what replay starts from once the records up to `through_seq` are gone; return the snapshot's seq."""
    body = {"through_seq": through_seq, "state": dict(state)}
    return tx.append("journal.snapshot", ref=str(through_seq), body=body)


def delete_prefix(tx: JournalTransaction, through_seq: int, snapshot_seq: int) -> int:
    """Delete the records up to `through_seq` below a snapshot that stands for them; return how many went.

    The snapshot may stand for more than is deleted now: a long prefix goes bit by bit below one snapshot.
    """
    tx.flush()
    pruned_through, _snapshot, _bytes = tx.db.execute(SQL.state).fetchone() or (0, None, 0)
    if through_seq <= pruned_through:
        return 0
    removed_bytes = tx.db.execute(SQL.prefix_bytes, (through_seq,)).get
    tx.db.execute(SQL.delete_prefix, (through_seq,))
    tx.db.execute(SQL.set_pruned, (through_seq, snapshot_seq, removed_bytes))
    return through_seq - pruned_through
