"""Sequence: seqs without gaps, time that does not go back.

The key is a block of seqs of one epoch, so that a long history is looked at in parallel; each block tells where it
begins and ends, and `join_blocks` looks at the seams. Block reports travel as findings with an empty code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import EpochPlace, Line, Lines
from posthouse.pipeline.audit.rule import Auditor, Step

BLOCK = 4_096  # seqs
REPORT = ""
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class BlockAuditor(Auditor):
    """One block of one epoch."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._first: Step | None = None
        self._last: Step | None = None

    def take(self, step: Step) -> Iterator[Finding]:
        last, self._last = self._last, step
        if last is None:
            self._first = step
            return
        yield from compare(self.line.store, step.epoch, (last.seq, last.at_ns), (step.seq, step.at_ns))

    def end(self) -> Iterator[Finding]:
        if self._first is not None and self._last is not None:
            place = [self._first.seq, self._first.at_ns, self._last.seq, self._last.at_ns]
            yield self.found(REPORT, self._first, self.key, _encode(place).decode())


def compare(store: str, epoch: str, last: tuple[int, int], this: tuple[int, int]) -> Iterator[Finding]:
    """Compare two records that follow each other."""
    if this[0] == last[0]:
        yield Finding("seq_twice", store, epoch, str(this[0]), this[0], "there are two records of this seq")
    elif this[0] != last[0] + 1:
        yield Finding("seq_gap", store, epoch, str(this[0]), this[0], f"the record before it is {last[0]}")
    if this[1] < last[1]:
        yield Finding("time_back", store, epoch, str(this[0]), this[0], f"{last[1] - this[1]} ns before {last[0]}")


def join_blocks(lines: Lines, forks: Mapping[str, int], reports: Iterable[Finding]) -> Iterator[Finding]:
    """Look at the seams between blocks, and at the beginning of each epoch."""
    by_epoch: dict[str, list[list[int]]] = {}
    for report in reports:
        by_epoch.setdefault(report.epoch, []).append(_decode(report.detail, type=list[int]))
    for epoch, blocks in by_epoch.items():
        place = lines.places[epoch]
        blocks.sort()
        yield from _beginning(lines, place, epoch, forks.get(epoch, 0), blocks[0])
        for last, this in pairwise(blocks):
            yield from compare(place.store, epoch, (last[2], last[3]), (this[0], this[1]))


def _beginning(lines: Lines, place: EpochPlace, epoch: str, fork_seq: int, first: list[int]) -> Iterator[Finding]:
    line, seq = lines.lines[place.root], first[0]
    if seq <= fork_seq + 1:
        return
    if line.base_seq is None:
        detail = f"it begins at {seq} and no snapshot stands for what came before"
        yield Finding("history_headless", place.store, epoch, str(seq), seq, detail)
    elif not line.base_seq and place.depth:
        yield Finding("seq_gap", place.store, epoch, str(seq), seq, f"the epoch began after {fork_seq}")
