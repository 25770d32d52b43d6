"""The data source on a real Spark: feeds, filters, columns, streams, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from posthouse.pipeline.connector.data_source import register_source
from posthouse.pipeline.connector.source_access import Access, read_history
from posthouse.pipeline.session.spark import run_in_workers
from tests.pipeline.connector.looking import read_and_look
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")
ROWS = 500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GrowingStore:
    store = GrowingStore(tmp_path_factory.mktemp("source") / "relay")
    store.grow(ROWS)
    return store


def read(spark: SparkSession, store: GrowingStore, **options: str) -> DataFrame:
    register_source(spark)
    return spark.read.format("posthouse").options(url=str(store.path), **options).load()


def test_the_journal_comes_as_it_is_whatever_the_partitions(spark: SparkSession, store: GrowingStore) -> None:
    found = [tuple(row) for row in read(spark, store, partitionRows="70").orderBy("seq").collect()]
    assert found == [(store.epoch(), *record) for record in store.records()]


def test_filters_that_are_pushed_down_keep_what_they_say(spark: SparkSession, store: GrowingStore) -> None:
    narrowed = read(spark, store, columns="seq,type,mesh", partitionRows="100").where(
        "seq > 100 AND seq <= 200 AND type = 'refused' AND mesh IN ('main', 'x')"
    )
    expected = [r.seq for r in store.records() if 100 < r.seq <= 200 and r.type == "refused" and r.mesh == "main"]
    assert sorted(row.seq for row in narrowed.collect()) == expected
    assert narrowed.columns == ["seq", "type", "mesh"]
    assert narrowed.rdd.getNumPartitions() == 1


def test_a_stream_takes_what_is_there_in_bounded_batches_and_ends(
    spark: SparkSession, store: GrowingStore, tmp_path: Path
) -> None:
    register_source(spark)
    sizes: list[int] = []
    seen: list[int] = []

    def take(batch: DataFrame, _number: int) -> None:
        rows = [row.seq for row in batch.select("seq").collect()]
        sizes.append(len(rows))
        seen.extend(rows)

    stream = spark.readStream.format("posthouse").options(url=str(store.path), maxRowsPerBatch="200").load()
    for _ in range(2):
        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(120)
    assert sorted(seen) == [record.seq for record in store.records()]
    assert max(sizes) <= 200 and len(sizes) >= 3


def test_workers_read_without_apsw(spark: SparkSession, store: GrowingStore) -> None:
    (loaded,) = run_in_workers(spark, read_and_look, [Access(str(store.path))])
    assert loaded == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "UPDATE schema_versions SET version = 99 WHERE component = 'journal'",
            "newer posthouse: journal has version 99",
        ),
        ("PRAGMA application_id = 1", "not a posthouse store"),
    ],
)
def test_a_store_that_is_newer_or_foreign_is_refused(
    spark: SparkSession, tmp_path: Path, change: str, words: str
) -> None:
    odd = GrowingStore(tmp_path / "odd")
    db = apsw.Connection(str(odd.path))
    db.execute(change)
    db.close()
    with pytest.raises(Exception, match=words):
        run_in_workers(spark, read_history, [Access(str(odd.path))])


def test_a_file_that_is_no_database_is_told_damaged(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    path.write_bytes(b"not a database at all, but long enough to look like one" * 100)
    with pytest.raises(Exception, match="cannot be read"):
        run_in_workers(spark, read_history, [Access(str(path))])


def test_a_feed_that_the_store_does_not_have_is_refused(spark: SparkSession, store: GrowingStore) -> None:
    with pytest.raises(Exception, match="has no feed 'bus'"):
        read(spark, store, feed="bus").collect()
    with pytest.raises(Exception, match="no column 'nonsense'"):
        read(spark, store, columns="seq,nonsense")
