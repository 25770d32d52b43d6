"""The floor: the rows of an accepted send, committed one after the other by apsw alone, synced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import apsw

from posthouse.bench.send.terms import BODY_CHARS
from posthouse.daemon.outbox.component import SQL
from posthouse.daemon.outbox.outbox import FILE_NAME, Outbox
from posthouse.journal.append import SQL as JOURNAL
from posthouse.model.clock import SystemClock
from posthouse.model.ids import Minter

_EVENT_BYTES = 900  # of a sealed and signed message with a body of BODY_CHARS
_MESH = "main"


class OutboxFloor:
    """Bare commits of outbox rows."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._clock = SystemClock()
        self._minter = Minter(self._clock)
        self._seq = count(int(str(db.execute(JOURNAL.head).get)) + 1)
        self._event = b"x" * (_EVENT_BYTES + BODY_CHARS)

    def rate(self, number: int) -> float:
        """Commit so many rows and return how many per second."""
        ids = [self._minter.mint() for _ in range(number)]
        started = time.perf_counter()
        for row_id in ids:
            self._commit(row_id)
        return number / (time.perf_counter() - started)

    def _commit(self, row_id: str) -> None:
        execute, now_ns = self._db.execute, self._clock.wall_ns()
        body = f'{{"client_message_id":"{row_id}"}}'
        execute("BEGIN IMMEDIATE")
        execute(SQL.by_client_id, (row_id,)).fetchone()
        execute(JOURNAL.append, (next(self._seq), now_ns, "outbox.queued", _MESH, None, row_id, body))
        execute(JOURNAL.add_bytes, (len(body),))
        execute(SQL.insert_row, (row_id, row_id, b"f" * 32, row_id, self._event, "#floor", now_ns, len(self._event)))
        execute(SQL.add_state, (1, 0, len(self._event)))
        execute("COMMIT")


@contextmanager
def outbox_floor(folder: Path) -> Iterator[OutboxFloor]:
    """An outbox that only this connection writes."""
    folder.mkdir(parents=True)
    path = folder / FILE_NAME
    Outbox(path, _MESH, SystemClock()).close()
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        yield OutboxFloor(db)
    finally:
        db.close()
