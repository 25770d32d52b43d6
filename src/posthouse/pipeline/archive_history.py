"""Ask a relay to prune the history that the lake holds, range by range, oldest first.

Each range is read back from the lake's files and synced to disk before its digests go to the relay. The relay
computes the digests over its own rows and deletes the rows only if they are equal. No row is lost if either side dies
at any point: the next run starts at the oldest record of the relay. A range ends at a gap; a seq that occurs twice
means that the lake is damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from posthouse.client import Client
from posthouse.journal.digest import Record, content_digest, digest_contents, digest_records
from posthouse.model.api import ArchivedRange, Pruned
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL
from posthouse.pipeline.epochs import Segment, segments_of
from posthouse.pipeline.lake.bronze_erasures import ErasureTable, digests_of_request, erased_rows
from posthouse.pipeline.lake.lake import BronzeScan, Lake, RowFilter


@dataclass(frozen=True, slots=True)
class ArchivedRows:
    """Consecutive records, and the digests of their events, as far as the lake knows them."""

    records: Sequence[Record]
    #: Seq, and the digest of the event as the relay serves it, or served it before it was erased.
    events: Sequence[tuple[int, bytes]]

    def before(self, at_ns: int) -> ArchivedRows:
        """Return the records before a time, and their events."""
        records = [record for record in self.records if record.at_ns < at_ns]
        through = records[-1].seq if records else 0
        return ArchivedRows(records, [event for event in self.events if event[0] <= through])

    def archived(self, epoch: str) -> ArchivedRange:
        """Return the range and its digests, for the relay."""
        contents = digest_contents(digest for _seq, digest in self.events)
        first, last = self.records[0].seq, self.records[-1].seq
        return ArchivedRange(epoch, first, last, digest_records(self.records), contents, contents_version=2)


class ArchivedHistory:
    """The lake's copy of one history."""

    def __init__(self, lake: Lake, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._journal, self._events = BronzeScan(lake, "bronze_journal"), BronzeScan(lake, "bronze_events")
        self._erased = erased_rows(ErasureTable(lake.storage).read(), EVENTS.name).contents
        self._synced: set[str] = set()

    @cached_property
    def _swept(self) -> dict[str, dict[int, bytes]]:
        """Digests of events whose content a limit of the relay removed, by epoch and seq; the lake may lack them."""
        import pyarrow.compute as pc

        found: dict[str, dict[int, bytes]] = {}
        choice = RowFilter(where=pc.field("type") == "content.swept")
        for row in self._journal.read(choice, ("epoch", "body")).to_pylist():
            found.setdefault(row["epoch"], {}).update(digests_of_request(row["body"]))
        return found

    def read(self, from_seq: int, limit: int) -> ArchivedRows:
        """Return up to `limit` records, starting at a seq and ending at the first gap."""
        choices = self._choices(from_seq - 1, from_seq + limit - 1)
        rows = [row for choice in choices for row in self._journal.read(choice, JOURNAL.columns).to_pylist()]
        records = sorted(Record(**row) for row in rows)
        _refuse_duplicates(record.seq for record in records)
        consecutive = [record for seq, record in enumerate(records, start=from_seq) if record.seq == seq]
        self._sync(choices)
        return ArchivedRows(consecutive, self._contents(choices))

    def _contents(self, choices: Sequence[RowFilter]) -> list[tuple[int, bytes]]:
        columns = ("epoch", "seq", "expiration_s", "event")
        rows = [row for choice in choices for row in self._events.read(choice, columns).to_pylist()]
        found = sorted((row["seq"], self._digest(row)) for row in rows if row["expiration_s"] is None)
        _refuse_duplicates(seq for seq, _digest in found)
        return [(seq, digest) for seq, digest in found if digest]

    def _digest(self, row: Mapping[str, Any]) -> bytes:
        """Return the digest of an event, also of an erased one; empty if the lake never had it."""
        if row["event"] is not None:
            return content_digest(row["event"].encode())
        epoch, seq = row["epoch"], row["seq"]
        return self._erased.get(epoch, {}).get(seq) or self._swept.get(epoch, {}).get(seq, b"")

    def _choices(self, after_seq: int, through_seq: int) -> list[RowFilter]:
        return [
            RowFilter(segment.epoch, max(after_seq, segment.after), min(through_seq, segment.to))
            for segment in self._segments
            if segment.after < through_seq and after_seq < segment.to
        ]

    def _sync(self, choices: Sequence[RowFilter]) -> None:
        """Sync the files before the relay deletes its rows."""
        for table in (self._journal, self._events):
            files = {path for choice in choices for path in table.paths(choice)} - self._synced
            if files:
                table.sync(files)
                self._synced |= files


def _refuse_duplicates(seqs: Iterable[int]) -> None:
    before = 0
    for seq in seqs:
        if seq == before:
            raise error("lake_damaged", table="bronze_journal", reason=f"seq {seq} occurs twice")
        before = seq


RANGE_RECORDS = 10_000  # per request: well below a relay's limit and a client's timeout


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of an archive run."""

    epoch: str
    pruned: int
    #: Events whose content only the lake still holds.
    emptied: int
    #: The relay's oldest seq; None if its journal is empty.
    oldest_seq: int | None


async def archive(
    client: Client, lake: Lake, before_ns: int, on_pruned: Callable[[Pruned], None] | None = None
) -> Archived:
    """Prune the relay's history before a time, as far as the lake holds it; call `on_pruned` for each range."""
    epoch = str((await client.info())["epoch"])
    history = await asyncio.to_thread(_archived_history, lake, epoch)
    done = Archived(epoch, 0, 0, await client.archive.oldest_seq())
    while done.oldest_seq is not None:
        rows = (await asyncio.to_thread(history.read, done.oldest_seq, RANGE_RECORDS)).before(before_ns)
        if not rows.records:
            break
        pruned = await _prune(client, lake, await asyncio.to_thread(rows.archived, epoch))
        done = Archived(epoch, done.pruned + pruned.pruned, done.emptied + pruned.emptied, pruned.oldest_seq)
        if on_pruned is not None:
            on_pruned(pruned)
    return done


def _archived_history(lake: Lake, epoch: str) -> ArchivedHistory:
    epochs = lake.epochs()
    if epoch not in {each.epoch for each in epochs}:
        raise error("archive_unknown_history", path=lake.location, epoch=epoch)
    return ArchivedHistory(lake, segments_of(epochs, epoch))


async def _prune(client: Client, lake: Lake, archived: ArchivedRange) -> Pruned:
    try:
        return await client.archive.prune(archived)
    except PosthouseError as failure:
        if failure.code != "digest_mismatch":
            raise
        fields = failure.fields
        raise error(
            "archive_differs", path=lake.location, from_seq=fields["from_seq"], to_seq=fields["to_seq"]
        ) from failure
