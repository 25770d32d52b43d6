"""Schemas on SQLite as numbered SQL files, applied forward only.

A store consists of components (the journal, then those of the store), each with its own numbered migrations. A new
store gets all of them in one transaction, so it is complete or empty. A store that holds data is backed up, then each
file runs in one transaction together with the update of the version. A store of a newer posthouse, or of another
program, is refused unchanged: its schema is read through a read-only connection before the file is opened for writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from posthouse.model.errors import PosthouseError, error
from posthouse.sqlite.backup import copy_database
from posthouse.sqlite.connection import open_reader, skip_checkpoint_on_close, translate
from posthouse.storage.sql_files import Component

APPLICATION_ID = 0x706F7374  # "post": distinguishes posthouse stores from other SQLite databases

_CREATE_VERSIONS = (
    "CREATE TABLE IF NOT EXISTS schema_versions (component TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"
)


def check_known_schema(path: Path, components: tuple[Component, ...], *, vfs: str | None = None) -> None:
    """Refuse an existing file of another program or a newer schema, without changing a byte of it."""
    if not path.exists():
        return
    db = open_reader(path, vfs=vfs)
    skip_checkpoint_on_close(db)
    try:
        _refuse_newer(path, components, _versions(db, path, components))
    finally:
        db.close()


def migrate(db: apsw.Connection, path: Path, components: tuple[Component, ...], *, keep_backup: bool = True) -> None:
    """Apply the missing migrations to `db`, or refuse it."""
    versions = _versions(db, path, components)
    _refuse_newer(path, components, versions)
    if all(versions.get(c.name, 0) == len(c.migrations) for c in components):
        return
    missing = [
        (component, number)
        for component in components
        for number in range(versions.get(component.name, 0) + 1, len(component.migrations) + 1)
    ]
    transactions = [[step] for step in missing] if versions else [missing]
    backup = _back_up(db, path, versions) if keep_backup and any(versions.values()) else None
    applied = 0
    try:
        for steps in transactions:
            _apply(db, path, steps)
            applied += 1
    except BaseException:
        if backup and not applied:  # the store is unchanged: the next try makes its own backup
            backup.unlink(missing_ok=True)
        raise
    _refuse_newer(path, components, _versions(db, path, components))


def _application(db: apsw.Connection, path: Path) -> object:
    try:
        return db.pragma("application_id")
    except apsw.CantOpenError as exc:  # the WAL needs two more descriptors than opening the file
        raise translate(exc, str(path)) from exc


def _versions(db: apsw.Connection, path: Path, components: tuple[Component, ...]) -> dict[str, int]:
    """Return the version of each component, none for an empty file; refuse a database of another program."""
    expected = components[-1].name
    db.execute("BEGIN")  # one snapshot: another process may be creating the schema
    try:
        application = _application(db, path)
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if application not in (0, APPLICATION_ID) or (tables and application == 0):
            raise error(
                "store_not_ours", path=str(path), expected=expected, reason="it is a database of another program"
            )
        if not tables:
            return {}
        if "schema_versions" not in tables:
            raise error("store_not_ours", path=str(path), expected=expected, reason="it has no schema versions")
        versions = {name: int(version) for name, version in db.execute("SELECT * FROM schema_versions")}
    finally:
        db.execute("ROLLBACK")
    if foreign := versions.keys() - {component.name for component in components}:
        reason = f"it holds {', '.join(sorted(foreign))}"
        raise error("store_not_ours", path=str(path), expected=expected, reason=reason)
    return versions


def _refuse_newer(path: Path, components: tuple[Component, ...], versions: dict[str, int]) -> None:
    for component in components:
        found, known = versions.get(component.name, 0), len(component.migrations)
        if found > known:
            raise error("store_schema_newer", path=str(path), component=component.name, found=found, known=known)


def _apply(db: apsw.Connection, path: Path, steps: Sequence[tuple[Component, int]]) -> None:
    """Run migrations in one transaction, except those that another process ran; it also sets the application id."""
    component, number = steps[0]
    try:
        db.execute("BEGIN IMMEDIATE")
        db.pragma("application_id", APPLICATION_ID)
        db.execute(_CREATE_VERSIONS)
        for component, number in steps:
            row = db.execute("SELECT version FROM schema_versions WHERE component = ?", (component.name,)).get
            if (row or 0) < number:
                db.execute(component.migrations[number - 1])
                db.execute("INSERT OR REPLACE INTO schema_versions VALUES (?, ?)", (component.name, number))
        db.execute("COMMIT")
    except BaseException as exc:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if isinstance(exc, apsw.Error):
            raise _failed(exc, path, component, number) from exc
        raise


def _failed(exc: apsw.Error, path: Path, component: Component, number: int) -> PosthouseError:
    failure = translate(exc, str(path))
    if failure.code != "internal":
        return failure
    return error("store_migration_failed", path=str(path), component=component.name, number=number, reason=str(exc))


def _back_up(db: apsw.Connection, path: Path, versions: dict[str, int]) -> Path:
    """Copy the store to an unused name beside it, even while another process migrates."""
    label = "-".join(f"{name}{version}" for name, version in sorted(versions.items()))
    number = 1
    while True:
        suffix = "" if number == 1 else f".{number}"
        backup = path.with_name(f"{path.name}.before-migration-of-{label}{suffix}")
        try:
            copy_database(db, backup)
            return backup
        except PosthouseError as failure:
            if failure.code != "backup_exists":
                raise
            number += 1
