"""Files of a table stay few and its log short, however many commits it had; no row changes."""

from __future__ import annotations

import os
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posthouse.model.clock import SystemClock
from posthouse.pipeline.lake.compaction import compact, plan_merges
from posthouse.pipeline.lake.data_file import DataFile, write_rows
from posthouse.pipeline.lake.delta import Commit, Delta, vacuum
from posthouse.pipeline.lake.keyed_rows import find_rows, replace_days, replace_rows
from posthouse.pipeline.lake.storage import LocalStorage
from tests.faults.campaign import rounds

SCHEMA = pa.schema([("epoch", pa.string()), ("seq", pa.int64()), ("key_hash", pa.int64()), ("day", pa.string())])
MOST_FILES = 200  # of a table, whatever its age
HOUR_S = 3_600
TODAY = "2036-01-01"


def append(table: Delta, first: int, count: int = 3, day: str = "2026-01-01", epoch: str = "e") -> None:
    seqs = list(range(first, first + count))
    rows = pa.table(
        {"epoch": [epoch] * count, "seq": seqs, "key_hash": [seq % 7 for seq in seqs], "day": [day] * count}, SCHEMA
    )
    table.commit(Commit(write_rows(table.storage, rows), app_versions={"app": seqs[-1]}), SCHEMA)


def rows_of(table: Delta) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for file in table.files():
        rows = pq.ParquetFile(table.path / file.path).read().to_pylist()
        found.update((row["day"], row["seq"]) for row in rows)
    return found


def day_after(days: int) -> str:
    return (date(2026, 1, 1) + timedelta(days)).isoformat()


_COMMITTED_DAYS = 500


@pytest.mark.faults
def test_a_table_stays_small_over_many_commits_and_keeps_every_row(tmp_path: Path) -> None:
    table, commits = Delta(LocalStorage(tmp_path / "t")), rounds(110, 1_000)
    most_files = most_log = 0
    for number in range(commits):
        append(table, 3 * number, day=day_after(number * _COMMITTED_DAYS // commits))
        compact(table, SCHEMA, TODAY, 16)
        most_files = max(most_files, len(table.files()))
        table.configure(HOUR_S)
        for entry in (table.path / "_delta_log").iterdir():
            os.utime(entry, (0, 0))  # every entry and checkpoint is older than the retention
        most_log = max(most_log, len(list((table.path / "_delta_log").iterdir())))
    assert most_files <= min(commits // 2, MOST_FILES)
    assert most_log <= 25, "entries before a checkpoint, which delta-rs writes every ten commits, stay"
    assert set(rows_of(table).values()) == {1}
    assert rows_of(table).total() == 3 * commits
    assert (table.generation(), table.app_version("app")) == (commits, 3 * commits - 1)


def test_a_table_of_many_stores_stays_small_over_the_years_and_its_rows_are_rewritten_a_few_times() -> None:
    """Only the plan: what it would merge is replaced by a description of the merged file."""
    epochs, runs, years = 4, 3, 4
    files: list[DataFile] = []
    seq = most = rewritten = 0
    for day in range(years * 365):
        for epoch in (f"e{number}" for number in range(epochs) for _run in range(runs)):
            seq += 1
            files.append(described(f"new {seq}", 5, (day_after(day), epoch, seq)))
        for merge in plan_merges(files, TODAY, 32):
            merged = {file.path for file in merge}
            files = [file for file in files if file.path not in merged]
            files.append(described(f"merged {seq} {merge[0].path}", sum(file.rows for file in merge), *bounds(merge)))
            rewritten += files[-1].rows
        most = max(most, len(files))
    assert sum(file.rows for file in files) == 5 * seq
    assert most <= MOST_FILES
    assert rewritten <= 5 * 5 * seq
    spans = [(date.fromisoformat(file.days[1]) - date.fromisoformat(file.days[0])).days for file in files if file.days]
    assert 300 < max(spans) < 366


def test_one_row_of_a_wrong_clock_does_not_let_every_run_merge_the_files_of_the_newest_day() -> None:
    files = [described(f"{seq}", 5, ("2026-05-01", "e", seq)) for seq in range(1, 4)]
    files.append(described("wrong", 5, ("2099-01-01", "e", 4)))
    assert plan_merges(files, "2026-05-02", 32) == []
    assert plan_merges(files, "2026-05-02", 3) == [files[:3]]


def described(path: str, rows: int, *bounds: tuple[str, str, int]) -> DataFile:
    """Return a file that a commit may describe: least and largest day, epoch and seq."""
    names = ("day", "epoch", "seq")
    low, high = dict(zip(names, bounds[0], strict=True)), dict(zip(names, bounds[-1], strict=True))
    return DataFile(path, 1, rows, low, high)


def bounds(files: list[DataFile]) -> tuple[tuple[str, str, int], tuple[str, str, int]]:
    low, high = [file.min_values for file in files], [file.max_values for file in files]
    names = ("day", "epoch", "seq")
    return tuple(min(each[name] for each in low) for name in names), tuple(
        max(each[name] for each in high) for name in names
    )


def test_merging_joins_files_of_one_epoch_and_of_like_size(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    append(table, 0, count=1_000)
    for number in range(4):
        append(table, 1_000 + 3 * number)
    append(table, 5, epoch="other")
    assert compact(table, SCHEMA, TODAY, 9) == 0
    assert compact(table, SCHEMA, TODAY, 4) == 3
    assert sorted(file.rows for file in table.files()) == [3, 12, 1_000]
    (merged,) = (file for file in table.files() if file.rows == 12)
    assert (merged.min_values["seq"], merged.max_values["seq"], merged.min_values["epoch"]) == (1_000, 1_011, "e")


def test_a_reader_of_the_version_before_keeps_its_files_for_the_retention(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    for number in range(4):
        append(table, 3 * number)
    before = table.files()
    assert compact(table, SCHEMA, TODAY, 2) == 3
    table.configure(30 * 24 * HOUR_S)
    _age(table, before)
    assert vacuum(table, SystemClock()) == 0
    assert all((table.path / file.path).exists() for file in before)
    table.configure(0)
    assert vacuum(table, SystemClock()) == 4
    assert rows_of(table).total() == 12


def test_a_file_that_no_commit_ever_named_goes_after_an_hour_whatever_the_retention(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    append(table, 0)
    rows = pa.table({"epoch": ["e"], "seq": [9], "key_hash": [1], "day": ["2026-01-01"]}, SCHEMA)
    orphans = write_rows(table.storage, rows)
    assert vacuum(table, SystemClock()) == 0
    _age(table, orphans)
    assert vacuum(table, SystemClock()) == 1


def _age(table: Delta, files: list[DataFile]) -> None:
    hours_ago_s = table.path.stat().st_mtime - 3 * HOUR_S
    for file in files:
        os.utime(table.path / file.path, (hours_ago_s, hours_ago_s))


def test_rows_are_found_and_replaced_by_the_hash_of_their_key(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    append(table, 0, count=14)
    append(table, 14, count=7, day="2026-01-02")
    wanted = pa.array([3, 5], pa.int64())
    assert sorted(find_rows(table, "key_hash", wanted, SCHEMA).column("seq").to_pylist()) == [3, 5, 10, 12, 17, 19]
    new = pa.table({"epoch": ["e"], "seq": [99], "key_hash": [3], "day": ["2026-01-02"]}, SCHEMA)
    replaced = replace_rows(table, "key_hash", wanted, new)
    assert replaced.days == {"2026-01-01", "2026-01-02"}
    table.commit(Commit(replaced.add, [file.path for file in replaced.remove]), SCHEMA)
    expected = [("2026-01-01", seq) for seq in range(14)] + [("2026-01-02", seq) for seq in range(14, 21)]
    kept = {each for each in expected if each[1] % 7 not in (3, 5)} | {("2026-01-02", 99)}
    assert rows_of(table) == Counter(kept)
    assert len(table.files()) == 2


def test_a_day_in_a_merged_file_is_replaced_and_its_other_days_stay_together(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    for number in range(6):
        append(table, 3 * number, day=f"2026-01-0{number + 1}")
    append(table, 18, day="2026-06-01")
    assert compact(table, SCHEMA, TODAY, 32) == 5
    new = pa.table(
        {"epoch": ["e"] * 2, "seq": [98, 99], "key_hash": [1, 2], "day": ["2026-01-03", "2026-01-09"]}, SCHEMA
    )
    replaced = replace_days(table, frozenset({"2026-01-03", "2026-01-09"}), new)
    assert replaced.days == {"2026-01-03", "2026-01-09"}
    table.commit(Commit(replaced.add, [file.path for file in replaced.remove]), SCHEMA)
    assert {("2026-01-03", 98), ("2026-01-09", 99)} <= rows_of(table).keys()
    assert {day for day, seq in rows_of(table) if 6 <= seq < 9} == set()
    assert rows_of(table).total() == 21 - 3 + 2
    assert len(table.files()) == 3
