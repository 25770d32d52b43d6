"""Pruning: the journal loses only a prefix, and only after a snapshot of what replay needs from it.

The snapshot record stands above the prefix it replaces; what is still needed lives in its own tables. A cursor
below the horizon is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rfc8785
from blake3 import blake3

from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.read import Record
from posthouse.model.errors import error


def digest_range(tx: JournalTransaction, from_seq: int, to_seq: int) -> str:
    """Return the BLAKE3 digest over the canonical JSON lines of the records from_seq..to_seq."""
    hasher = blake3()
    for row in tx.db.execute(SQL.read_range, (from_seq, to_seq)):
        hasher.update(canonical_line(Record(*row)))
    return hasher.hexdigest()


def canonical_line(record: Record) -> bytes:
    """Return the one line of JSON that stands for a record in digests."""
    fields = record._asdict()
    fields["at_ns"] = str(record.at_ns)  # beyond 2^53, where JSON numbers stop being exact
    return rfc8785.dumps(fields) + b"\n"


def prune_prefix(tx: JournalTransaction, through_seq: int, state: Mapping[str, Any]) -> int:
    """Snapshot `state` and delete the records up to `through_seq`; return how many went."""
    pruned_through, _snapshot, _bytes = tx.db.execute(SQL.state).fetchone() or (0, None, 0)
    if through_seq > tx.head:
        raise error("cursor_invalid", cursor=str(through_seq))
    if through_seq <= pruned_through:
        return 0
    body = {"through_seq": through_seq, "state": dict(state)}
    snapshot_seq = tx.append("journal.snapshot", ref=str(through_seq), body=body)
    removed_bytes = tx.db.execute(SQL.prefix_bytes, (through_seq,)).get
    tx.db.execute(SQL.delete_prefix, (through_seq,))
    tx.db.execute(SQL.set_pruned, (through_seq, snapshot_seq, removed_bytes))
    return through_seq - pruned_through
