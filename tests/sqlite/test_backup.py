"""Backups: complete or not there, private, never over another file."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from posthouse.model.errors import PosthouseError
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, open_reader, open_writer


def test_a_backup_holds_what_was_committed_even_what_is_only_in_the_wal(database: Path, tmp_path: Path) -> None:
    db = open_writer(database, Durability.FULL)
    db.execute("INSERT INTO t VALUES (2, 'in the wal')")
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (3, 'not committed')")
    backup_store(database, tmp_path / "copy.db")
    db.close()
    copy = open_reader(tmp_path / "copy.db")
    assert [n for (n,) in copy.execute("SELECT n FROM t")] == [1, 2]
    assert copy.pragma("integrity_check") == "ok"
    copy.close()


def test_a_backup_is_one_private_file(database: Path, tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    backup_store(database, tmp_path / "backups" / "copy.db")
    (copy,) = (tmp_path / "backups").iterdir()
    assert copy.stat().st_mode & 0o777 == 0o600
    with apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY) as db:
        assert db.pragma("journal_mode") == "delete"


def test_a_backup_is_never_written_over_a_file_or_a_link(database: Path, tmp_path: Path) -> None:
    existing, link = tmp_path / "existing", tmp_path / "link"
    existing.write_text("precious")
    link.symlink_to(tmp_path / "nowhere")
    for target in (existing, link):
        with pytest.raises(PosthouseError) as refused:
            backup_store(database, target)
        assert refused.value.code == "backup_exists"
    assert existing.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_backup_that_fails_in_the_middle_leaves_nothing(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()

    def fail(_done: int, _pages: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        backup_store(database, folder / "copy.db", fail)
    assert list(folder.iterdir()) == []


def test_progress_ends_at_all_pages(database: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    backup_store(database, tmp_path / "copy.db", lambda done, pages: seen.append((done, pages)))
    assert seen
    assert seen[-1][0] == seen[-1][1] > 0
