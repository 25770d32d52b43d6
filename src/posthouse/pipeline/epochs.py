"""Epochs of a store's history: which rows belong to which epoch, and which of them a restore dropped.

A restore starts a new epoch that continues its parent up to fork_seq. Rows up to a fork belong to the epoch that wrote
them. Rows that the parent wrote above the fork did happen; they stay in the lake and are labelled as lost. Of all
epochs with one root, the newest is the live history; its ancestors are live up to the fork. A store is named by the
root of its epochs, which a restore does not change. Pure values and functions: no files, no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An epoch of a lineage; it wrote the rows above fork_seq."""

    epoch: str
    parent: str | None
    fork_seq: int
    #: None: the source does not report it.
    started_at_ns: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows (after, to] of one epoch."""

    epoch: str
    after: int
    to: int


@dataclass(frozen=True, slots=True)
class History:
    """The rows that a source holds at one moment: (pruned_through, head]."""

    #: relay, bus, outbox or inbox.
    store: str
    #: Oldest first; the last is the current epoch.
    lineage: tuple[Ancestor, ...]
    pruned_through: int
    head: int
    #: A copy that follows the store and may lack its newest rows.
    is_standby: bool = False

    @property
    def epoch(self) -> str:
        return self.lineage[-1].epoch

    def segments(self, after: int, to: int) -> Iterator[Segment]:
        """Split the available rows in (after, to] by the epochs that wrote them."""
        after, to = max(after, self.pruned_through), min(to, self.head)
        for position, each in enumerate(self.lineage):
            low, high = max(after, each.fork_seq), min(to, self.end_of(position))
            if low < high:
                yield Segment(each.epoch, low, high)

    def end_of(self, position: int) -> int:
        """Return the last seq that belongs to the epoch at a position of the lineage."""
        later = [each.fork_seq for each in self.lineage[position + 1 :]]
        return min([self.head, *later])

    def shared_with(self, epoch: str) -> int:
        """Return the last seq that this history shares with an epoch; 0 for an unknown epoch."""
        for position, each in enumerate(self.lineage):
            if each.epoch == epoch:
                return self.end_of(position)
        return 0


def lineage_of(epochs: list[Ancestor]) -> tuple[Ancestor, ...]:
    """Return the ancestors of the last epoch and the epoch itself, oldest first."""
    by_name = {each.epoch: each for each in epochs}
    found = [epochs[-1]]
    while (parent := found[0].parent) is not None and parent in by_name:
        found.insert(0, by_name[parent])
    return tuple(found)


ALL_LIVE = 2**63 - 1
ALL_LOST = -1


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a store; the columns of bronze_epochs, in order."""

    epoch: str
    parent: str | None
    #: The last seq that it shares with its parent.
    fork_seq: int
    #: relay, bus, outbox or inbox.
    store: str
    url: str
    started_at_ns: int


def live_through(epochs: Iterable[Epoch]) -> dict[str, int]:
    """Return for each epoch the last seq that no restore dropped."""
    by_name = {each.epoch: each for each in epochs}
    newest: dict[str, Epoch] = {}
    for each in by_name.values():
        root = _root_of(by_name, each)
        if root not in newest or (each.started_at_ns, each.epoch) > (newest[root].started_at_ns, newest[root].epoch):
            newest[root] = each
    live = dict.fromkeys(by_name, ALL_LOST)
    for tip in newest.values():
        live |= _lineage(by_name, tip)
    return live


def root_epochs(epochs: Iterable[Epoch]) -> dict[str, str]:
    """Return for each epoch the first epoch of its history, which names the store across restores."""
    by_name = {each.epoch: each for each in epochs}
    return {name: _root_of(by_name, each) for name, each in by_name.items()}


def _root_of(by_name: Mapping[str, Epoch], given: Epoch) -> str:
    seen = {given.epoch}
    while (parent := given.parent) is not None and parent in by_name and parent not in seen:
        given = by_name[parent]
        seen.add(parent)
    return given.parent or given.epoch


def _lineage(by_name: Mapping[str, Epoch], tip: Epoch) -> dict[str, int]:
    live = {tip.epoch: ALL_LIVE}
    shared = tip.fork_seq
    while (parent := tip.parent) is not None and parent in by_name and parent not in live:
        live[parent] = shared
        tip = by_name[parent]
        shared = min(shared, tip.fork_seq)
    return live


def segments_of(epochs: Iterable[Epoch], epoch: str) -> list[Segment]:
    """Return the segments of the history that ends with `epoch`, oldest first."""
    by_name = {each.epoch: each for each in epochs}
    segments: list[Segment] = []
    name: str | None = epoch
    to = ALL_LIVE
    while name is not None and name not in {segment.epoch for segment in segments}:
        known = by_name.get(name)
        after = 0 if known is None or known.parent is None else min(known.fork_seq, to)
        segments.append(Segment(name, after, to))
        name, to = (None if known is None else known.parent), after
    return [segment for segment in reversed(segments) if segment.after < segment.to]


def first_known_epochs(parents: Mapping[str, str | None]) -> dict[str, str]:
    """Return for each epoch its oldest known ancestor.

    Unlike root_epochs, this never names an epoch that is missing from the lake. silver_leases stores the result as
    part of its key, so the two must not be unified without a migration.
    """
    return {epoch: _first_known(parents, epoch) for epoch in parents}


def _first_known(parents: Mapping[str, str | None], epoch: str) -> str:
    seen = {epoch}
    while (parent := parents[epoch]) is not None and parent in parents and parent not in seen:
        epoch = parent
        seen.add(parent)
    return epoch
