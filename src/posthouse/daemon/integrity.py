"""Looking at the stores before they are opened: what is damaged must not be written to.

A damaged outbox may hold messages nobody else has: the daemon refuses to start and leaves every byte as it is. A
damaged inbox holds what its senders' relay confirmed: it is put aside, and a fresh one begins.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import structlog

from posthouse.daemon.outbox.component import SQL
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.sqlite.connection import leave_wal, open_reader

log = structlog.get_logger(__name__)
_COMPANIONS = ("", "-wal", "-shm")


def check_outbox(path: Path) -> None:
    """Raise outbox_corrupt for an outbox that cannot be relied on."""
    reason = damage_of(path, counters=True)
    if reason is not None:
        raise error("outbox_corrupt", path=str(path), reason=reason)


def quarantine_inbox(path: Path, clock: Clock) -> Path | None:
    """Put a damaged inbox aside; return where, or None when it is sound or absent."""
    reason = damage_of(path)
    if reason is None:
        return None
    aside = path.with_name(f"{path.name}.corrupt-{clock.wall_ns() // SECOND_NS}")
    for suffix in _COMPANIONS:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + suffix))
    log.error("inbox_quarantined", path=str(aside), reason=reason)
    return aside


def damage_of(path: Path, *, counters: bool = False) -> str | None:
    """Return what is wrong with a store, or None; an absent one is sound."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        db = open_reader(path)
    except PosthouseError as failure:
        if failure.code in ("store_locked", "store_path_unsafe"):
            raise
        return str(failure)
    leave_wal(db)
    try:
        found = [str(text) for (text,) in db.execute("PRAGMA quick_check(3)") if text != "ok"]
        if not found and counters and _has_outbox(db):
            found = _counter_damage(db)
        return "; ".join(found) or None
    except (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.SQLError) as fault:
        return str(fault)
    finally:
        db.close()


def _has_outbox(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'outbox_state'").get is not None


def _counter_damage(db: apsw.Connection) -> list[str]:
    counted, kept = db.execute(SQL.count_all).fetchone(), db.execute(SQL.read_state).fetchone()
    return [] if counted == kept else [f"its counters say {kept}, its rows {counted}"]
