"""Damaged stores: detect them before they are opened, quarantine an inbox, recover the readable rows of an outbox.

A damaged outbox may hold messages that exist nowhere else: the daemon refuses to start and changes no byte of it.
`recover_outbox` (run by an operator while the daemon is stopped) moves the file aside and starts a new outbox with
every row that can be read, from both ends up to the damage. A damaged inbox is moved aside and a new one starts,
because the senders' relay has its messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import structlog

from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.transitions import SQL
from posthouse.journal.append import JournalTransaction
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.sqlite.connection import open_reader, skip_checkpoint_on_close

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
    skip_checkpoint_on_close(db)
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


class Recovered(NamedTuple):
    """What was saved."""

    rows: int
    #: of them, those that will be sent
    pending: int
    #: where the damaged file is; None when there was nothing to recover
    aside: Path | None


def recover_outbox(directory: DaemonDirectory, mesh: str, clock: Clock) -> Recovered:
    """Put the outbox aside and begin a new one with the rows that can be read; the daemon must not run."""
    lock = directory.lock()
    try:
        if not directory.outbox.exists():
            return Recovered(0, 0, None)
        rows = dict(_readable_rows(directory.outbox))
        aside = _put_aside(directory.outbox, clock)
        outbox = Outbox(directory.outbox, mesh, clock)
        try:
            outbox.store.writer.run_blocking(lambda tx: _insert_all(tx, rows))
        finally:
            outbox.close()
        pending = sum(row[9] in ("pending", "inflight") for row in rows.values())
        return Recovered(len(rows), pending, aside)
    finally:
        lock.close()


def _readable_rows(path: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield every row that can be read, by position, from the oldest up and from the newest down."""
    try:
        db = open_reader(path)
    except PosthouseError:
        return
    skip_checkpoint_on_close(db)
    try:
        for order in ("ASC", "DESC"):
            try:
                for row in db.execute(f"{SQL.everything} ORDER BY position {order}"):
                    yield int(str(row[0])), tuple(row)
                return
            except (apsw.CorruptError, apsw.IOError, apsw.NotADBError, apsw.SQLError):
                continue
    finally:
        db.close()


def _put_aside(path: Path, clock: Clock) -> Path:
    aside = path.with_name(f"{path.name}.corrupt-{clock.wall_ns() // SECOND_NS}")
    for suffix in _COMPANIONS:
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + suffix))
    return aside


def _insert_all(tx: JournalTransaction, rows: dict[int, tuple[Any, ...]]) -> None:
    for position in sorted(rows):
        row = list(rows[position])
        row[9] = "pending" if row[9] == "inflight" else row[9]
        tx.db.execute(SQL.insert_everything, row)
    counts: Any = tx.db.execute(SQL.count_all).fetchone()
    tx.db.execute(SQL.add_state, counts)
    # rows without a record of their queueing would look like an audit's finding
    known = [{"id": rows[position][1], "status": rows[position][9]} for position in sorted(rows)]
    tx.append("journal.snapshot", ref="0", body={"through_seq": 0, "state": {"outbox": {"rows": known}}})
