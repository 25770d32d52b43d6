"""The seals of commits: in a table of their own, whatever happens to the logs and to the run that writes them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_seals import SealTable
from posthouse.pipeline.lake.data_file import write_rows
from posthouse.pipeline.lake.delta import Commit, Delta
from posthouse.pipeline.lake.merkle import NOTE, Seal
from posthouse.pipeline.lake.storage import LocalStorage

SCHEMA = pa.schema([("epoch", pa.string()), ("seq", pa.int64()), ("day", pa.string())])
TABLE = "bronze_journal"


def seal_of(number: int) -> Seal:
    return Seal("e", "journal", number - 1, number, 1, f"{number:064x}", (f"{number:064x}",))


def commit(lake: Path, number: int, *, is_sealed: bool = True) -> None:
    """Commit one row, as a run does; without `is_sealed`, as runs did that kept the seal in the log only."""
    delta, seal = Delta(LocalStorage(lake / TABLE)), seal_of(number)
    if is_sealed:
        SealTable(LocalStorage(lake)).add(TABLE, delta.version() + 1, seal)
    files = write_rows(delta.storage, pa.table({"epoch": ["e"], "seq": [number], "day": ["2026-01-01"]}, SCHEMA))
    delta.commit(Commit(files, notes={NOTE: msgspec.json.encode(seal).decode()}), SCHEMA)


def roots(lake: Path) -> list[tuple[int, str]]:
    return [(version, seal.root) for version, seal in Lake(lake).sealed_commits(TABLE)]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    path = tmp_path / "lake"
    path.mkdir(mode=0o700)
    return path


def test_seals_of_an_older_lake_move_to_the_table_and_outlive_the_log(lake: Path) -> None:
    for number in range(1, 5):
        commit(lake, number, is_sealed=False)
    expected = roots(lake)
    assert [version for version, _root in expected] == [0, 1, 2, 3]
    assert SealTable(LocalStorage(lake)).reconcile(TABLE) == 4
    from deltalake import DeltaTable

    DeltaTable(str(lake / TABLE)).create_checkpoint()
    for entry in sorted((lake / TABLE / "_delta_log").glob("*.json"))[:3]:
        entry.unlink()
    assert len(Delta(LocalStorage(lake / TABLE)).history()) == 1
    assert roots(lake) == expected
    commit(lake, 5)
    assert SealTable(LocalStorage(lake)).reconcile(TABLE) == 0
    assert roots(lake) == [*expected, (4, seal_of(5).root)]


def test_the_seal_of_a_commit_that_a_killed_run_never_made_is_ignored_and_deleted(lake: Path) -> None:
    commit(lake, 1)
    SealTable(LocalStorage(lake)).add(TABLE, 1, seal_of(9))
    assert roots(lake) == [(0, seal_of(1).root)]
    assert SealTable(LocalStorage(lake)).reconcile(TABLE) == 1
    commit(lake, 2)
    assert roots(lake) == [(0, seal_of(1).root), (1, seal_of(2).root)]


def test_a_seal_that_differs_from_its_commit_is_replaced_by_the_one_that_the_commit_carries(lake: Path) -> None:
    commit(lake, 1)
    SealTable(LocalStorage(lake)).add(TABLE, 1, seal_of(9))  # of a run that lost the race for version 1
    commit(lake, 2)
    assert SealTable(LocalStorage(lake)).reconcile(TABLE) == 1
    assert roots(lake) == [(0, seal_of(1).root), (1, seal_of(2).root)]


def test_the_newest_seal_of_an_epoch_is_found_by_its_last_seq(lake: Path) -> None:
    for number in range(1, 4):
        commit(lake, number)
    assert SealTable(LocalStorage(lake)).newest(TABLE, "e", 2) == seal_of(2)
    assert SealTable(LocalStorage(lake)).newest(TABLE, "other", 2) is None
