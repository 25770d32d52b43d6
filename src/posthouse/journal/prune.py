"""Pruning: the journal loses only a prefix, and only after a snapshot of what replay needs from it.

The snapshot record stands above the prefix it replaces; what is still needed lives in its own tables. A cursor
below the horizon is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.record import Record, canonical_line, digest_records
from posthouse.model.errors import error

__all__ = ["canonical_line", "digest_range", "prune_prefix"]


def digest_range(tx: JournalTransaction, from_seq: int, to_seq: int) -> str:
    """Return the BLAKE3 digest over the canonical JSON lines of the records from_seq..to_seq."""
    tx.flush()
    return digest_records(Record(*row) for row in tx.db.execute(SQL.read_range, (from_seq, to_seq)))


def prune_prefix(tx: JournalTransaction, through_seq: int, state: Mapping[str, Any]) -> int:
    """Snapshot `state` and delete the records up to `through_seq`; return how many went."""
    pruned_through, _snapshot, _bytes = tx.db.execute(SQL.state).fetchone() or (0, None, 0)
    if through_seq > tx.head:
        raise error("cursor_invalid", cursor=str(through_seq))
    if through_seq <= pruned_through:
        return 0
    body = {"through_seq": through_seq, "state": dict(state)}
    snapshot_seq = tx.append("journal.snapshot", ref=str(through_seq), body=body)
    tx.flush()
    removed_bytes = tx.db.execute(SQL.prefix_bytes, (through_seq,)).get
    tx.db.execute(SQL.delete_prefix, (through_seq,))
    tx.db.execute(SQL.set_pruned, (through_seq, snapshot_seq, removed_bytes))
    return through_seq - pruned_through
