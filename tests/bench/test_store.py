"""bench store: both ways really write the same rows, and the report says what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.comparison import compare
from bench.store import measure_store
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.journal.verify import verify_store
from posthouse.sqlite.connection import open_reader


def records(path: Path) -> list[Record]:
    db = open_reader(path)
    try:
        return read_after(db, 0, 10_000)
    finally:
        db.close()


def test_both_ways_write_the_same_rows(tmp_path: Path) -> None:
    measure_store(tmp_path, rounds=1, singles=5, batches=2)
    ours, bare = records(tmp_path / "ours.db"), records(tmp_path / "bare.db")
    assert [record[2:] for record in ours] == [record[2:] for record in bare]
    assert len(ours) == 2 * (5 + 2 * 64)  # a round to warm up, a round that counts
    assert verify_store(tmp_path / "ours.db") == []
    assert verify_store(tmp_path / "bare.db") == []


def test_result_is_the_median_of_interleaved_ratios() -> None:
    calls: list[str] = []
    ours, bare = iter([1.0, 50.0, 60.0, 10.0]), iter([1.0, 100.0, 100.0, 100.0])

    def measure(name: str, rates: Iterator[float]) -> float:
        calls.append(name)
        return next(rates)

    seen = compare("x", lambda: measure("ours", ours), lambda: measure("bare", bare), rounds=3, required=0.4, aim=0.6)
    assert seen.ratio == 0.5
    assert seen.value()["ratios"] == [0.5, 0.6, 0.1]
    assert calls == ["ours", "bare", "ours", "bare", "bare", "ours", "ours", "bare"]
