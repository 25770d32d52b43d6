"""Saving what can be read of a damaged outbox: the file is put aside whole, and its readable rows begin a new one.

Rows are read from both ends up to where the damage is. Nothing is sent here: rows that were on their way are pending
again, and the relay knows those it has. The journal of the old file stays with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.outbox.component import SQL
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.journal.append import JournalTransaction
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS
from posthouse.sqlite.connection import leave_wal, open_reader

_COMPANIONS = ("", "-wal", "-shm")


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
    leave_wal(db)
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
