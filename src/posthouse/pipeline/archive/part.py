"""A part of a history read back from the lake's files: the records of a range of seqs, and the events in them.

What is digested here is what lies on the disk: the files are read again and synced first, because the relay is about to
delete what they hold. A gap ends the part; rows that are there twice are damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posthouse.client.archive import ArchivedRange
from posthouse.journal.record import Record, digest_contents, digest_records
from posthouse.model.errors import error
from posthouse.pipeline.archive.bronze import Bronze, Choice
from posthouse.pipeline.archive.lineage import Span
from posthouse.pipeline.lake.lake import Lake

_RECORD = ("seq", "at_ns", "type", "mesh", "actor", "ref", "body")


@dataclass(frozen=True, slots=True)
class Part:
    """Records from the first on without a gap, and the events that can be proven by their digest."""

    records: Sequence[Record]
    #: (seq, the event as it is served)
    events: Sequence[tuple[int, bytes]]

    def before(self, at_ns: int) -> Part:
        """Return the records before a time, and their events."""
        records = [record for record in self.records if record.at_ns < at_ns]
        through = records[-1].seq if records else 0
        return Part(records, [event for event in self.events if event[0] <= through])

    def archived(self, epoch: str) -> ArchivedRange:
        """Return what the relay is told of it."""
        contents = digest_contents(content for _seq, content in self.events)
        first, last = self.records[0].seq, self.records[-1].seq
        return ArchivedRange(epoch, first, last, digest_records(self.records), contents)


class Shelf:
    """The lake's copy of one history, by seq."""

    def __init__(self, lake: Lake, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._journal, self._events = Bronze(lake, "bronze_journal"), Bronze(lake, "bronze_events")
        self._synced: set[Path] = set()

    def part(self, from_seq: int, limit: int) -> Part:
        """Return up to `limit` records from a seq on."""
        choices = self._choices(from_seq - 1, from_seq + limit - 1)
        rows = [row for choice in choices for row in self._journal.read(choice, _RECORD).to_pylist()]
        records = sorted(Record(**row) for row in rows)
        _refuse_twice(record.seq for record in records)
        whole = [record for number, record in enumerate(records, start=from_seq) if record.seq == number]
        self._sync(choices)
        return Part(whole, self._contents(choices))

    def _contents(self, choices: Sequence[Choice]) -> list[tuple[int, bytes]]:
        columns = ("seq", "expiration_s", "event")
        rows = [row for choice in choices for row in self._events.read(choice, columns).to_pylist()]
        found = sorted((row["seq"], row["event"]) for row in rows if row["expiration_s"] is None)
        _refuse_twice(seq for seq, _event in found)
        return [(seq, event.encode()) for seq, event in found if event is not None]

    def _choices(self, after_seq: int, through_seq: int) -> list[Choice]:
        return [
            Choice(span.epoch, max(after_seq, span.after), min(through_seq, span.through))
            for span in self._spans
            if span.after < through_seq and after_seq < span.through
        ]

    def _sync(self, choices: Sequence[Choice]) -> None:
        """Bring to the disk what the relay is asked to rely on: whoever wrote the files may not have."""
        for table in (self._journal, self._events):
            files = [path for choice in choices for path in table.paths(choice)]
            for path in [*files, *(file.parent for file in files), *(table.log_paths() if files else ())]:
                if path not in self._synced:
                    _sync(path)
                    self._synced.add(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_twice(seqs: Iterable[int]) -> None:
    before = 0
    for seq in seqs:
        if seq == before:
            raise error("lake_damaged", table="bronze_journal", reason=f"seq {seq} is there twice")
        before = seq
