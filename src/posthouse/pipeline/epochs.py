"""Epochs of a store's history: which rows belong to which epoch, and which of them a restore has lost.

A restore begins a new epoch that continues its parent up to fork_seq. Rows up to a fork belong to the epoch that
wrote them; rows that the parent wrote above the fork did happen, stay in the lake and are labelled as lost. Of all
epochs that grew from one root the newest is the live history; its ancestors are live up to the fork. A store is
named by the root of its epochs, which no restore changes. Pure values and functions: no files, no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


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


ALL_LIVE = 2**63 - 1
ALL_LOST = -1


@dataclass(frozen=True, slots=True)
class Epoch:
    """One history of a store; the columns of bronze_epochs, in order."""

    epoch: str
    parent: str | None
    #: the last seq it shares with its parent
    fork_seq: int
    #: relay, bus, outbox or inbox
    store: str
    url: str
    started_at_ns: int


def live_through(epochs: Iterable[Epoch]) -> dict[str, int]:
    """Return for each epoch the last seq that no restore has lost."""
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
    """Return for each epoch the one its history began with: what names a store over all its restores."""
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


class Span(NamedTuple):
    """The part of a history that lies under one epoch: the seqs (after, through]."""

    epoch: str
    after: int
    through: int


def spans_of(epochs: Iterable[Epoch], epoch: str) -> list[Span]:
    """Return the spans of the history that `epoch` is the newest part of, oldest first."""
    by_name = {each.epoch: each for each in epochs}
    spans: list[Span] = []
    name: str | None = epoch
    through = ALL_LIVE
    while name is not None and name not in {span.epoch for span in spans}:
        known = by_name.get(name)
        after = 0 if known is None or known.parent is None else min(known.fork_seq, through)
        spans.append(Span(name, after, through))
        name, through = (None if known is None else known.parent), after
    return [span for span in reversed(spans) if span.after < span.through]


def first_known_epochs(parents: Mapping[str, str | None]) -> dict[str, str]:
    """Return the first known epoch of each epoch's line."""
    return {epoch: _first_known(parents, epoch) for epoch in parents}


def _first_known(parents: Mapping[str, str | None], epoch: str) -> str:
    seen = {epoch}
    while (parent := parents[epoch]) is not None and parent in parents and parent not in seen:
        epoch = parent
        seen.add(parent)
    return epoch
