"""What an audit reads: the lake, or stores and relays directly; and whether both still say the same.

Workers read the sources, so the driver may hold stores open by apsw. Rows get the epoch that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.frames import EVENT_COLUMNS, JOURNAL_COLUMNS, Frames
from posthouse.pipeline.audit.line import EpochRow
from posthouse.pipeline.audit.published import Published, check_rows
from posthouse.pipeline.audit.seals import check_seals, leaves_of_rows, read_seals
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, Seal
from posthouse.pipeline.run.bronze import application_id
from posthouse.pipeline.run.workers import run_in_workers
from posthouse.pipeline.source.feeds import EVENTS, JOURNAL, Feed
from posthouse.pipeline.source.history import History
from posthouse.pipeline.source.source import register_source
from posthouse.pipeline.source.store import Access, read_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from posthouse.pipeline.lake import Lake


def lake_frames(spark: SparkSession, lake: Lake) -> Frames:
    """Return what a lake holds."""
    epochs = [
        EpochRow(each.epoch, each.parent, each.fork_seq, each.store, each.started_at_ns) for each in lake.epochs()
    ]
    events = lake.delta("bronze_events")
    through = {each.epoch: events.reached(application_id(each.epoch, EVENTS.name)) or 0 for each in epochs}
    return Frames(
        epochs,
        lake.rows(spark, "bronze_journal", JOURNAL_COLUMNS),
        lake.rows(spark, "bronze_events", EVENT_COLUMNS),
        through,
    )


class Sources:
    """Some stores and relays, as they are now."""

    def __init__(self, spark: SparkSession, accesses: Sequence[Access]) -> None:
        self._spark = spark
        register_source(spark)
        self._found = list(zip(accesses, run_in_workers(spark, read_history, list(accesses)), strict=True))

    def frames(self) -> Frames:
        """Return what the sources hold."""
        epochs = {
            each.epoch: EpochRow(each.epoch, each.parent, each.fork_seq, history.store, each.started_at_ns or 0)
            for _access, history in self._found
            for each in history.lineage
        }
        return Frames(list(epochs.values()), self._rows(JOURNAL, JOURNAL_COLUMNS), self._rows(EVENTS, EVENT_COLUMNS))

    def compare(self, lake: Lake) -> Iterator[Finding]:
        """Compare what the sources still hold with what the lake has sealed; contents of events may have gone since."""
        seals = [seal for seal in read_seals(lake, "bronze_journal") if self._is_held(seal)]
        held = [part for seal in seals for part in self._held_part(seal)]
        rows = self._rows(JOURNAL, ("epoch", *JOURNAL.columns))
        leaves = [tuple(row) for row in leaves_of_rows(rows, held, JOURNAL.columns).where("after >= 0").collect()]
        for finding in check_seals(held, leaves, "store_altered", JOURNAL.name):
            yield finding._replace(store=self._kind(finding.epoch))

    def check_published(self, published: Sequence[Published]) -> Iterator[Finding]:
        """Compare what the sources hold with the roots that lakes have published of them."""
        held = [
            (each.epoch, max(each.fork_seq, history.pruned_through), history.end_of(position))
            for _access, history in self._found
            for position, each in enumerate(history.lineage)
        ]
        rows = self._rows(JOURNAL, ("epoch", *JOURNAL.columns))
        for finding in check_rows(published, rows, held, "store_altered"):
            yield finding._replace(store=self._kind(finding.epoch))

    def _rows(self, feed: Feed, columns: Sequence[str]) -> DataFrame:
        frames = [
            self._labelled(access, history, feed).select(*columns)
            for access, history in self._found
            if history.store in feed.stores
        ]
        if not frames:
            struct = feed.struct().add("epoch", "string")
            return self._spark.createDataFrame([], struct).select(*columns)
        rows = frames[0]
        for frame in frames[1:]:
            rows = rows.unionByName(frame)
        return rows

    def _labelled(self, access: Access, history: History, feed: Feed) -> DataFrame:
        from pyspark.sql import functions as f

        reader = self._spark.read.format("posthouse").option("url", access.url).option("feed", feed.name)
        for name, value in (("token", access.token), ("tlsCa", access.tls_ca)):
            reader = reader.option(name, value) if value else reader
        epoch = f.lit(history.lineage[0].epoch)
        for each in history.lineage[1:]:
            epoch = f.when(f.col("seq") > each.fork_seq, each.epoch).otherwise(epoch)
        return reader.load().where(f.col("seq") <= history.head).withColumn("epoch", epoch)

    def _is_held(self, seal: Seal) -> bool:
        return any(each.epoch == seal.epoch for _access, history in self._found for each in history.lineage)

    def _held_part(self, seal: Seal) -> Iterator[Seal]:
        """Return the blocks of a seal that a source holds whole: above what was pruned, below where a restore left."""
        for _access, history in self._found:
            high = history.shared_with(seal.epoch)
            for number, leaf in enumerate(seal.leaves):
                after = seal.after + number * BLOCK_ROWS
                to = min(after + BLOCK_ROWS, seal.to)
                if history.pruned_through <= after and to <= high:
                    yield Seal(seal.epoch, seal.feed, after, to, 0, leaf, (leaf,))

    def _kind(self, epoch: str) -> str:
        return next((h.store for _a, h in self._found if any(each.epoch == epoch for each in h.lineage)), "store")
