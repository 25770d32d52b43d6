"""Reading the journal: by cursor, in seq order, in short pages."""

from __future__ import annotations

from collections.abc import Collection

import apsw
import msgspec

from posthouse.journal.append import SQL
from posthouse.journal.extent import Extent, resolve
from posthouse.journal.record import Record

__all__ = ["Extent", "Record", "read_after", "read_extent", "resolve"]


def read_extent(db: apsw.Connection) -> Extent:
    """Return epoch, horizon and head as one snapshot sees them."""
    epochs = [(epoch, parent, fork_seq) for epoch, parent, fork_seq, _started in db.execute(SQL.all_epochs)]
    epoch, _parent, fork_seq = epochs[-1] if epochs else ("", None, 0)
    pruned_through, _snapshot, _bytes = db.execute(SQL.state).fetchone() or (0, None, 0)
    return Extent(epoch, fork_seq, pruned_through, db.execute(SQL.head).get, _ancestors(epochs))


def _ancestors(epochs: list[tuple[str, str | None, int]]) -> tuple[tuple[str, int], ...]:
    """Return each former epoch of this store with the last seq its history shares with this one."""
    by_name = {epoch: (parent, fork_seq) for epoch, parent, fork_seq in epochs}
    found: list[tuple[str, int]] = []
    parent, shared = by_name[epochs[-1][0]] if epochs else (None, 0)
    while parent is not None:
        found.append((parent, shared))
        parent, fork_seq = by_name.get(parent, (None, 0))
        shared = min(shared, fork_seq)
    return tuple(found)


def read_after(db: apsw.Connection, seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
    """Return up to `limit` records after `seq`, oldest first, of the given types or of all."""
    if types is None:
        rows = db.execute(SQL.read_after, (seq, limit))
    else:
        rows = db.execute(SQL.read_types_after, (seq, msgspec.json.encode(sorted(types)).decode(), limit))
    return [Record(*row) for row in rows]
