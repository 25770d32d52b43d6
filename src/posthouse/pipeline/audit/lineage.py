"""Lineages for the audit: which epochs form one history, which rows are live, and where a replay can start.

A lineage is the history of one store. It is named by its first epoch and continues through restores. A lake that
began after a store had been pruned lacks the beginning; replay then starts at the first snapshot that covers the
missing records. This module does not use posthouse.pipeline.epochs on purpose, so that the audit does not repeat its
faults. Pure values, small enough to send to every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ALL = 2**63 - 1


class EpochRow(NamedTuple):
    """An epoch, as the audit reads it from a lake or a store."""

    epoch: str
    parent: str | None
    fork_seq: int
    store: str
    started_at_ns: int = 0


class LockRun(NamedTuple):
    """A start of the lock service: boot times are comparable only within one run."""

    depth: int
    seq: int
    boot_ns: int
    #: the effect of the start on leases and tokens, as an argument of lease.reopen; 0: none
    over_before_ns: int = 0
    void_token: int = 0
    #: added to every token; only records before version 2 have it
    token_leap: int = 0
    #: the counter of tokens at the start; -1: each lock counted its own tokens
    token_counter: int = -1


class Snapshot(NamedTuple):
    """A snapshot record, and the last seq whose effects it contains."""

    seq: int
    through_seq: int


@dataclass(frozen=True)
class Lineage:
    """The history of one store."""

    #: The first epoch.
    root: str
    store: str
    #: Seq of the first available record.
    first_seq: int
    #: Seq of the last live record.
    head: int
    #: Seq of the snapshot that replay starts from; 0: from the beginning; None: replay is not possible.
    base_seq: int | None
    #: The live lock runs, in order.
    lock_runs: tuple[LockRun, ...] = ()
    is_restored: bool = False
    has_snapshots: bool = False
    #: Meshes that were created in this store.
    meshes: frozenset[str] = frozenset()
    #: epoch -> the last seq whose event is available.
    events_through: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if history is available from its beginning."""
        return self.base_seq == 0 and self.first_seq <= 1


#: For auditors whose keys belong to all stores together.
NO_LINEAGE = Lineage("", "", 0, 0, 0)


class EpochPosition(NamedTuple):
    """The position of an epoch in its lineage."""

    root: str
    #: The number of restores before this epoch.
    depth: int
    #: The last seq that no restore dropped.
    live_through: int
    store: str


@dataclass(frozen=True)
class Lineages:
    """All lineages of an audit, and the position of every epoch in them."""

    #: By epoch.
    positions: Mapping[str, EpochPosition]
    #: By root epoch.
    by_root: Mapping[str, Lineage]

    def position(self, epoch: str) -> EpochPosition:
        """Return the position of an epoch; an undeclared epoch is the root of its own, fully live lineage."""
        return self.positions.get(epoch) or EpochPosition(epoch, 0, ALL, "unknown")

    def lineage(self, root: str) -> Lineage:
        """Return the lineage of a root epoch; an empty one if no record of it is available."""
        return self.by_root.get(root) or Lineage(root, "unknown", 0, 0, 0)


class AnchorRecord(NamedTuple):
    """A record that lineages are built from."""

    epoch: str
    seq: int
    type: str
    ref: str
    #: Set for journal.snapshot.
    through_seq: int = 0
    #: Set for lock.run_started.
    boot_ns: int = 0
    over_before_ns: int = 0
    void_token: int = 0
    token_leap: int = 0
    token_counter: int = -1


ANCHOR_TYPES = ("lock.run_started", "journal.snapshot", "mesh.created")
#: Numeric fields of an anchor record's body, in the order of AnchorRecord, with the values for records that lack them.
ANCHOR_FIELDS: Mapping[str, int] = AnchorRecord._field_defaults


class Extent(NamedTuple):
    """The range of available seqs of an epoch, and the last seq whose event is available."""

    epoch: str
    first_seq: int
    head: int
    events_through: int = 0


def locate_epochs(epochs: Iterable[EpochRow]) -> dict[str, EpochPosition]:
    """Return the position of each epoch; of several epochs with one root, the newest is the live one."""
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
        name: EpochPosition(chain[-1].epoch, len(chain) - 1, live[name], known[name].store)
        for name, chain in chains.items()
    }


def _chain(known: Mapping[str, EpochRow], epoch: EpochRow) -> list[EpochRow]:
    """Return an epoch and its ancestors, oldest last."""
    chain = [epoch]
    while chain[-1].parent in known and known[str(chain[-1].parent)] not in chain:
        chain.append(known[str(chain[-1].parent)])
    return chain


def base_of(first_seq: int, snapshots: Iterable[Snapshot]) -> int | None:
    """Return the seq that replay starts from: 0, or that of a snapshot that covers the missing records, or None."""
    if first_seq <= 1:
        return 0
    return min((each.seq for each in snapshots if each.through_seq >= first_seq - 1), default=None)


def build_lineages(epochs: Iterable[EpochRow], extents: Iterable[Extent], anchors: Iterable[AnchorRecord]) -> Lineages:
    """Group epochs into lineages; an epoch without rows has a position, but adds no lineage."""
    positions = locate_epochs(epochs)
    by_root: dict[str, list[Extent]] = {}
    for extent in extents:
        by_root.setdefault(positions[extent.epoch].root, []).append(extent)
    live: dict[str, list[AnchorRecord]] = {}
    for anchor in anchors:
        position = positions[anchor.epoch]
        if anchor.seq <= position.live_through:
            live.setdefault(position.root, []).append(anchor)
    lineages = {root: _build(root, positions, found, live.get(root, [])) for root, found in by_root.items()}
    return Lineages(positions, lineages)


def _build(
    root: str, positions: Mapping[str, EpochPosition], extents: list[Extent], anchors: list[AnchorRecord]
) -> Lineage:
    first_seq = min(each.first_seq for each in extents)
    snapshots = [Snapshot(each.seq, each.through_seq) for each in anchors if each.type == "journal.snapshot"]
    starts = [each for each in anchors if each.type == "lock.run_started"]
    runs = [
        LockRun(
            positions[each.epoch].depth,
            each.seq,
            each.boot_ns,
            each.over_before_ns,
            each.void_token,
            each.token_leap,
            each.token_counter,
        )
        for each in starts
    ]
    return Lineage(
        root,
        positions[root].store,
        first_seq,
        max(min(each.head, positions[each.epoch].live_through) for each in extents),
        base_of(first_seq, snapshots),
        tuple(sorted(runs)),
        any(position.root == root and position.depth for position in positions.values()),
        bool(snapshots),
        frozenset(each.ref for each in anchors if each.type == "mesh.created"),
        {each.epoch: each.events_through for each in extents},
    )
