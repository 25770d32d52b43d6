"""The audit on Spark finds what the same rules find in one process, and nothing in clean stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from posthouse.pipeline.audit.audit import Sources
from posthouse.pipeline.audit.spark_audit import EVENT_COLUMNS, JOURNAL_COLUMNS, Audited, Frames, audit_frames
from posthouse.pipeline.audit.stores import Histories, audit_histories
from posthouse.pipeline.connector.source_access import Access
from tests.pipeline.audit.corruptions import CORRUPTIONS

pytestmark = pytest.mark.xdist_group("spark")
_JOURNAL = "epoch string, seq bigint, at_ns bigint, type string, mesh string, actor string, ref string, body string"
_EVENTS = (
    "epoch string, seq bigint, at_ns bigint, id string, pubkey string, kind bigint, created_at_ns bigint, event string"
)


def audit_on_spark(spark: SparkSession, given: Histories) -> Audited:
    journal = spark.createDataFrame([tuple(row) for row in given.journal], _JOURNAL)
    events = spark.createDataFrame([tuple(row) for row in given.events], _EVENTS)
    return audit_frames(Frames(given.epochs, journal.select(*JOURNAL_COLUMNS), events.select(*EVENT_COLUMNS)))


def test_clean_stores_have_no_findings(spark: SparkSession, stores: list[Path], clean: Histories) -> None:
    audited = audit_frames(Sources(spark, [Access(str(path)) for path in stores]).frames())
    assert audited.findings == []
    assert (audited.records, audited.events) == (len(clean.journal), len(clean.events))


def test_spark_finds_exactly_what_one_process_finds(spark: SparkSession, clean: Histories) -> None:
    planted = clean
    for name in ("flipped byte", "missing delivery", "falling token", "overlapping leases", "broken chain", "gap"):
        planted = CORRUPTIONS[name].plant(planted)
    audited = audit_on_spark(spark, planted)
    expected = audit_histories(planted)
    assert sorted(set(audited.findings)) == sorted(expected)
    assert len(expected) > 5
    assert sum(audited.counts.values()) >= len(expected)
