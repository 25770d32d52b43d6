"""Stores as an older posthouse left them: made with its first migrations only."""

from __future__ import annotations

from pathlib import Path

from posthouse.journal.store import Store
from posthouse.model.clock import FakeClock
from posthouse.storage.sql_files import Component


def make_old_store(path: Path, component: Component, version: int, script: str) -> None:
    """Make a store whose schema has a version, and run a script of SQL in it."""
    old = Component(component.name, component.package)
    old.__dict__["migrations"] = component.migrations[:version]
    store = Store(path, (old,), FakeClock())
    try:
        store.writer.run_blocking(lambda tx: tx.db.execute(script).fetchall())
    finally:
        store.close()
