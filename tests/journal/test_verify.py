"""verify finds each planted damage, and nothing in a sound store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.journal.prune import count_bytes, prune_prefix
from posthouse.journal.verify import verify_store
from posthouse.model.clock import FakeClock
from posthouse.sqlite.store_lock import set_marker
from tests.journal.facts import note, opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was pruned through 5, written to again, counted, and written to once more."""
    clock = FakeClock()
    with opened(tmp_path / "s.db", clock) as store:
        for n in range(10):
            store.writer.run_blocking(note(str(n), padding=300))
            clock.advance(1)
        store.writer.run_blocking(lambda tx: prune_prefix(tx, 5, {}))
        for n in range(59):
            store.writer.run_blocking(note(str(n), padding=300))
        store.writer.run_blocking(count_bytes)
        store.writer.run_blocking(note("last", padding=300))
    return tmp_path / "s.db"


def damage(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    db.pragma("writable_schema", True)
    db.execute(sql)
    db.close()


def test_a_sound_store_has_no_findings(path: Path) -> None:
    assert verify_store(path) == []


@pytest.mark.parametrize(
    ("sql", "finding"),
    [
        ("DELETE FROM journal WHERE seq = 9", "gap before seq 10"),
        ("DELETE FROM journal WHERE seq = 71", "the newest record is 70, but the head is 71"),
        ("DELETE FROM journal WHERE seq = 6", "the oldest record is 7"),
        ("UPDATE sqlite_sequence SET seq = 90 WHERE name = 'journal'", "the head is 90"),
        ("UPDATE journal SET at_ns = 1 WHERE seq = 9", "time goes back at seq 9"),
        ("UPDATE journal SET type = 'x' WHERE seq = 9", "unknown type 'x'"),
        ("UPDATE journal SET body = '{' WHERE seq = 9", "body of seq 9 is not JSON"),
        ("UPDATE journal SET body = '{}' WHERE seq = 9", "bytes of bodies"),
        ("UPDATE journal SET type = 'config.changed' WHERE seq = 11", "the snapshot 11"),
        ("UPDATE journal_state SET snapshot_seq = NULL", "without a snapshot"),
        ("UPDATE journal_state SET pruned_through = 4", "should exist"),
        ("DELETE FROM journal_state", "state is missing"),
        ("DELETE FROM epochs", "has none"),
        ("UPDATE epochs SET parent_epoch = 'gone'", "unknown epoch gone"),
        ("UPDATE epochs SET fork_seq = 1000", "above the head"),
        ("INSERT INTO epochs VALUES (9, 'x', NULL, -1, 1)", "before an earlier fork"),
        ("DROP TABLE epochs", "table epochs is missing"),
        ("PRAGMA application_id = 7", "application id is not that of a posthouse store"),
    ],
)
def test_each_planted_damage_is_found(path: Path, sql: str, finding: str) -> None:
    damage(path, sql)
    findings = verify_store(path)
    assert any(finding in found for found in findings), findings


def _tear_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    half = len(data) // 2 // 4096 * 4096
    data[half : half + 4096] = os.urandom(4096)
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


def _overwrite_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:100] = os.urandom(100)
    path.write_bytes(data)


@pytest.mark.parametrize("tear", [_tear_page, _cut, _overwrite_header, set_marker])
def test_torn_files_are_found(path: Path, tear: Callable[[Path], None]) -> None:
    tear(path)
    assert verify_store(path) != []


def test_a_store_adds_its_own_rules(path: Path) -> None:
    assert verify_store(path, (lambda db: iter([f"{db.execute('SELECT 7').get} is odd"]),)) == ["7 is odd"]


def test_a_store_is_verified_in_one_snapshot_while_it_is_written(path: Path) -> None:
    with opened(path) as store:
        head = store.extent().head

        def writing(_db: apsw.Connection) -> Iterator[str]:
            store.writer.run_blocking(note("meanwhile"))
            return iter(())

        def counting(db: apsw.Connection) -> Iterator[str]:
            yield str(db.execute("SELECT max(seq) FROM journal").get)

        assert verify_store(path, (writing, counting)) == [str(head)]
        assert verify_store(path, (counting,)) == [str(head + 1)]
