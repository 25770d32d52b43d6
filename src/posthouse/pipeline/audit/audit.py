"""One audit: check the lake's seals, compare the lake with its sources, and apply every rule to the whole history.

Without a lake, the audit reads the sources directly. Workers read the sources, so the driver may hold stores open
through apsw. Missing or truncated files of the lake are findings, not failures; the audit then ends with the seals,
because most further findings would only follow from the damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.pipeline.audit.derived import check_derived
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import EpochRow
from posthouse.pipeline.audit.seals import (
    NO_ERASURES,
    RootEvent,
    audit_lake,
    check_rows,
    check_sealed,
    check_seals,
    leaves_of_rows,
    read_published,
    split_publishers,
)
from posthouse.pipeline.audit.spark_audit import EVENT_COLUMNS, JOURNAL_COLUMNS, Frames, audit_frames
from posthouse.pipeline.audit.stores import check_store
from posthouse.pipeline.connector.data_source import register_source
from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL, Feed
from posthouse.pipeline.connector.source_access import Access, read_history
from posthouse.pipeline.epochs import History
from posthouse.pipeline.lake.bronze_erasures import ErasedRows, digests_of_request
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, Seal
from posthouse.pipeline.session.spark import run_in_workers
from posthouse.pipeline.tables.bronze import COPIES, application_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from posthouse.pipeline.lake import Lake


def lake_frames(spark: SparkSession, lake: Lake) -> Frames:
    """Return the history in a lake."""
    epochs = [
        EpochRow(each.epoch, each.parent, each.fork_seq, each.store, each.started_at_ns) for each in lake.epochs()
    ]
    events = lake.delta("bronze_events")
    through = {each.epoch: events.app_version(application_id(each.epoch, EVENTS.name)) or 0 for each in epochs}
    return Frames(
        epochs,
        lake.rows(spark, "bronze_journal", JOURNAL_COLUMNS),
        lake.rows(spark, "bronze_events", EVENT_COLUMNS),
        through,
    )


class Sources:
    """Stores and relays in their current state."""

    def __init__(self, spark: SparkSession, accesses: Sequence[Access]) -> None:
        self._spark = spark
        register_source(spark)
        histories = run_in_workers(spark, read_history, list(accesses))
        self._histories = list(zip(accesses, histories, strict=True))
        _refuse_copies(self._histories)

    def frames(self) -> Frames:
        """Return the history in the sources."""
        epochs = {
            each.epoch: EpochRow(each.epoch, each.parent, each.fork_seq, history.store, each.started_at_ns or 0)
            for _access, history in self._histories
            for each in history.lineage
        }
        return Frames(list(epochs.values()), self._rows(JOURNAL, JOURNAL_COLUMNS), self._rows(EVENTS, EVENT_COLUMNS))

    def compare(self, lake: Lake, erased: ErasedRows = NO_ERASURES) -> Iterator[Finding]:
        """Compare the journals that the sources still hold with the lake's seals.

        Events are not compared, because their content may expire. `erased` holds the digests of the rows that the lake
        has erased. A block of version 1 from which only the store has erased records cannot be compared; the next run
        seals it again.
        """
        seals = [commit.seal for commit in lake.sealed_commits("bronze_journal") if self._is_held(commit.seal)]
        yield from self._missing_records(seals)
        rows = self._rows(JOURNAL, ("epoch", *JOURNAL.columns))
        digests = self._erased_digests(rows)
        kept = ErasedRows(digests, {}, erased.leaves)
        held = [block for seal in seals for block in self._held_blocks(seal) if _is_comparable(block, kept)]
        found = leaves_of_rows(rows, held, JOURNAL.columns, kept).where("after >= 0").collect()
        for finding in check_seals(held, [tuple(row) for row in found], "store_altered", JOURNAL.name, kept):
            yield finding._replace(store=self._kind(finding.epoch))

    def _erased_digests(self, rows: DataFrame) -> dict[str, dict[int, bytes]]:
        """Return the digests that stores keep of erased records: epoch -> seq -> digest."""
        from pyspark.sql import functions as f

        if all(history.store == "relay" for _access, history in self._histories):
            return {}  # its journal has no content
        requests = rows.where((f.col("type") == "content.erased") & (f.col("ref") == JOURNAL.name))
        found: dict[str, dict[int, bytes]] = {}
        for epoch, body in requests.select("epoch", "body").collect():
            found.setdefault(epoch, {}).update(digests_of_request(body))
        return found

    def _missing_records(self, seals: Sequence[Seal]) -> Iterator[Finding]:
        """Yield a finding for each source whose current epoch ends below its newest seal.

        A restore cannot cause this, because it begins a new epoch. Standbys are skipped: they may not have received the
        records yet.
        """
        for _access, history in self._histories:
            if history.is_standby:
                continue
            sealed = max((seal.to for seal in seals if seal.epoch == history.epoch), default=0)
            if sealed > history.head:
                detail = f"the lake committed the records up to {sealed}, the store ends at {history.head}"
                yield Finding(
                    "store_lacks_records", history.store, history.epoch, JOURNAL.name, history.head + 1, detail
                )

    def check_published(self, published: Sequence[RootEvent]) -> Iterator[Finding]:
        """Compare the sources with the Merkle roots that lakes published of their records."""
        held = [
            (each.epoch, max(each.fork_seq, history.pruned_through), history.end_of(position))
            for _access, history in self._histories
            for position, each in enumerate(history.lineage)
        ]
        rows = self._rows(JOURNAL, ("epoch", *JOURNAL.columns))
        erased = ErasedRows(self._erased_digests(rows))
        for finding in check_rows(published, rows, held, "store_altered", erased):
            yield finding._replace(store=self._kind(finding.epoch))

    def _rows(self, feed: Feed, columns: Sequence[str]) -> DataFrame:
        frames = [
            self._with_epoch(access, history, feed).select(*columns)
            for access, history in self._histories
            if history.store in feed.stores
        ]
        if not frames:
            struct = feed.struct().add("epoch", "string")
            return self._spark.createDataFrame([], struct).select(*columns)
        rows = frames[0]
        for frame in frames[1:]:
            rows = rows.unionByName(frame)
        return rows

    def _with_epoch(self, access: Access, history: History, feed: Feed) -> DataFrame:
        from pyspark.sql import functions as f

        reader = self._spark.read.format("posthouse").option("url", access.url).option("feed", feed.name)
        for name, value in (("token", access.token), ("tlsCa", access.tls_ca)):
            reader = reader.option(name, value) if value else reader
        epoch = f.lit(history.lineage[0].epoch)
        for each in history.lineage[1:]:
            epoch = f.when(f.col("seq") > each.fork_seq, each.epoch).otherwise(epoch)
        return reader.load().where(f.col("seq") <= history.head).withColumn("epoch", epoch)

    def _is_held(self, seal: Seal) -> bool:
        return any(each.epoch == seal.epoch for _access, history in self._histories for each in history.lineage)

    def _held_blocks(self, seal: Seal) -> Iterator[Seal]:
        """Yield a seal for each block that a source holds completely: above its pruned rows, below a restore's fork."""
        for _access, history in self._histories:
            high = history.shared_with(seal.epoch)
            for number, leaf in enumerate(seal.leaves):
                after = seal.after + number * BLOCK_ROWS
                to = min(after + BLOCK_ROWS, seal.to)
                if history.pruned_through <= after and to <= high:
                    yield Seal(seal.epoch, seal.feed, after, to, 0, leaf, (leaf,), seal.version)

    def _kind(self, epoch: str) -> str:
        return next((h.store for _a, h in self._histories if any(each.epoch == epoch for each in h.lineage)), "store")


def _refuse_copies(histories: Sequence[tuple[Access, History]]) -> None:
    """Raise source_repeated if two sources hold the same records, as a store and its standby do."""
    for (access, history), (other, copy) in combinations(histories, 2):
        for segment in history.segments(0, history.head):
            if any(
                each.epoch == segment.epoch and max(each.after, segment.after) < min(each.to, segment.to)
                for each in copy.segments(0, copy.head)
            ):
                raise error("source_repeated", url=other.url, other=access.url)


def _is_comparable(block: Seal, erased: ErasedRows) -> bool:
    """Return False for a block of version 1 from which the store has erased records."""
    if erased.version(block, block.after) > 1:
        return True
    return not any(block.after < seq <= block.to for seq in erased.digests.get(block.epoch, ()))


MAX_FINDINGS = 10_000  # findings that a report lists; it counts all


@dataclass
class Report:
    """The findings of an audit, and how much it checked."""

    records: int = 0
    events: int = 0
    #: Merkle roots of commits that were recomputed.
    seals: int = 0
    #: Derived tables that were recomputed from bronze.
    derived: int = 0
    #: The first findings, at most MAX_FINDINGS.
    findings: list[Finding] = field(default_factory=list)
    #: All findings, by code.
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """The number of all findings."""
        return self.counts.total()

    def add(self, found: Sequence[Finding]) -> None:
        """Add findings."""
        self.counts.update(each.code for each in found)
        self.findings += found[: max(0, MAX_FINDINGS - len(self.findings))]

    def as_value(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return vars(self) | {"findings": [list(each) for each in self.findings], "counts": dict(self.counts)}

    @staticmethod
    def of_value(value: Mapping[str, Any]) -> Report:
        """Return the report from a value that `as_value` returned."""
        findings = [Finding(*each) for each in value["findings"]]
        return Report(**{**value, "findings": findings, "counts": Counter(value["counts"])})


def audit(
    spark: SparkSession,
    lake: Lake | None,
    sources: Sequence[Access] = (),
    *,
    is_derived: bool = False,
    publishers: Collection[str] = (),
    own_node: str = "",
) -> Report:
    """Audit a lake, or the sources if there is no lake; if both are given, compare them too.

    With `is_derived`, recompute the tables above bronze. `publishers` and `own_node` are the nodes whose published
    roots and erasures count; `split_publishers` says what applies without any.
    """
    report = Report()
    for access in sources:
        if access.address.is_file:
            report.add(check_store(Path(access.address.url)))
    if lake is None:
        current = Sources(spark, sources)
        frames = current.frames()
        published, untrusted = split_publishers(read_published(frames.events), publishers, own_node)
        report.add(untrusted)
        report.add(list(current.check_published(published)))
        _apply_rules(report, frames)
        return report
    seals, erased = audit_lake(spark, lake, publishers, own_node)
    report.add(seals)
    if any(each.code == "lake_altered" and not each.seq for each in seals):
        return report
    frames = lake_frames(spark, lake)
    report.seals = sum(len(lake.sealed_commits(table)) for table in COPIES)
    report.add(_check_lake_roots(spark, lake, frames, publishers, own_node, erased[JOURNAL.name]))
    if is_derived:
        findings, report.derived = check_derived(spark, lake)
        report.add(findings)
    if sources:
        report.add(list(Sources(spark, sources).compare(lake, erased[JOURNAL.name])))
    _apply_rules(report, frames)
    return report


def _check_lake_roots(
    spark: SparkSession,
    lake: Lake,
    frames: Frames,
    publishers: Collection[str] = (),
    own_node: str = "",
    erased: ErasedRows = NO_ERASURES,
) -> list[Finding]:
    seals = [commit.seal for table in COPIES for commit in lake.sealed_commits(table)]
    published, untrusted = split_publishers(read_published(frames.events), publishers, own_node)
    findings, others = check_sealed(published, seals)
    held = [(seal.epoch, seal.after, seal.to) for seal in seals if seal.feed == JOURNAL.name]
    rows = lake.rows(spark, "bronze_journal", ("epoch", *JOURNAL.columns))
    return untrusted + findings + list(check_rows(others, rows, held, "lake_altered", erased))


def _apply_rules(report: Report, frames: Frames) -> None:
    audited = audit_frames(frames, MAX_FINDINGS)
    report.records, report.events = audited.records, audited.events
    report.findings += audited.findings[: max(0, MAX_FINDINGS - len(report.findings))]
    report.counts.update(audited.counts)
