"""Opening databases: private files, no planted links, the right durability."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.model.errors import PosthouseError
from posthouse.sqlite.connection import SAFE_VERSION, Durability, library_version, open_reader, open_writer


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    db = open_writer(tmp_path / "t.db", Durability.FULL)
    db.execute("CREATE TABLE t (n)")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    db.close()
    assert modes == {"t.db": 0o600, "t.db-wal": 0o600, "t.db-shm": 0o600}


@pytest.mark.parametrize("name", ["t.db", "t.db-wal", "t.db-shm"])
def test_a_planted_link_is_refused(tmp_path: Path, database: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    link = tmp_path / name
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    with pytest.raises(PosthouseError):
        open_writer(database, Durability.FULL)
    assert victim.read_bytes() == b""


def test_a_linked_directory_is_no_planted_link(tmp_path: Path, database: Path) -> None:
    (tmp_path / "link").symlink_to(database.parent)
    db = open_reader(tmp_path / "link" / database.name)
    assert db.execute("SELECT n FROM t").get == 1
    db.close()


def test_what_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look like one " * 100)
    before = path.read_bytes()
    with pytest.raises(PosthouseError) as refused:
        open_writer(path, Durability.FULL)
    assert refused.value.code == "store_not_ours"
    assert path.read_bytes() == before


def test_a_missing_file_is_told_to_a_reader(tmp_path: Path) -> None:
    with pytest.raises(PosthouseError, match="no such file"):
        open_reader(tmp_path / "missing.db")
    assert list(tmp_path.iterdir()) == []


def test_full_syncs_every_commit_and_normal_does_not(database: Path) -> None:
    levels = {}
    for durability in Durability:
        db = open_writer(database, durability)
        levels[durability] = db.pragma("synchronous")
        assert db.pragma("journal_mode") == "wal"
        assert db.pragma("wal_autocheckpoint") == 0
        assert db.pragma("foreign_keys") == 1
        assert db.pragma("fullfsync") == 1
        db.close()
    assert levels == {Durability.FULL: 2, Durability.NORMAL: 1}


def test_a_locked_database_is_refused_after_its_time(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.sqlite.connection.BUSY_TIMEOUT_MS", 50)
    holder = open_writer(database, Durability.FULL)
    holder.execute("BEGIN IMMEDIATE")
    db = open_writer(database, Durability.FULL)
    with pytest.raises(apsw.BusyError):
        db.execute("BEGIN IMMEDIATE")
    holder.execute("ROLLBACK")
    db.execute("BEGIN IMMEDIATE")
    db.close()
    holder.close()


def test_the_library_is_recent_enough_not_to_corrupt_a_wal() -> None:
    assert library_version() >= SAFE_VERSION
