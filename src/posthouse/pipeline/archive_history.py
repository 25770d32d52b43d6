"""Ask a relay to prune the history that the lake holds, part by part, oldest first.

Each part is read back from the lake's files and synced to disk before its digests go to the relay; the relay
computes them over its own rows and deletes only rows that are equal. Killed at any point, on either side, nothing is
lost: the next run begins at the oldest record the relay has. A gap ends a part; a seq that is there twice is damage.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posthouse.client import Client
from posthouse.journal.records import Record, digest_contents, digest_records
from posthouse.model.api import ArchivedRange, Pruned
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.epochs import Span, spans_of
from posthouse.pipeline.lake.lake import BronzeScan, Lake, RowFilter

_RECORD = ("seq", "at_ns", "type", "mesh", "actor", "ref", "body")


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """Records from the first on without a gap, and the events that can be proven by their digest."""

    records: Sequence[Record]
    #: (seq, the event as it is served)
    events: Sequence[tuple[int, bytes]]

    def before(self, at_ns: int) -> ArchivedPart:
        """Return the records before a time, and their events."""
        records = [record for record in self.records if record.at_ns < at_ns]
        through = records[-1].seq if records else 0
        return ArchivedPart(records, [event for event in self.events if event[0] <= through])

    def archived(self, epoch: str) -> ArchivedRange:
        """Return what the relay is told of it."""
        contents = digest_contents(content for _seq, content in self.events)
        first, last = self.records[0].seq, self.records[-1].seq
        return ArchivedRange(epoch, first, last, digest_records(self.records), contents)


class ArchivedHistory:
    """The lake's copy of one history, by seq."""

    def __init__(self, lake: Lake, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._journal, self._events = BronzeScan(lake, "bronze_journal"), BronzeScan(lake, "bronze_events")
        self._synced: set[Path] = set()

    def part(self, from_seq: int, limit: int) -> ArchivedPart:
        """Return up to `limit` records from a seq on."""
        choices = self._choices(from_seq - 1, from_seq + limit - 1)
        rows = [row for choice in choices for row in self._journal.read(choice, _RECORD).to_pylist()]
        records = sorted(Record(**row) for row in rows)
        _refuse_twice(record.seq for record in records)
        whole = [record for number, record in enumerate(records, start=from_seq) if record.seq == number]
        self._sync(choices)
        return ArchivedPart(whole, self._contents(choices))

    def _contents(self, choices: Sequence[RowFilter]) -> list[tuple[int, bytes]]:
        columns = ("seq", "expiration_s", "event")
        rows = [row for choice in choices for row in self._events.read(choice, columns).to_pylist()]
        found = sorted((row["seq"], row["event"]) for row in rows if row["expiration_s"] is None)
        _refuse_twice(seq for seq, _event in found)
        return [(seq, event.encode()) for seq, event in found if event is not None]

    def _choices(self, after_seq: int, through_seq: int) -> list[RowFilter]:
        return [
            RowFilter(span.epoch, max(after_seq, span.after), min(through_seq, span.through))
            for span in self._spans
            if span.after < through_seq and after_seq < span.through
        ]

    def _sync(self, choices: Sequence[RowFilter]) -> None:
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


PART_RECORDS = 10_000  # one request: well below a relay's bound and a client's patience


@dataclass(frozen=True, slots=True)
class Archived:
    """What an archive run has done."""

    epoch: str
    pruned: int
    #: events whose content only the lake has now
    emptied: int
    #: of the relay; None when its journal is empty
    oldest_seq: int | None


async def archive(
    client: Client, lake: Lake, before_ns: int, on_part: Callable[[Pruned], None] | None = None
) -> Archived:
    """Prune everything before a time that the lake holds; `on_part` hears of every part."""
    epoch = str((await client.info())["epoch"])
    shelf = await asyncio.to_thread(_shelf, lake, epoch)
    done = Archived(epoch, 0, 0, await client.archive.oldest_seq())
    while done.oldest_seq is not None:
        part = (await asyncio.to_thread(shelf.part, done.oldest_seq, PART_RECORDS)).before(before_ns)
        if not part.records:
            break
        went = await _prune(client, lake, await asyncio.to_thread(part.archived, epoch))
        done = Archived(epoch, done.pruned + went.pruned, done.emptied + went.emptied, went.oldest_seq)
        if on_part is not None:
            on_part(went)
    return done


def _shelf(lake: Lake, epoch: str) -> ArchivedHistory:
    epochs = lake.epochs()
    if epoch not in {each.epoch for each in epochs}:
        raise error("archive_unknown_history", path=str(lake.path), epoch=epoch)
    return ArchivedHistory(lake, spans_of(epochs, epoch))


async def _prune(client: Client, lake: Lake, archived: ArchivedRange) -> Pruned:
    try:
        return await client.archive.prune(archived)
    except PosthouseError as failure:
        if failure.code != "digest_mismatch":
            raise
        fields = failure.fields
        raise error(
            "archive_differs", path=str(lake.path), from_seq=fields["from_seq"], to_seq=fields["to_seq"]
        ) from failure
