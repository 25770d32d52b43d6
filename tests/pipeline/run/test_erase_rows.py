"""Erasing rows of bronze: wherever a run stops, the next one completes it, also one that was not asked to erase."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.pipeline_stores import MixedStore
from posthouse.files import private_dir
from posthouse.journal.erase import ErasureRequest
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.merkle_tree import root
from posthouse.pipeline.audit.seals import check_erasures
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_erasures import ErasureTable
from posthouse.pipeline.lake.bronze_seals import SealTable
from posthouse.pipeline.lake.delta import Delta
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter
from posthouse.pipeline.lake.merkle import Seal, leaf, leaves_of
from posthouse.pipeline.lake.storage import Storage
from posthouse.pipeline.run.copy_feeds import ignore_step
from posthouse.pipeline.run.erase_rows import Eraser
from posthouse.pipeline.tables.bronze import COPIES
from tests.pipeline.filled_lake import fill_lake

KEY = NodeKey(b"e" * 32)
_ROWS = 120


class Killed(Exception):
    """What stands for a kill -9 of the run."""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of a relay with one seal per bronze table."""
    folder = tmp_path_factory.mktemp("sealed")
    store, lake = MixedStore(folder / "relay", rows_per_day=40), Lake(private_dir(folder / "lake"))
    store.grow(_ROWS)
    fill_lake(lake, store.path, rows_per_file=25)
    (epoch,) = lake.epochs()
    for table, feed in COPIES.items():
        rows = BronzeScan(lake, table).read(RowFilter(epoch.epoch), feed.columns).sort_by("seq")
        leaves = leaves_of(rows, 0, _ROWS)
        texts = tuple(each.hex() for each in leaves)
        seal = Seal(epoch.epoch, feed.name, 0, _ROWS, rows.num_rows, root(leaves).hex(), texts)
        SealTable(lake.storage).add(table, lake.delta(table).version(), seal)
    return lake


def authors(lake: Lake) -> list[dict[str, Any]]:
    """Return author and content of the events in every file of the lake, whether a commit names it or not."""
    files = (lake.path / "bronze_events").glob("*.parquet")
    return [row for file in files for row in pq.read_table(file, columns=["pubkey", "event"]).to_pylist()]


def erase(lake: Lake, request: ErasureRequest | None) -> None:
    """Do what a run does with erasures, without the tables that it derives."""
    eraser = Eraser(lake, lambda: KEY, FakeClock(), ignore_step)
    eraser.erase(request)
    eraser.purge()


@contextmanager
def killed_after(changes: int) -> Iterator[list[str]]:
    """Let the lake take so many commits and deletions, and then no more; yield what it has taken."""
    taken: list[str] = []

    def limited(what: str, real: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            if len(taken) == changes:
                raise Killed
            taken.append(what)
            return real(*given, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delta, "commit", limited("commit", Delta.commit))
        patch.setattr(Storage, "delete_file", limited("delete", Storage.delete_file))
        yield taken


def test_erasure_that_is_killed_after_any_change_is_completed_by_the_next_run(sealed: Lake, tmp_path: Path) -> None:
    author = authors(sealed)[0]["pubkey"]
    request, before = ErasureRequest(node=author), len(authors(sealed))
    for changes in range(100):
        shutil.copytree(sealed.path, tmp_path / str(changes))
        lake = Lake(tmp_path / str(changes))
        try:
            with killed_after(changes) as taken:
                erase(lake, request)
            break
        except Killed:
            is_recorded = ErasureTable(lake.storage).newest_number() > 0
            erase(lake, None if is_recorded else request)
        check(lake, author, before)
    check(lake, author, before)
    assert (taken.count("commit"), taken.count("delete") > 0) == (5, True)


def check(lake: Lake, author: str, count: int) -> None:
    """Assert that the content of one author is in no file, that of all others is, and that the seals hold."""
    found = authors(lake)
    assert len(found) == count, "a file that no commit names is still there"
    assert all((row["event"] is None) == (row["pubkey"] == author) for row in found)
    records = ErasureTable(lake.storage).read()
    assert len(records) == 1
    (sealed,) = lake.sealed_commits("bronze_events")
    erased, findings = check_erasures(records, [sealed.seal], "events", [])
    assert findings == []
    rows = BronzeScan(lake, "bronze_events").read(RowFilter(), COPIES["bronze_events"].columns).sort_by("seq")
    kept = erased.kept(sealed.seal.epoch, rows)
    assert leaf(rows, 2, kept).hex() == sealed.seal.leaves[0]
