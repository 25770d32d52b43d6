"""One audit: the lake's seals, what the lake and its sources say of each other, and every rule over the whole history.

Without a lake the sources are audited as they are. A lake whose files are missing or cut off is a finding, no failure;
its rows are then not judged, because most findings would be echoes of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.frames import Frames, audit_frames
from posthouse.pipeline.audit.published import check_rows, check_sealed, read_published
from posthouse.pipeline.audit.seals import audit_lake, read_seals
from posthouse.pipeline.audit.sources import Sources, lake_frames
from posthouse.pipeline.audit.stores import check_store
from posthouse.pipeline.lake.bronze import COPIES
from posthouse.pipeline.source.feeds import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.source.store import Access

MOST = 10_000  # findings that are kept; all are counted


@dataclass
class Report:
    """What an audit found, and what it looked at."""

    records: int = 0
    events: int = 0
    #: the first of them
    findings: list[Finding] = field(default_factory=list)
    #: all of them by code
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """How many findings there are."""
        return self.counts.total()

    def add(self, found: Sequence[Finding]) -> None:
        """Take findings in."""
        self.counts.update(each.code for each in found)
        self.findings += found[: max(0, MOST - len(self.findings))]


def audit(spark: SparkSession, lake: Lake | None, sources: Sequence[Access] = ()) -> Report:
    """Audit a lake, or the sources themselves when there is none; compare both when both are given."""
    report = Report()
    for access in sources:
        if not access.address.is_relay:
            report.add(check_store(Path(access.address.url)))
    if lake is None:
        given = Sources(spark, sources)
        frames = given.frames()
        report.add(list(given.check_published(read_published(frames.events))))
        _judge(report, frames)
        return report
    seals = audit_lake(spark, lake)
    report.add(seals)
    if any(each.code == "lake_altered" and not each.seq for each in seals):
        return report
    frames = lake_frames(spark, lake)
    report.add(_check_published(spark, lake, frames))
    if sources:
        report.add(list(Sources(spark, sources).compare(lake)))
    _judge(report, frames)
    return report


def _check_published(spark: SparkSession, lake: Lake, frames: Frames) -> list[Finding]:
    seals = [seal for table in COPIES for seal in read_seals(lake, table)]
    findings, others = check_sealed(read_published(frames.events), seals)
    held = [(seal.epoch, seal.after, seal.to) for seal in seals if seal.feed == JOURNAL.name]
    rows = lake.rows(spark, "bronze_journal", ("epoch", *JOURNAL.columns))
    return findings + list(check_rows(others, rows, held, "lake_altered"))


def _judge(report: Report, frames: Frames) -> None:
    audited = audit_frames(frames, MOST)
    report.records, report.events = audited.records, audited.events
    report.findings += audited.findings[: max(0, MOST - len(report.findings))]
    report.counts.update(audited.counts)
