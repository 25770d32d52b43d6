"""A relay's store from outside the relay: check, verify, back up, restore, rebuild.

Check, verify and backup work on a running store and change nothing; restore refuses while anybody has the store open.
Reindex goes through a writer of its own, in one transaction.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from posthouse.journal.restore import restore_store
from posthouse.journal.store import JOURNAL, Store
from posthouse.journal.verify import verify_store
from posthouse.model.clock import Clock
from posthouse.relay.store.sqlite import COMPONENTS
from posthouse.relay.store.sqlite.check import RULES
from posthouse.relay.store.sqlite.mesh_rows import MESHES
from posthouse.relay.store.sqlite.reindex import reindex
from posthouse.sqlite.backup import backup_store


def check_relay(path: Path) -> list[str]:
    """Return what is wrong with the store of a relay: its integrity, its journal, its events and meshes."""
    return verify_store(path, RULES)


def backup_relay(path: Path, target: Path) -> None:
    """Copy the store of a relay, running or not, to a new file."""
    backup_store(path, target)


def restore_relay(backup: Path, path: Path, clock: Clock) -> str:
    """Put a backup in the place of a relay's store and return the new epoch."""
    return restore_store(backup, path, (JOURNAL, *COMPONENTS), clock, adjust_restored)


def reindex_relay(path: Path, clock: Clock) -> None:
    """Rebuild what is derived from the events of a relay's store."""
    store = Store(path, COMPONENTS, clock)
    try:
        store.writer.run_blocking(lambda tx: reindex(tx.db))
    finally:
        store.close()


def adjust_restored(db: apsw.Connection) -> None:
    """Void the invites of a backup: one that was used after it was taken must not work a second time."""
    db.execute(MESHES.void_invites)
