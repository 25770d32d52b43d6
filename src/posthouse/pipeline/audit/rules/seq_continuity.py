"""Sequence: seqs have no gaps and time does not go back.

The key is a block of seqs of one epoch, so that workers check a long history in parallel. An auditor sees one block
only; `join_blocks` compares the last record of each block with the first of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage, Lineages
from posthouse.pipeline.audit.rule import Auditor, Rule, Step, no_facts

BLOCK = 4_096  # seqs


class Position(NamedTuple):
    """Seq and time of a record."""

    seq: int
    at_ns: int


class BlockEnds(NamedTuple):
    """The first and the last available record of a block."""

    epoch: str
    first: Position
    last: Position


class BlockAuditor(Auditor):
    """Check one block of one epoch."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._last: Position | None = None

    def add_step(self, step: Step) -> Iterator[Finding]:
        last, self._last = self._last, Position(step.seq, step.at_ns)
        if last is not None:
            yield from _compare(self.lineage.store, step.epoch, last, self._last)


def _compare(store: str, epoch: str, last: Position, this: Position) -> Iterator[Finding]:
    """Compare two consecutive records."""
    if this.seq == last.seq:
        yield Finding("seq_twice", store, epoch, str(this.seq), this.seq, "two records have this seq")
    elif this.seq != last.seq + 1:
        yield Finding("seq_gap", store, epoch, str(this.seq), this.seq, f"the record before it is {last.seq}")
    if this.at_ns < last.at_ns:
        detail = f"{last.at_ns - this.at_ns} ns before {last.seq}"
        yield Finding("time_back", store, epoch, str(this.seq), this.seq, detail)


def join_blocks(lineages: Lineages, forks: Mapping[str, int], blocks: Iterable[BlockEnds]) -> Iterator[Finding]:
    """Check the boundaries between blocks, and the start of each epoch; `forks` maps epochs to their fork_seq."""
    by_epoch: dict[str, list[BlockEnds]] = {}
    for block in sorted(blocks):
        by_epoch.setdefault(block.epoch, []).append(block)
    for epoch, of_epoch in by_epoch.items():
        store = lineages.position(epoch).store
        yield from _check_start(lineages, epoch, forks.get(epoch, 0), of_epoch[0].first.seq)
        for last, this in pairwise(of_epoch):
            yield from _compare(store, epoch, last.last, this.first)


def _check_start(lineages: Lineages, epoch: str, fork_seq: int, seq: int) -> Iterator[Finding]:
    position = lineages.position(epoch)
    base_seq = lineages.lineage(position.root).base_seq
    if seq <= fork_seq + 1:
        return
    if base_seq is None:
        detail = f"it starts at {seq} and no snapshot covers the records before it"
        yield Finding("history_headless", position.store, epoch, str(seq), seq, detail)
    elif not base_seq and position.depth:
        yield Finding("seq_gap", position.store, epoch, str(seq), seq, f"the epoch started after {fork_seq}")


#: `Scatter` makes a step for every record, even if its body cannot be read.
RULE = Rule("sequence", frozenset(), None, no_facts, BlockAuditor, sees_lost=True, from_beginning=True)
