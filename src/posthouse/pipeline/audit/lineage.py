"""Lines of history for the audit: which epochs belong together, which rows are live, where a replay can start.

The line of a store is named by its first epoch and continues through restores. A lake that began after a store had
been pruned lacks the beginning; then replay starts at the first snapshot that stands for what is missing. Written
apart from posthouse.pipeline.epochs on purpose: the audit does not share code with what it audits. Pure values,
small enough to be sent to every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ALL = 2**63 - 1


class EpochRow(NamedTuple):
    """What the audit needs to know of an epoch."""

    epoch: str
    parent: str | None
    fork_seq: int
    store: str
    started_at_ns: int = 0


class Run(NamedTuple):
    """The start of a run of locks."""

    depth: int
    seq: int
    boot_ns: int
    token_leap: int


class Snapshot(NamedTuple):
    """Where a snapshot stands, and what it stands for."""

    seq: int
    through_seq: int


@dataclass(frozen=True)
class Line:
    """The history of one store."""

    root: str
    store: str
    #: the first record there is
    first_seq: int
    #: the last one
    head: int
    #: seq of the snapshot that replay starts from; 0: from the beginning; None: nothing to start from
    base_seq: int | None
    #: starts of runs of locks that no restore has lost, in order
    runs: tuple[Run, ...] = ()
    is_restored: bool = False
    has_snapshots: bool = False
    #: meshes that were created here
    meshes: frozenset[str] = frozenset()
    #: epoch -> how far its events are there
    events_through: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether history is there from its beginning."""
        return self.base_seq == 0 and self.first_seq <= 1


class EpochPlace(NamedTuple):
    """Where an epoch stands in its line."""

    root: str
    #: how many restores came before
    depth: int
    #: the last seq that no restore has lost
    live_through: int
    store: str


@dataclass(frozen=True)
class Lines:
    """All that is known about where rows stand."""

    places: Mapping[str, EpochPlace]
    #: by root
    lines: Mapping[str, Line]


class Mark(NamedTuple):
    """A record that lines are drawn by."""

    epoch: str
    seq: int
    type: str
    ref: str
    #: of journal.snapshot
    through_seq: int = 0
    #: of lock.run_started
    boot_ns: int = 0
    token_leap: int = 0


MARKS = ("lock.run_started", "journal.snapshot", "mesh.created")


class Extent(NamedTuple):
    """The seqs of an epoch that are there, and how far its events are."""

    epoch: str
    first_seq: int
    head: int
    events_through: int = 0


def place_epochs(epochs: Iterable[EpochRow]) -> dict[str, EpochPlace]:
    """Return where each epoch stands; of several that grew from one, the newest lives."""
    known = {each.epoch: each for each in epochs}
    chains = {each.epoch: _chain(known, each) for each in known.values()}
    tips: dict[str, EpochRow] = {}
    for each in sorted(known.values(), key=lambda each: (each.started_at_ns, len(chains[each.epoch]), each.epoch)):
        tips[chains[each.epoch][-1].epoch] = each
    live = dict.fromkeys(known, -1)
    for tip in tips.values():
        shared = ALL
        for each in chains[tip.epoch]:
            live[each.epoch] = shared
            shared = min(shared, each.fork_seq)
    return {
        name: EpochPlace(chain[-1].epoch, len(chain) - 1, live[name], known[name].store)
        for name, chain in chains.items()
    }


def _chain(known: Mapping[str, EpochRow], epoch: EpochRow) -> list[EpochRow]:
    """Return an epoch and its ancestors, the oldest last."""
    chain = [epoch]
    while chain[-1].parent in known and known[str(chain[-1].parent)] not in chain:
        chain.append(known[str(chain[-1].parent)])
    return chain


def base_of(first_seq: int, snapshots: Iterable[Snapshot]) -> int | None:
    """Return the seq that replay starts from: 0, a snapshot's, or None when nothing stands for what is missing."""
    if first_seq <= 1:
        return 0
    return min((each.seq for each in snapshots if each.through_seq >= first_seq - 1), default=None)


def draw_lines(epochs: Iterable[EpochRow], extents: Iterable[Extent], marks: Iterable[Mark]) -> Lines:
    """Return where rows stand; epochs without any row have a place, and no line unless a relative has rows."""
    places = place_epochs(epochs)
    by_root: dict[str, list[Extent]] = {}
    for extent in extents:
        by_root.setdefault(places[extent.epoch].root, []).append(extent)
    live: dict[str, list[Mark]] = {}
    for mark in marks:
        if mark.seq <= places[mark.epoch].live_through:
            live.setdefault(places[mark.epoch].root, []).append(mark)
    lines = {root: _draw(root, places, found, live.get(root, [])) for root, found in by_root.items()}
    return Lines(places, lines)


def _draw(root: str, places: Mapping[str, EpochPlace], extents: list[Extent], marks: list[Mark]) -> Line:
    first_seq = min(each.first_seq for each in extents)
    snapshots = [Snapshot(each.seq, each.through_seq) for each in marks if each.type == "journal.snapshot"]
    starts = [each for each in marks if each.type == "lock.run_started"]
    return Line(
        root,
        places[root].store,
        first_seq,
        max(min(each.head, places[each.epoch].live_through) for each in extents),
        base_of(first_seq, snapshots),
        tuple(sorted(Run(places[each.epoch].depth, each.seq, each.boot_ns, each.token_leap) for each in starts)),
        any(place.root == root and place.depth for place in places.values()),
        bool(snapshots),
        frozenset(each.ref for each in marks if each.type == "mesh.created"),
        {each.epoch: each.events_through for each in extents},
    )
