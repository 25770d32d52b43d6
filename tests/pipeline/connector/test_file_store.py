"""A reader of a store's file blocks no writer between two ranges, and waits while SQLite locks the file briefly."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.pipeline.stores import GrowingStore


class Reader:
    """The process that reads."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.pipeline.connector.file_reader", str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the reader ended with {self._process.wait()}"
        return int(answer)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> GrowingStore:
    store = GrowingStore(tmp_path / "relay")
    store.grow(35)
    return store


@pytest.fixture
def reader(store: GrowingStore) -> Iterator[Reader]:
    reader = Reader(store.path)
    yield reader
    reader.close()


def test_reader_between_two_ranges_sees_what_came_and_stops_no_checkpoint(store: GrowingStore, reader: Reader) -> None:
    assert reader.ask("history") == 35
    assert reader.ask("next") == 10
    store.grow(5)
    db = apsw.Connection(str(store.path))
    try:
        assert db.execute("SELECT count(*) FROM journal").get == 40  # from here on it knows of the WAL
        frames, copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        assert (frames, copied) == (0, 0)
    finally:
        db.close()
    assert reader.ask("next") == 10
    assert reader.ask("history") == 40


def test_reader_waits_for_who_is_alone_with_the_store(store: GrowingStore) -> None:
    db = apsw.Connection(str(store.path))
    db.pragma("locking_mode", "exclusive")
    db.execute("BEGIN EXCLUSIVE; COMMIT")
    with pytest.raises(apsw.BusyError):  # so it is locked, and not for its writers alone
        apsw.Connection(str(store.path)).execute("SELECT * FROM epochs").fetchall()
    reader = Reader(store.path)
    alone = threading.Timer(1.0, db.close)
    alone.start()
    try:
        assert reader.ask("history") == 35
    finally:
        alone.join()
        reader.close()
