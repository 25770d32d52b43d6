"""Commits to a table: once, in one step, and nothing that is damaged or newer is touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from posthouse.model.clock import SystemClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import write_rows
from posthouse.pipeline.lake.delta import DEFAULT_RETENTION_S, Commit, Delta, check_files, vacuum
from posthouse.pipeline.lake.storage import LocalStorage
from posthouse.pipeline.run.lake_run import hold_lake

SCHEMA = pa.schema([("epoch", pa.string()), ("seq", pa.int64()), ("day", pa.string())])


def write(table: Delta, first: int, last: int) -> Commit:
    seqs = list(range(first, last + 1))
    rows = pa.table({"epoch": ["e"] * len(seqs), "seq": seqs, "day": ["2026-01-01"] * len(seqs)})
    before = None if first == 1 else first - 1
    return Commit(write_rows(table.storage, rows), (), {"app": last}, {"app": before})


def test_a_commit_carries_files_bounds_and_how_far_it_got(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    assert (table.version(), table.app_version("app"), table.files()) == (-1, None, [])
    table.commit(write(table, 1, 5), SCHEMA)
    table.commit(write(table, 6, 9), SCHEMA)
    found = Delta(LocalStorage(tmp_path / "t"))
    assert (found.version(), found.app_version("app"), found.app_version("other")) == (1, 9, None)
    assert sorted((file.rows, file.min_values["seq"], file.max_values["seq"], file.days) for file in found.files()) == [
        (4, 6, 9, ("2026-01-01", "2026-01-01")),
        (5, 1, 5, ("2026-01-01", "2026-01-01")),
    ]
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o700


def test_nobody_else_can_read_the_log_of_a_table_whatever_the_umask(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    before = os.umask(0)
    try:
        table.commit(write(table, 1, 5), SCHEMA)
        table.commit(write(table, 6, 9), SCHEMA)
    finally:
        os.umask(before)
    log = tmp_path / "t" / "_delta_log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o700
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in sorted(log.iterdir())] == [
        (f"{version:020}.json", 0o600) for version in range(2)
    ]


def test_log_files_that_killed_processes_left_readable_are_private_after_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    before = os.umask(0)
    try:
        table.commit(write(table, 1, 1), SCHEMA)
        with monkeypatch.context() as killed:  # before it has set a mode
            killed.setattr(Delta, "_restrict_mode", lambda _self: None)
            for seq in range(2, 13):
                table.commit(write(table, seq, seq), SCHEMA)
    finally:
        os.umask(before)
    log = tmp_path / "t" / "_delta_log"
    readable = [path.suffix for path in log.iterdir() if stat.S_IMODE(path.stat().st_mode) != 0o600]
    assert (readable.count(".json"), readable.count(".parquet")) == (11, 1)
    Delta(LocalStorage(tmp_path / "t")).configure(DEFAULT_RETENTION_S)
    assert {stat.S_IMODE(path.stat().st_mode) for path in log.iterdir()} == {0o600}


@pytest.mark.parametrize("happens", ["lost", "cut"])
def test_a_file_that_is_not_there_in_full_is_never_committed(tmp_path: Path, happens: str) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    table.commit(write(table, 1, 5), SCHEMA)
    commit = write(table, 6, 9)
    path = table.path / commit.add[0].path
    if happens == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PosthouseError) as refused:
        table.commit(commit, SCHEMA)
    assert refused.value.code == "lake_files_missing"
    found = Delta(LocalStorage(tmp_path / "t"))
    assert (found.version(), found.app_version("app"), len(found.files())) == (0, 5, 1)


def test_a_batch_that_is_there_already_is_refused(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    first = write(table, 1, 5)
    table.commit(first, SCHEMA)
    late = Delta(LocalStorage(tmp_path / "t"))
    with pytest.raises(PosthouseError) as refused:
        late.commit(first, SCHEMA)
    assert refused.value.code == "lake_busy"
    assert sum(file.rows for file in Delta(LocalStorage(tmp_path / "t")).files()) == 5


def test_a_table_whose_file_was_cut_off_or_lost_is_told_damaged(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    table.commit(write(table, 1, 5), SCHEMA)
    (file,) = table.files()
    path = table.path / file.path
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    with pytest.raises(PosthouseError, match="bytes instead of") as cut:
        check_files(table, table.files())
    assert cut.value.code == "lake_damaged"
    path.unlink()
    with pytest.raises(PosthouseError, match="is missing"):
        check_files(table, table.files())


def test_a_log_that_is_half_written_is_told_damaged_and_left_alone(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    table.commit(write(table, 1, 5), SCHEMA)
    (log,) = (table.path / "_delta_log").glob("*.json")
    half = log.read_bytes()[:40]
    log.write_bytes(half)
    with pytest.raises(PosthouseError) as refused:
        Delta(LocalStorage(tmp_path / "t")).version()
    assert refused.value.code == "lake_damaged"
    assert log.read_bytes() == half


def test_a_log_that_lost_an_entry_is_told_damaged_and_between_which_versions(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    for first, last in ((1, 5), (6, 9), (10, 12), (13, 20)):
        table.commit(write(table, first, last), SCHEMA)
    (table.path / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(PosthouseError, match=r"its log has no entry between versions 1 and 3$") as refused:
        Delta(LocalStorage(tmp_path / "t")).version()
    assert refused.value.code == "lake_damaged"


def test_a_table_of_a_newer_posthouse_is_refused(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    table.commit(write(table, 1, 5), SCHEMA)
    (log,) = (table.path / "_delta_log").glob("*.json")
    log.write_text(log.read_text().replace("posthouse.schema_version=3", "posthouse.schema_version=7"))
    with pytest.raises(PosthouseError) as refused:
        Delta(LocalStorage(tmp_path / "t")).files()
    assert (refused.value.code, refused.value.fields["found"]) == ("lake_newer", 7)


def test_files_that_no_commit_names_are_removed_after_a_while(tmp_path: Path) -> None:
    table = Delta(LocalStorage(tmp_path / "t"))
    table.commit(write(table, 1, 5), SCHEMA)
    write(table, 6, 9)  # a run that was killed before its commit
    assert vacuum(table, SystemClock()) == 0
    assert vacuum(table, SystemClock(), grace_s=-60) == 1
    check_files(table, table.files())
    assert sum(file.rows for file in table.files()) == 5


def test_a_second_run_is_told_that_the_lake_is_busy(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with hold_lake(lake):
        with pytest.raises(PosthouseError) as refused, hold_lake(lake):
            pass
        assert refused.value.code == "lake_busy"
    with hold_lake(lake):
        pass
