"""Migrations: forward only, backed up before, all or nothing; foreign and newer files refused untouched."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import apsw
import pytest

from posthouse.model.errors import PosthouseError
from posthouse.sqlite.connection import Durability, open_reader, open_writer
from posthouse.sqlite.schema import APPLICATION_ID, check_known_schema, migrate
from posthouse.storage.sql_files import Component

FIRST = "CREATE TABLE things (name TEXT) STRICT;"
SECOND = "ALTER TABLE things ADD COLUMN size INTEGER; INSERT INTO things VALUES ('second', 2);"
BROKEN = "INSERT INTO things VALUES ('half', 1); INSERT INTO nonsense VALUES (1);"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one migration; tests add more."""
    folder = tmp_path / "code" / f"schema_of_{tmp_path.name.replace('-', '_')}"
    (folder / "migrations").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    write_migration(folder, 1, FIRST)
    yield_name = folder.name
    sys.modules.pop(yield_name, None)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def write_migration(package: Path, number: int, sql: str) -> None:
    (package / "migrations" / f"{number:04}_step.sql").write_text(sql)


def component(package: Path, name: str = "things") -> Component:
    return Component(name, package.name)


def bring_up(path: Path, *components: Component) -> None:
    check_known_schema(path, components)
    db = open_writer(path, Durability.FULL)
    try:
        migrate(db, path, components)
    finally:
        db.close()


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    db = open_reader(path)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def backups(path: Path) -> list[Path]:
    return sorted(path.parent.glob("s.db.before-migration*"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_new_store_gets_all_migrations_and_no_backup(path: Path, package: Path) -> None:
    write_migration(package, 2, SECOND)
    bring_up(path, component(package))
    assert rows(path, "SELECT * FROM schema_versions") == [("things", 2)]
    assert rows(path, "SELECT * FROM things") == [("second", 2)]
    assert backups(path) == []


def test_a_new_store_is_complete_or_empty(path: Path, package: Path) -> None:
    write_migration(package, 2, BROKEN)
    with pytest.raises(PosthouseError) as failed:
        bring_up(path, component(package))
    assert failed.value.code == "store_migration_failed"
    assert rows(path, "SELECT * FROM sqlite_schema") == []
    write_migration(package, 2, SECOND)
    bring_up(path, component(package))
    assert rows(path, "SELECT * FROM things") == [("second", 2)]


def test_a_migration_takes_a_backup_of_the_old_version_first(path: Path, package: Path) -> None:
    bring_up(path, component(package))
    write_migration(package, 2, SECOND)
    bring_up(path, component(package))
    (backup,) = backups(path)
    assert rows(backup, "SELECT * FROM schema_versions") == [("things", 1)]
    assert rows(backup, "SELECT count(*) FROM things") == [(0,)]
    assert backup.stat().st_mode & 0o777 == 0o600
    assert rows(path, "SELECT * FROM things") == [("second", 2)]


def test_a_failing_migration_leaves_the_old_version_whole_however_often_it_is_tried(path: Path, package: Path) -> None:
    bring_up(path, component(package))
    write_migration(package, 2, BROKEN)
    for _ in range(3):
        with pytest.raises(PosthouseError) as failed:
            bring_up(path, component(package))
        assert failed.value.code == "store_migration_failed"
    assert rows(path, "SELECT * FROM schema_versions") == [("things", 1)]
    assert rows(path, "SELECT * FROM things") == []
    assert backups(path) == []  # a restart loop must not fill the disk
    write_migration(package, 2, SECOND)
    bring_up(path, component(package))
    assert rows(path, "SELECT * FROM schema_versions") == [("things", 2)]


def test_when_a_later_migration_fails_the_backup_stays(path: Path, package: Path) -> None:
    bring_up(path, component(package))
    write_migration(package, 2, SECOND)
    write_migration(package, 3, BROKEN)
    with pytest.raises(PosthouseError):
        bring_up(path, component(package))
    assert rows(path, "SELECT * FROM schema_versions") == [("things", 2)]
    (backup,) = backups(path)
    assert rows(backup, "SELECT * FROM schema_versions") == [("things", 1)]


def test_a_backup_of_an_earlier_time_is_kept_beside_the_new_one(path: Path, package: Path) -> None:
    bring_up(path, component(package))
    (path.with_name("s.db.before-migration-of-things1")).write_text("an earlier backup")
    write_migration(package, 2, SECOND)
    bring_up(path, component(package))
    assert [backup.name for backup in backups(path)] == [
        "s.db.before-migration-of-things1",
        "s.db.before-migration-of-things1.2",
    ]


def test_a_newer_schema_is_refused_untouched(path: Path, package: Path) -> None:
    write_migration(package, 2, SECOND)
    bring_up(path, component(package))
    before = digest(path)
    (package / "migrations" / "0002_step.sql").unlink()
    with pytest.raises(PosthouseError, match=r"has version 2 of the schema \w+; this posthouse supports 1"):
        bring_up(path, component(package))
    assert digest(path) == before


@pytest.mark.parametrize("application", [0, 1234])
def test_a_foreign_database_is_refused_untouched(path: Path, package: Path, application: int) -> None:
    foreign = apsw.Connection(str(path))
    foreign.execute("CREATE TABLE theirs (n)")
    foreign.pragma("application_id", application)
    foreign.close()
    before = digest(path)
    with pytest.raises(PosthouseError) as refused:
        bring_up(path, component(package))
    assert refused.value.code == "store_not_ours"
    assert digest(path) == before
    assert [found.name for found in path.parent.glob("s.db*")] == ["s.db"]


def test_a_store_of_another_kind_is_refused(path: Path, package: Path) -> None:
    bring_up(path, component(package))
    with pytest.raises(PosthouseError, match="it holds things"):
        bring_up(path, component(package, "others"))


def test_an_empty_file_becomes_ours(path: Path, package: Path) -> None:
    path.touch()
    bring_up(path, component(package))
    assert rows(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


def test_migrations_out_of_order_are_a_defect(package: Path) -> None:
    write_migration(package, 3, SECOND)
    with pytest.raises(ValueError, match="out of order"):
        _ = component(package).migrations
