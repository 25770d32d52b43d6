"""Damaged stores: detect them before they are opened, quarantine an inbox, recover the readable rows of an outbox.

A damaged outbox may hold messages that exist nowhere else: the daemon refuses to start and changes no byte of it.
`recover_outbox` (run by an operator while the daemon is stopped) moves the file aside and starts a new outbox with
every row that can be read, from both ends up to the damage. A damaged inbox is moved aside and a new one starts,
because the senders' relay has its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import structlog

from posthouse.daemon.directory import MeshDirectory
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.transitions import SQL
from posthouse.journal.append import JournalTransaction
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.limits import SECOND_NS
from posthouse.sqlite.connection import open_reader, skip_checkpoint_on_close, translate

log = structlog.get_logger(__name__)
_COMPANIONS = ("", "-wal", "-shm")
_DAMAGE_CODES = frozenset({"store_damaged", "store_failed", "store_not_ours", "internal"})
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.SQLError)
#: column name -> value
_Row = dict[str, Any]
#: columns that an outbox of an older version does not have
_LATER_COLUMNS: _Row = {"from_agent": DEFAULT_INBOX, "to_agent": DEFAULT_INBOX, "own_post": "none", "left_pending": 1}
_NULLED = ("confirmed_at_ns", "read_at_ns", "rejected_at_ns", "reject_reason", "reply_to_id", "not_queued")
_LATER_COLUMNS |= dict.fromkeys(_NULLED)


def check_outbox(path: Path) -> None:
    """Raise outbox_corrupt if an outbox is damaged."""
    reason = damage_of(path, counters=True)
    if reason is not None:
        raise error("outbox_corrupt", path=str(path), reason=reason)


def quarantine_inbox(path: Path, clock: Clock) -> Path | None:
    """Move a damaged inbox aside; return its new path, or None if it is sound or absent."""
    reason = damage_of(path)
    if reason is None:
        return None
    aside = _move_aside(path, clock)
    log.error("inbox_quarantined", path=str(aside), reason=reason)
    return aside


def damage_of(path: Path, *, counters: bool = False) -> str | None:
    """Return the damage of a store, or None if it is sound or absent; `counters` compares the outbox counters."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        db = open_reader(path)
    except PosthouseError as failure:
        if failure.code not in _DAMAGE_CODES:  # a full disk or a lock does not mean that the file is damaged
            raise
        return str(failure)
    skip_checkpoint_on_close(db)
    try:
        found = [str(text) for (text,) in db.execute("PRAGMA quick_check(3)") if text != "ok"]
        if not found and counters and _has_outbox(db):
            found = _counter_damage(db)
        return "; ".join(found) or None
    except _DAMAGE as fault:
        translated = translate(fault, str(path))
        if isinstance(translated, Transient):  # such as a full disk, where even a reader cannot map the WAL's index
            raise translated from fault
        return str(fault)
    finally:
        db.close()


def _has_outbox(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'outbox_state'").get is not None


def _counter_damage(db: apsw.Connection) -> list[str]:
    is_current = db.execute("SELECT 1 FROM pragma_table_info('outbox_state') WHERE name = 'counted_through'").get
    kept = db.execute(SQL.read_state if is_current else SQL.read_older_state).fetchone()
    counted = db.execute(SQL.count_all).fetchone()
    return [] if counted == kept else [f"its counters say {kept}, its rows {counted}"]


class Recovered(NamedTuple):
    """The result of a recovery."""

    rows: int
    #: how many of the rows will be sent
    pending: int
    #: the damaged file's new path; None if there was no outbox
    aside: Path | None


def recover_outbox(directory: MeshDirectory, clock: Clock) -> Recovered:
    """Move the outbox aside and start a new one with the rows that can be read; the daemon must not run."""
    lock = directory.lock()
    try:
        if not directory.outbox.exists():
            return Recovered(0, 0, None)
        rows = {int(row["position"]): row for row in _readable_rows(directory.outbox)}
        aside = _move_aside(directory.outbox, clock)
        outbox = Outbox(directory.outbox, directory.mesh, clock)
        try:
            outbox.store.writer.run_blocking(lambda tx: _insert_all(tx, rows))
        finally:
            outbox.close()
        pending = sum(row["status"] in ("pending", "inflight") for row in rows.values())
        return Recovered(len(rows), pending, aside)
    finally:
        lock.close()


def _readable_rows(path: Path) -> Iterator[_Row]:
    """Yield every row that can be read, from the oldest up and, after damage, from the newest down."""
    try:
        db = open_reader(path)
    except PosthouseError:
        return
    skip_checkpoint_on_close(db)
    try:
        for order in ("ASC", "DESC"):
            try:
                cursor = db.execute(f"{SQL.everything} ORDER BY position {order}")
                for row in cursor:
                    yield dict(zip((name for name, _type in cursor.getdescription()), row, strict=True))
                return
            except _DAMAGE:
                continue
    finally:
        db.close()


def _move_aside(path: Path, clock: Clock) -> Path:
    """Rename a store and the files that belong to it; return the new path."""
    aside = path.with_name(f"{path.name}.corrupt-{clock.wall_ns() // SECOND_NS}")
    for suffix in _COMPANIONS:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + suffix))
    return aside


def _insert_all(tx: JournalTransaction, rows: Mapping[int, _Row]) -> None:
    ordered = [rows[position] for position in sorted(rows)]
    for row in ordered:
        status = "pending" if row["status"] == "inflight" else row["status"]
        tx.db.execute(SQL.insert_everything, {**_LATER_COLUMNS, **row, "status": status})
    tx.db.execute(SQL.recount)
    # without a record of their queueing, the audit would report the rows
    known = [{"id": row["id"], "status": row["status"]} for row in ordered]
    tx.append("journal.snapshot", ref="0", body={"through_seq": 0, "state": {"outbox": {"rows": known}}})
