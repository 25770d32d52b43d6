"""Restore: a new epoch, refused while anybody runs, from sound backups only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.journal.cursor import Cursor, resolve_cursor
from posthouse.journal.restore import restore_store
from posthouse.journal.store import JOURNAL
from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.sqlite.backup import backup_store
from tests.journal.facts import note, opened, opened_directly, refs

CLOCK = FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with five facts, a backup of the first three beside it."""
    path = tmp_path / "s.db"
    with opened(path) as store:
        for n in range(3):
            store.writer.run_blocking(note(str(n)))
        backup_store(path, tmp_path / "backup")
        for n in range(3, 5):
            store.writer.run_blocking(note(str(n)))
    return path


@pytest.fixture
def backup(path: Path) -> Path:
    return path.with_name("backup")


def restore(backup: Path, path: Path) -> str:
    return restore_store(backup, path, (JOURNAL,), CLOCK)


def test_restore_makes_a_new_epoch_and_old_cursors_are_reset(path: Path, backup: Path) -> None:
    with opened(path) as store:
        before = store.extent()
    epoch = restore(backup, path)
    with opened(path) as store:
        extent = store.extent()
        assert (extent.epoch, extent.fork_seq, extent.head) == (epoch, 3, 3)
        assert epoch != before.epoch
        with pytest.raises(PosthouseError) as reset:
            resolve_cursor(extent, str(before.cursor(5)))
        assert reset.value.code == "cursor_reset"
        assert reset.value.fields["cursor"] == str(Cursor(epoch, 3))
        assert store.writer.run_blocking(note("after")) == 4
        assert refs(store) == ["0", "1", "2", "after"]
    assert verify_store(path) == []


def test_restoring_twice_keeps_the_line_of_epochs(path: Path, backup: Path) -> None:
    with opened(path) as store:
        first = store.epoch
    second = restore(backup, path)
    with opened(path) as store:
        store.writer.run_blocking(note("in the second"))
    again = path.with_name("backup2")
    backup_store(path, again)
    third = restore(again, path)
    with opened(path) as store:
        assert store.epoch == third
        assert store.extent().ancestors == ((second, 4), (first, 3))
    assert verify_store(path) == []


def test_restore_refuses_while_a_store_is_open(path: Path, backup: Path) -> None:
    for opening in (opened, opened_directly):
        with opening(path) as store:
            with pytest.raises(PosthouseError) as refused:
                restore(backup, path)
            assert refused.value.code == "store_in_use"
            assert len(refs(store)) == 5
    restore(backup, path)


def test_a_store_refuses_to_open_while_it_is_restored(path: Path, backup: Path) -> None:
    codes: list[str] = []

    def adjust(_db: apsw.Connection) -> None:
        for use in (lambda: opened(path).__enter__(), lambda: backup_store(path, path.with_name("x"))):
            with pytest.raises(PosthouseError) as refused:
                use()
            codes.append(refused.value.code)

    restore_store(backup, path, (JOURNAL,), CLOCK, adjust)
    assert codes == ["store_in_use", "store_in_use"]


def test_what_must_only_grow_is_adjusted_in_the_transaction_of_the_epoch(path: Path, backup: Path) -> None:
    def fail(_db: apsw.Connection) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        restore_store(backup, path, (JOURNAL,), CLOCK, fail)
    with opened(path) as store:
        assert len(refs(store)) == 5
        assert store.extent().ancestors == ()


def _empty(backup: Path) -> None:
    backup.write_bytes(b"")


def _torn(backup: Path) -> None:
    data = bytearray(backup.read_bytes())
    data[4096 * 3 : 4096 * 4] = os.urandom(4096)
    backup.write_bytes(data)


def _foreign(backup: Path) -> None:
    backup.unlink()
    with apsw.Connection(str(backup)) as db:
        db.execute("CREATE TABLE theirs (n)")
    db.close()


def _gap(backup: Path) -> None:
    with apsw.Connection(str(backup)) as db:
        db.execute("DELETE FROM journal WHERE seq = 2")
    db.close()


@pytest.mark.parametrize("damage", [_empty, _torn, _foreign, _gap])
def test_a_damaged_backup_is_refused_and_the_store_stays(path: Path, backup: Path, damage: object) -> None:
    assert callable(damage)
    damage(backup)
    with pytest.raises(PosthouseError) as refused:
        restore(backup, path)
    assert refused.value.code in ("store_corrupt", "store_not_ours")
    with opened(path) as store:
        assert len(refs(store)) == 5
    assert not list(path.parent.glob(".*"))


def test_a_stale_wal_beside_the_old_store_is_not_replayed_into_the_new_one(path: Path, backup: Path) -> None:
    keeper = apsw.Connection(str(path))  # keeps the WAL from being checkpointed, as a crash would
    keeper.execute("SELECT count(*) FROM journal").fetchall()
    with opened(path) as store:
        store.writer.run_blocking(note("only in the wal"))
    wal = path.with_name("s.db-wal").read_bytes()
    keeper.close()
    path.with_name("s.db-wal").write_bytes(wal)
    restore(backup, path)
    with opened(path) as store:
        assert refs(store) == ["0", "1", "2"]
    assert verify_store(path) == []


def test_a_planted_link_is_not_restored_through(path: Path, backup: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(PosthouseError) as refused:
        restore(backup, link)
    assert refused.value.code == "store_path_unsafe"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_every_file_of_a_store_is_private_with_an_open_umask(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with opened(path) as store:
        store.writer.run_blocking(note("a"))
        backup_store(path, tmp_path / "backup")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        assert modes == dict.fromkeys(("s.db", "s.db-wal", "s.db-shm", "s.db.lock", "backup"), 0o600)
    restore(tmp_path / "backup", path)
    with opened(path):
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
