"""Opening and closing stores, and what a failing disk does to them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from posthouse.journal.prune import count_bytes
from posthouse.journal.store import JOURNAL, Store
from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.store_lock import StoreLock, set_marker
from tests.faults.failing_vfs import FailingVFS
from tests.journal.facts import note, opened, opened_directly, refs


def test_a_closed_store_is_one_file_and_its_lock(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store:
        store.writer.run_blocking(note("a"))
        assert refs(store) == ["a"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.db", "s.db.lock"]


def test_store_of_an_older_version_keeps_the_size_of_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    with monkeypatch.context() as patch:
        patch.setitem(JOURNAL.__dict__, "migrations", JOURNAL.migrations[:1])
        with opened(path) as store:
            for number in range(1, 5):
                store.writer.run_blocking(note(str(number)))
            store.writer.run_blocking(
                lambda tx: tx.db.execute(
                    "UPDATE journal_state SET body_bytes = (SELECT sum(octet_length(body)) FROM journal)"
                ).fetchall()
            )
    with opened(path) as store:
        assert store.writer.run_blocking(note("new")) == 5
        assert refs(store) == ["1", "2", "3", "4", "new"]
        store.writer.run_blocking(count_bytes)
    assert verify_store(path) == []


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    for opening in (opened, opened_directly):
        with opening(tmp_path / "s.db") as store:
            store.close()
            store.close()


def test_a_store_that_cannot_be_opened_leaves_no_threads_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with opened(path) as store:
        store.writer.run_blocking(note("a"))
    db = open_writer(path, Durability.FULL)
    db.execute("DROP TABLE journal_state")
    db.close()
    threads = set(threading.enumerate())
    with pytest.raises(apsw.SQLError):
        Store(path, (), FakeClock())
    assert set(threading.enumerate()) == threads
    StoreLock(path, exclusive=True).close()


def test_a_half_restored_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with opened(path):
        pass
    set_marker(path)
    with pytest.raises(PosthouseError) as refused:
        Store(path, (), FakeClock())
    assert refused.value.code == "store_half_restored"


def test_a_linked_store_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db"):
        pass
    (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
    with pytest.raises(PosthouseError) as refused:
        Store(tmp_path / "link.db", (), FakeClock())
    assert refused.value.code == "store_path_unsafe"
    assert not (tmp_path / "link.db.lock").exists()


async def test_a_full_disk_aborts_the_batch_is_told_and_passes(tmp_path: Path) -> None:
    vfs = FailingVFS()
    with opened(tmp_path / "s.db", vfs=vfs.name) as store:
        await store.writer.run(note("before"))
        vfs.write_failure, vfs.room = "full", 20_000
        answers = await asyncio.gather(
            *(store.writer.run(note(str(n), padding=3_000)) for n in range(20)), return_exceptions=True
        )
        assert {getattr(answer, "code", answer) for answer in answers} == {"store_full"}
        assert store.writer.state == "full"
        assert refs(store) == ["before"]
        assert (await store.pool.run(lambda db: db.execute("SELECT 1").get)) == 1
        vfs.write_failure = None
        assert await store.writer.run(note("after")) == 2
        assert store.writer.state == "open"
        assert refs(store) == ["before", "after"]
    assert verify_store(tmp_path / "s.db") == []


async def test_a_locked_commit_is_told_and_passes(tmp_path: Path) -> None:
    vfs = FailingVFS()
    with opened(tmp_path / "s.db", vfs=vfs.name) as store:
        vfs.write_failure = "busy"
        with pytest.raises(PosthouseError) as refused:
            await store.writer.run(note("no"))
        assert refused.value.code == "store_locked"
        assert store.writer.state == "locked"
        vfs.write_failure = None
        assert await store.writer.run(note("yes")) == 1
        assert store.writer.state == "open"


async def test_a_failed_sync_answers_nobody_with_success_and_ends_all_writing(tmp_path: Path) -> None:
    vfs, fatals = FailingVFS(), list[Fatal]()
    with opened(tmp_path / "s.db", vfs=vfs.name, on_fatal=fatals.append) as store:
        vfs.sync_failure = "sync"
        answers = await asyncio.gather(*(store.writer.run(note(str(n))) for n in range(5)), return_exceptions=True)
        assert all(isinstance(answer, Fatal) for answer in answers)
        vfs.sync_failure = None
        with pytest.raises(Fatal):
            await store.writer.run(note("later"))
        assert store.writer.state == "failed"
        assert [failure.code for failure in fatals] == ["store_failed"]


def test_a_checkpoint_that_finds_the_disk_failed_ends_all_writing(tmp_path: Path) -> None:
    vfs, told = FailingVFS(), threading.Event()
    for opening in (opened, opened_directly):
        told.clear()
        with opening(tmp_path / "s.db", vfs=vfs.name, on_fatal=lambda _failure: told.set()) as store:
            vfs.sync_failure, vfs.sync_suffix = "sync", ".db"
            for n in range(1_500):
                if told.is_set():
                    break
                try:
                    _write(store, note(str(n), padding=4_000))
                except Fatal:
                    break
            assert told.wait(20)
            with pytest.raises(Fatal):
                _write(store, note("later"))
            vfs.sync_failure = None


def _write(store: object, work: object) -> None:
    run = getattr(store.writer, "run_blocking", None) or store.writer.run  # type: ignore[attr-defined]
    run(work)


async def test_a_backup_of_a_store_under_load_is_consistent(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with opened(path) as store:
        is_writing = True

        async def write() -> None:
            n = 0
            while is_writing:
                await store.writer.run(note(str(n), padding=500))
                n += 1

        writers = [asyncio.create_task(write()) for _ in range(8)]
        for number in range(3):
            await store.writer.run(note(f"before backup {number}"))
            head = store.extent().head
            backup = tmp_path / f"backup{number}"
            await asyncio.to_thread(backup_store, path, backup)
            assert verify_store(backup) == []
            with opened(backup) as copy:
                assert copy.extent().head >= head
                assert f"before backup {number}" in refs(copy)
        is_writing = False
        await asyncio.gather(*writers)
    assert verify_store(path) == []


async def test_statistics_tell_the_state(tmp_path: Path) -> None:
    with opened(tmp_path / "s.db") as store, opened_directly(tmp_path / "d.db") as direct:
        await store.writer.run(note("a"))
        seen = store.statistics()
        assert (seen["state"], seen["committed_items"], seen["batches"], seen["waiting_items"]) == ("open", 1, 1, 0)
        assert seen["wal_bytes"] > 0
        assert direct.statistics()["state"] == "open"
