"""Replace a store with a backup, continue from a file that a person put in its place, rewrite a store, or shrink it.

The restored store continues the backup's journal under a new epoch, so that its new records cannot be mistaken for
the lost ones. A restore is refused while any process has the store open. The backup is first copied, verified and
migrated beside the store. A marker file exists during the swap: a crash in the middle leaves a store that refuses to
open until the restore runs again, never a mixture (SQLite would replay a stale WAL into the new database).
"""

from __future__ import annotations

import glob
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from posthouse.files import fsync_dir, sync_file
from posthouse.journal.append import SQL
from posthouse.journal.read import fork_epoch
from posthouse.journal.verify import verify_database
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, create_private, open_reader, open_writer, safe_path, translate
from posthouse.sqlite.schema import migrate
from posthouse.sqlite.store_lock import StoreLock, clear_marker, refuse_half_restored, set_marker
from posthouse.storage.sql_files import Component

Adjust = Callable[[apsw.Connection], None]


def _no_adjustment(_db: apsw.Connection) -> None:
    pass


@contextmanager
def replacement(target: Path) -> Iterator[Path]:
    """Yield the name of a new file, which replaces the store at `target` when the block ends without an error.

    The caller holds the store's lock exclusively, and leaves a single file without a write-ahead log.
    """
    _remove_leftovers(target)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.restored")
    try:
        yield fresh
        sync_file(fresh)
        _swap(fresh, target)
    finally:
        _remove_with_wal(fresh)


def restore_store(
    backup: Path,
    target: Path,
    components: tuple[Component, ...],
    clock: Clock,
    adjust: Adjust = _no_adjustment,
) -> str:
    """Replace the store at `target` with `backup` and return the new epoch.

    `adjust` runs in the transaction that starts the epoch; use it to raise values that must never decrease.
    """
    target = safe_path(target)
    store_lock = StoreLock(target, exclusive=True)
    try:
        with replacement(target) as fresh:
            backup_store(backup, fresh)
            return _start_epoch(fresh, backup, components, clock, adjust)
    finally:
        store_lock.close()


def rebuild_store(
    target: Path,
    components: tuple[Component, ...],
    derived: Collection[str],
    fill: Adjust,
) -> None:
    """Rewrite the store at `target` table by table, with new indexes; `fill` writes the derived tables.

    It reads neither indexes nor derived tables of the old file, so damage in them disappears. Damage in another table
    raises store_damaged and changes nothing.
    """
    target = safe_path(target)
    store_lock = StoreLock(target, exclusive=True)
    try:
        refuse_half_restored(target)
        migrate_file(target, components)
        with replacement(target) as fresh:
            _copy_tables(target, fresh, components, derived, fill)
    finally:
        store_lock.close()


def compact_store(target: Path) -> None:
    """Rewrite the store at `target` without its free pages; from then on it can give pages back while it is in use.

    Needs as much free space as the store has content. A store that is damaged stays as it is.
    """
    target = safe_path(target)
    store_lock = StoreLock(target, exclusive=True)
    try:
        refuse_half_restored(target)
        with replacement(target) as fresh:
            _vacuum_into(target, fresh)
    finally:
        store_lock.close()


def _vacuum_into(source: Path, fresh: Path) -> None:
    create_private(fresh)
    db = open_writer(source, Durability.FULL)
    try:
        db.pragma("auto_vacuum", "incremental")
        db.execute("VACUUM INTO ?", (str(fresh),))
    except apsw.Error as exc:
        raise translate(exc, str(source)) from exc
    finally:
        db.close()
    copy = open_reader(fresh)
    try:
        _refuse_damaged(copy, source)
    finally:
        copy.close()


def migrate_file(path: Path, components: tuple[Component, ...]) -> None:
    """Bring a store that is not open to the newest schema."""
    db = open_writer(path, Durability.FULL)
    try:
        migrate(db, path, components)
    finally:
        db.close()


def _copy_tables(
    source: Path, fresh: Path, components: tuple[Component, ...], derived: Collection[str], fill: Adjust
) -> None:
    db = open_writer(fresh, Durability.NORMAL)
    try:
        migrate(db, fresh, components, keep_backup=False)
        db.pragma("foreign_keys", False)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        db.execute("ATTACH ? AS source", (str(source),))
        db.execute("BEGIN IMMEDIATE")
        for (name,) in db.execute(SQL.all_tables).fetchall():
            if name not in derived:
                db.execute(f'DELETE FROM main."{name}"')
                # with a WHERE clause SQLite inserts row by row; without one it would copy the pages of the old indexes
                db.execute(f'INSERT INTO main."{name}" SELECT * FROM source."{name}" NOT INDEXED WHERE true')
        fill(db)
        db.execute("COMMIT")
        db.execute("DETACH source")
        _refuse_damaged(db, source)
        db.pragma("journal_mode", "delete")  # one file: the swap has no WAL to move
    except apsw.Error as exc:
        raise translate(exc, str(source)) from exc
    finally:
        db.close()


def restore_in_place(
    target: Path, components: tuple[Component, ...], clock: Clock, adjust: Adjust = _no_adjustment
) -> str:
    """Start a new epoch in the store at `target`, whose file was replaced by hand; return the epoch."""
    target = safe_path(target)
    store_lock = StoreLock(target, exclusive=True)
    try:
        refuse_half_restored(target)
        return _start_epoch(target, target, components, clock, adjust)
    finally:
        store_lock.close()


def _start_epoch(fresh: Path, backup: Path, components: tuple[Component, ...], clock: Clock, adjust: Adjust) -> str:
    db = open_writer(fresh, Durability.FULL)
    try:
        _refuse_damaged(db, backup)
        migrate(db, backup, components, keep_backup=fresh == backup)
        db.execute("BEGIN IMMEDIATE")
        epoch = fork_epoch(db, clock.wall_ns())
        adjust(db)
        db.execute("COMMIT")
        db.pragma("journal_mode", "delete")  # one file: the swap has no WAL to move
    finally:
        db.close()
    return epoch


def _refuse_damaged(db: apsw.Connection, backup: Path) -> None:
    """Refuse a backup that is damaged or not a store: the store that it would replace may be better."""
    findings = list(verify_database(db))
    if findings:
        raise error("store_corrupt", path=str(backup), reason="; ".join(findings[:3]))


def _swap(fresh: Path, target: Path) -> None:
    set_marker(target)
    _remove_wal(target)
    fresh.rename(target)
    fsync_dir(target.parent)
    clear_marker(target)


def _remove_leftovers(target: Path) -> None:
    """Remove the copies of killed restores; the exclusive lock proves that no restore is running."""
    name = glob.escape(target.name)
    for pattern in (f".{name}.*.restored*", f"..{name}.*.restored.*.tmp"):  # complete and partial copies
        for leftover in target.parent.glob(pattern):
            leftover.unlink(missing_ok=True)


def _remove_with_wal(path: Path) -> None:
    _remove_wal(path)
    path.unlink(missing_ok=True)


def _remove_wal(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
