"""What a journal holds, and where a cursor continues in it.

Nothing is ever skipped silently. A cursor of another epoch is told to start over where the two histories were
still one: at its own seq when it stood below the fork, at the fork when it had read beyond, and at the oldest
record when its epoch is unknown here. Needs no SQLite.
"""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.errors import error


@dataclass(frozen=True, slots=True)
class Extent:
    """What a journal holds: its epoch, and the seqs (pruned_through, head]."""

    epoch: str
    fork_seq: int
    pruned_through: int
    head: int
    #: The epochs this history came from, each with the last seq that both share.
    ancestors: tuple[tuple[str, int], ...] = ()

    def cursor(self, seq: int) -> Cursor:
        """Return the cursor right after `seq`."""
        return Cursor(self.epoch, seq)


def resolve(extent: Extent, cursor: str | None) -> int:
    """Return the seq after which `cursor` continues; without a cursor, the oldest place that is still there."""
    if cursor is None:
        return extent.pruned_through
    place = parse_cursor(cursor)
    if place.epoch != extent.epoch:
        restart = extent.cursor(_shared_seq(extent, place))
        raise error("cursor_reset", fork_seq=extent.fork_seq, cursor=str(restart))
    if place.seq > extent.head:
        raise error("cursor_invalid", cursor=cursor)
    if place.seq < extent.pruned_through:
        restart = extent.cursor(extent.pruned_through)
        raise error("cursor_pruned", oldest_seq=extent.pruned_through + 1, cursor=str(restart))
    return place.seq


def _shared_seq(extent: Extent, place: Cursor) -> int:
    shared = dict(extent.ancestors).get(place.epoch, 0)
    return max(min(place.seq, shared), extent.pruned_through)
