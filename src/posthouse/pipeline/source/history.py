"""What a source holds: its lineage of epochs, and the seqs that are there.

A restored store holds rows of its ancestors too: those up to a fork belong to the epoch that wrote them. `segments`
cuts a range of seqs accordingly, so that every row gets the epoch under which it was written. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An epoch of the lineage: rows above fork_seq are its own."""

    epoch: str
    parent: str | None
    fork_seq: int
    #: None: the source does not tell
    started_at_ns: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows (after, to] of one epoch."""

    epoch: str
    after: int
    to: int


@dataclass(frozen=True, slots=True)
class History:
    """What there is to read, at one moment."""

    #: relay, bus, outbox or inbox
    store: str
    #: oldest first; the last is the epoch of now
    lineage: tuple[Ancestor, ...]
    pruned_through: int
    head: int

    @property
    def epoch(self) -> str:
        return self.lineage[-1].epoch

    def segments(self, after: int, to: int) -> Iterator[Segment]:
        """Cut the rows (after, to] by the epochs that wrote them, as far as they are still there."""
        after, to = max(after, self.pruned_through), min(to, self.head)
        for position, each in enumerate(self.lineage):
            low, high = max(after, each.fork_seq), min(to, self.end_of(position))
            if low < high:
                yield Segment(each.epoch, low, high)

    def end_of(self, position: int) -> int:
        """Return the last seq that is of the epoch at a position of the lineage."""
        later = [each.fork_seq for each in self.lineage[position + 1 :]]
        return min([self.head, *later])

    def shared_with(self, epoch: str) -> int:
        """Return the last seq that this history has in common with an epoch; 0 with one it does not know."""
        for position, each in enumerate(self.lineage):
            if each.epoch == epoch:
                return self.end_of(position)
        return 0


def lineage_of(epochs: list[Ancestor]) -> tuple[Ancestor, ...]:
    """Return the epochs that lead to the last one, oldest first; others were left behind by a restore."""
    by_name = {each.epoch: each for each in epochs}
    found = [epochs[-1]]
    while (parent := found[0].parent) is not None and parent in by_name:
        found.insert(0, by_name[parent])
    return tuple(found)
