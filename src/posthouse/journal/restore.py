"""Putting a backup in the place of a store.

The restored store continues the backup's journal under a new epoch, so that nobody mistakes its future for the
history that was lost. Refused while anybody has the store open. A marker file stands while the swap goes on: a
crash in the middle leaves a store that refuses to open until the restore is run again, never a mixture (a stale
WAL beside a new database would be replayed into it).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import apsw

from posthouse.journal.epochs import fork_epoch
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.sqlite.backup import backup_store, sync_directory, sync_file
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.presence import Presence
from posthouse.sqlite.schema import Component, migrate

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
    presence = Presence(target, exclusive=True)
    try:
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.restored")
        try:
            backup_store(backup, fresh)
            epoch = _begin_epoch(fresh, components, clock, adjust)
            _swap(fresh, target)
        finally:
            _remove_with_wal(fresh)
        return epoch
    finally:
        presence.close()


def refuse_half_restored(path: Path) -> None:
    """Refuse a store whose restore was interrupted."""
    if _marker(path).exists():
        raise error("store_half_restored", path=str(path))


def _begin_epoch(fresh: Path, components: tuple[Component, ...], clock: Clock, adjust: Adjust) -> str:
    db = open_writer(fresh, Durability.FULL)
    try:
        migrate(db, fresh, components)
        db.execute("BEGIN IMMEDIATE")
        epoch = fork_epoch(db, clock.wall_ns())
        adjust(db)
        db.execute("COMMIT")
        db.pragma("journal_mode", "delete")  # one file, nothing beside it that the swap could forget
    finally:
        db.close()
    sync_file(fresh)
    return epoch


def _swap(fresh: Path, target: Path) -> None:
    marker = _marker(target)
    marker.touch(mode=0o600)
    sync_directory(target.parent)
    _remove_with_wal(target)
    fresh.rename(target)
    sync_directory(target.parent)
    marker.unlink()
    sync_directory(target.parent)


def _remove_with_wal(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".restoring")
