"""Runs on a real Spark: exactly once, batch by batch, over restores, equal to a rebuild."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.pipeline_growth import cpu_seconds
from bench.pipeline_stores import MixedStore
from posthouse.journal.cursor import read_committed
from posthouse.model.errors import PosthouseError, Transient
from posthouse.pipeline.audit.audit import Sources
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import Copier, RunStep
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.tables.catalog import TABLES
from posthouse.relay.store.sqlite.store import COPY_NAME
from tests.faults.campaign import rounds
from tests.pipeline.run.lakes import check_private, check_seals, journal_rows, table_rows
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")  # the shorter of the two chains


@pytest.fixture
def store(tmp_path: Path) -> GrowingStore:
    return GrowingStore(tmp_path / "relay")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def run(spark: SparkSession, lake: Lake, store: GrowingStore, batch_rows: int = 1_000_000) -> list[RunStep]:
    steps: list[RunStep] = []
    bring_up_to_date(
        spark, lake, [Access(str(store.path))], clock=store.clock, batch_rows=batch_rows, on_step=steps.append
    )
    return steps


def test_a_lake_over_growth_and_restore_equals_its_stores_and_a_rebuild(
    spark: SparkSession, lake: Lake, store: GrowingStore
) -> None:
    first = store.epoch()
    run(spark, lake, store)  # an empty history is no failure
    assert (journal_rows(spark, lake), [each.epoch for each in lake.epochs()]) == ([], [first])
    store.grow(40)
    run(spark, lake, store, batch_rows=30)
    store.grow(20)
    backup = store.back_up("backup")
    store.grow(25)
    lost = store.records()[60:]
    run(spark, lake, store)
    second = store.restore(backup)
    store.grow(10)
    run(spark, lake, store)
    again = run(spark, lake, store)

    live = store.records()
    expected = [(first, record, False) for record in live[:60]] + [(first, record, True) for record in lost]
    expected += [(second, record, False) for record in live[60:]]
    assert journal_rows(spark, lake) == sorted(expected, key=lambda row: (row[0], row[1].seq))
    assert {step.step for step in again} == {"unchanged"}
    assert check_seals(lake) == 4
    assert (read_committed(lake.path, first), read_committed(lake.path, second)) == (85, 70)
    _check_rebuild(spark, lake, store)
    _check_migration(spark, lake, store)
    check_private(lake.path)


def _check_rebuild(spark: SparkSession, lake: Lake, store: GrowingStore) -> None:
    kept, versions = table_rows(lake), lake.versions()
    seen: list[int] = []
    bring_up_to_date(
        spark,
        lake,
        [Access(str(store.path))],
        clock=store.clock,
        is_rebuild=True,
        on_step=lambda _step: seen.append(_count(lake)),
    )
    assert table_rows(lake) == kept
    assert set(seen) == {sum(rows.total() for rows in kept.values())}, "a reader found a table without its rows"
    assert {lake.versions()[table.name] - versions[table.name] for table in TABLES} == {1}
    assert kept["silver_refusals"].total() == 31


def _count(lake: Lake) -> int:
    """Return the number of rows of all tables above bronze, as a reader finds them now."""
    return sum(file.rows for table in TABLES for file in lake.delta(table.name).files())


def _check_migration(spark: SparkSession, lake: Lake, store: GrowingStore) -> None:
    """A lake of an older posthouse has seals in its logs only, and tables with other columns."""
    kept, seals = table_rows(lake), check_seals(lake)
    shutil.rmtree(lake.path / "bronze_seals")
    for log in lake.path.glob("*/_delta_log/*.json"):
        log.write_text(log.read_text().replace("posthouse.schema_version=3", "posthouse.schema_version=2"))
    assert check_seals(lake) == seals
    with pytest.raises(PosthouseError) as outdated:
        lake.table(spark, "silver_refusals")
    assert outdated.value.code == "lake_older"
    steps = run(spark, lake, store)
    assert {step.table for step in steps if step.step == "rebuilding"} == {table.name for table in TABLES}
    assert sum(step.rows for step in steps if step.step == "sealed") == len(lake.sealed_commits("bronze_journal")) * 2
    assert (table_rows(lake), check_seals(lake)) == (kept, seals)
    assert all(lake.delta(name).is_current() for name in lake.names())


@pytest.mark.faults
def test_a_run_with_a_few_new_rows_reads_and_writes_no_more_on_ten_times_the_history(
    spark: SparkSession, lake: Lake, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The whole campaign goes on with sixty runs, four days each: every table has few files, and no run costs more."""
    store = MixedStore(tmp_path / "mixed", rows_per_day=50)
    written: list[tuple[int, int]] = []
    for before, new in ((110, 40), (1_160, 40)):
        for count in (before, new):
            store.grow(count)
            steps: list[RunStep] = []
            bring_up_to_date(spark, lake, [Access(str(store.path))], on_step=steps.append)
        derived = [step for step in steps if step.step == "derived"]
        written.append((sum(step.fields["replaced_files"] for step in derived), sum(step.rows for step in derived)))
    assert len({file.days for file in lake.delta("silver_messages").files()}) > 20
    (files, rows), (later_files, later_rows) = written
    assert later_files <= files
    assert later_rows <= 1.1 * rows
    costs_s: list[float] = []
    most_files = 0
    for _ in range(rounds(0, 60)):
        store.grow(200)
        before_s = cpu_seconds()
        bring_up_to_date(spark, lake, [Access(str(store.path))])
        costs_s.append(round(cpu_seconds() - before_s, 2))
        most_files = max(most_files, *(len(lake.delta(name).files()) for name in lake.names()))
    record_property("cpu_seconds", costs_s)
    record_property("most_files", most_files)
    assert most_files <= 200
    assert sum(costs_s[-10:]) <= 1.3 * sum(costs_s[:10])


def test_two_runs_that_planned_the_same_batch_commit_it_once(
    spark: SparkSession, lake: Lake, store: GrowingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a second run commits in between, as if the lock did not hold."""
    store.grow(30)
    access = Access(str(store.path))
    late = Copier(spark, lake, access, store.clock, 1000, lambda _step: None)
    real = late._write
    interfered: list[bool] = []

    def write_after_another(*given: object) -> object:
        if not interfered:
            interfered.append(True)
            Copier(spark, lake, access, store.clock, 1000, lambda _step: None).copy()
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "_write", write_after_another)
    with pytest.raises(PosthouseError) as refused:
        late.copy()
    assert refused.value.code == "lake_busy"
    assert [row[1].seq for row in journal_rows(spark, lake)] == list(range(1, 31))


def test_a_store_whose_older_file_was_put_back_is_refused_and_the_audit_finds_it_but_not_a_standby_that_lags(
    spark: SparkSession, lake: Lake, store: GrowingStore
) -> None:
    access = Access(str(store.path))
    copier = Copier(spark, lake, access, store.clock, 1000, lambda _step: None)
    store.grow(30)
    older = store.back_up("older")
    store.grow(10)
    copier.copy()
    standby = Access(str(shutil.copy(older, store.path.with_name(COPY_NAME))))
    with pytest.raises(Transient) as behind:
        Copier(spark, lake, standby, store.clock, 1000, lambda _step: None).copy()
    assert list(Sources(spark, [standby]).compare(lake)) == []
    with pytest.raises(PosthouseError) as repeated:
        Sources(spark, [access, standby])
    assert (repeated.value.code, repeated.value.fields["other"]) == ("source_repeated", access.url)
    store.path.write_bytes(older.read_bytes())
    with pytest.raises(PosthouseError) as short:
        copier.copy()
    found = {finding.code for finding in Sources(spark, [access]).compare(lake)}
    store.grow(20)  # past what the lake has, with other records in their place
    with pytest.raises(PosthouseError) as different:
        copier.copy()
    assert (short.value.code, different.value.code) == ("source_went_back", "source_went_back")
    assert behind.value.code == "source_behind"
    assert "it ends at record 30" in str(short.value)
    assert "its records 1..40 differ" in str(different.value)
    assert found == {"store_lacks_records"}
    assert [row[1].seq for row in journal_rows(spark, lake)] == list(range(1, 41))
