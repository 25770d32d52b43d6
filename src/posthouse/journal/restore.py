"""Putting a backup in the place of a store.

The restored store continues the backup's journal under a new epoch, so that nobody mistakes its future for the
history that was lost. Refused while anybody has the store open. The backup is copied, checked and brought up to
date beside the store first. A marker file stands while the swap goes on: a crash in the middle leaves a store that
refuses to open until the restore is run again, never a mixture (a stale WAL beside a new database would be
replayed into it).
"""

from __future__ import annotations

import glob
import secrets
from collections.abc import Callable
from pathlib import Path

import apsw

from posthouse.files import fsync_dir, sync_file
from posthouse.journal.read import fork_epoch
from posthouse.journal.verify import verify_database
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import Durability, open_writer, safe_path
from posthouse.sqlite.schema import Component, migrate
from posthouse.sqlite.store_lock import StoreLock, clear_marker, set_marker

Adjust = Callable[[apsw.Connection], None]


def _no_adjustment(_db: apsw.Connection) -> None:
    pass


def restore_store(
    backup: Path,
    target: Path,
    components: tuple[Component, ...],
    clock: Clock,
    adjust: Adjust = _no_adjustment,
) -> str:
    """Replace the store at `target` by `backup` and return the new epoch.

    `adjust` runs in the transaction that begins the epoch: the place to raise what must only grow.
    """
    target = safe_path(target)
    presence = StoreLock(target, exclusive=True)
    try:
        _remove_leftovers(target)
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.restored")
        try:
            backup_store(backup, fresh)
            epoch = _begin_epoch(fresh, backup, components, clock, adjust)
            sync_file(fresh)
            _swap(fresh, target)
        finally:
            _remove_with_wal(fresh)
        return epoch
    finally:
        presence.close()


def _begin_epoch(fresh: Path, backup: Path, components: tuple[Component, ...], clock: Clock, adjust: Adjust) -> str:
    db = open_writer(fresh, Durability.FULL)
    try:
        _refuse_damaged(db, backup)
        migrate(db, backup, components, keep_backup=False)
        db.execute("BEGIN IMMEDIATE")
        epoch = fork_epoch(db, clock.wall_ns())
        adjust(db)
        db.execute("COMMIT")
        db.pragma("journal_mode", "delete")  # one file, nothing beside it that the swap could forget
    finally:
        db.close()
    return epoch


def _refuse_damaged(db: apsw.Connection, backup: Path) -> None:
    """Refuse a backup that is damaged or no store at all: the store it would replace may be the better one."""
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
    """Remove the copies of restores that were killed; the exclusive lock says that none runs."""
    name = glob.escape(target.name)
    for pattern in (f".{name}.*.restored*", f"..{name}.*.restored.*.tmp"):  # copies, and copies half made
        for leftover in target.parent.glob(pattern):
            leftover.unlink(missing_ok=True)


def _remove_with_wal(path: Path) -> None:
    _remove_wal(path)
    path.unlink(missing_ok=True)


def _remove_wal(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
