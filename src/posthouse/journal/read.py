"""Reading the journal: by cursor, in seq order, in short pages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.journal.append import SQL
from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.errors import error


class Record(NamedTuple):
    """One fact of the journal; `body` is JSON text."""

    seq: int
    at_ns: int
    type: str
    mesh: str | None
    actor: str | None
    ref: str | None
    body: str

    def decoded_body(self) -> dict[str, Any]:
        """Return the body as a dictionary."""
        return msgspec.json.decode(self.body, type=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Extent:
    """What a journal holds: its epoch, and the seqs (pruned_through, head]."""

    epoch: str
    fork_seq: int
    pruned_through: int
    head: int

    def cursor(self, seq: int) -> Cursor:
        return Cursor(self.epoch, seq)


def read_extent(db: apsw.Connection) -> Extent:
    """Return epoch, horizon and head as one snapshot sees them."""
    epoch, _parent, fork_seq = db.execute(SQL.current_epoch).fetchone() or ("", None, 0)
    pruned_through, _snapshot, _bytes = db.execute(SQL.state).fetchone() or (0, None, 0)
    return Extent(epoch, fork_seq, pruned_through, db.execute(SQL.head).get)


def resolve(extent: Extent, cursor: str | None) -> int:
    """Return the seq after which `cursor` continues; without a cursor, the oldest place that is still there."""
    if cursor is None:
        return extent.pruned_through
    place = parse_cursor(cursor)
    if place.epoch != extent.epoch:
        restart = extent.cursor(max(extent.fork_seq, extent.pruned_through))
        raise error("cursor_reset", fork_seq=extent.fork_seq, cursor=str(restart))
    if place.seq > extent.head:
        raise error("cursor_invalid", cursor=cursor)
    if place.seq < extent.pruned_through:
        restart = extent.cursor(extent.pruned_through)
        raise error("cursor_pruned", oldest_seq=extent.pruned_through + 1, cursor=str(restart))
    return place.seq


def read_after(db: apsw.Connection, seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
    """Return up to `limit` records after `seq`, oldest first, of the given types or of all."""
    if types is None:
        rows = db.execute(SQL.read_after, (seq, limit))
    else:
        rows = db.execute(SQL.read_types_after, (seq, msgspec.json.encode(sorted(types)).decode(), limit))
    return [Record(*row) for row in rows]
