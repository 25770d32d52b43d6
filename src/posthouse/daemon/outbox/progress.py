"""What sending does to rows: taken, sent, put off, given up. Each function is the work of one transaction.

A row changes only from the state it is expected in, so an operator's abort between two steps stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from posthouse.daemon.outbox.component import SQL
from posthouse.daemon.outbox.rows import Claimed
from posthouse.journal.append import JournalTransaction

_SWEEP_ROWS = 500  # per transaction
MAX_AGE = "max_age_exceeded"


class Sent(NamedTuple):
    """The relay has a row."""

    row: Claimed
    broker_message_id: str
    history_id: int | None


class Deferred(NamedTuple):
    """A row has to wait for another attempt."""

    row: Claimed
    code: str
    text: str
    next_attempt_at_ns: int


class GivenUp(NamedTuple):
    """A row that the relay refuses for good."""

    row: Claimed
    code: str
    text: str


Result = Sent | Deferred | GivenUp


def claim(tx: JournalTransaction, destination: str, limit: int, mesh: str) -> list[Claimed]:
    """Take the oldest pending rows of a destination for sending."""
    rows = [Claimed(*found) for found in tx.db.execute(SQL.claimable, (destination, limit))]
    if rows:
        tx.db.executemany(SQL.mark_inflight, [(row.position,) for row in rows])
        tx.db.execute(SQL.add_state, (-len(rows), len(rows), 0))
        tx.append("outbox.inflight", mesh=mesh, ref=rows[0].id, body={"ids": [row.id for row in rows]})
    return rows


def settle(tx: JournalTransaction, results: Sequence[Result], mesh: str) -> None:
    """Write what became of the rows of one frame."""
    back = 0
    for result in results:
        if isinstance(result, Sent):
            _settle_sent(tx, result, mesh)
        elif isinstance(result, Deferred):
            back += 1
            _settle_deferred(tx, result, mesh)
        else:
            tx.db.execute(SQL.mark_dead, (f"{result.code}: {result.text}", result.row.position))
            note_dead(tx, result.row.id, result.row.client_message_id, result.code, mesh)
    tx.db.execute(SQL.add_state, (back, -len(results), 0))


def _settle_sent(tx: JournalTransaction, sent: Sent, mesh: str) -> None:
    row = sent.row
    tx.db.execute(SQL.mark_done, (tx.now_ns, sent.broker_message_id, sent.history_id, row.position))
    body = {
        "client_message_id": row.client_message_id,
        "message_id": sent.broker_message_id,
        "history_id": sent.history_id,
    }
    tx.append("outbox.done", mesh=mesh, ref=row.id, body=body)


def _settle_deferred(tx: JournalTransaction, deferred: Deferred, mesh: str) -> None:
    row, text = deferred.row, f"{deferred.code}: {deferred.text}"
    tx.db.execute(SQL.mark_deferred, (deferred.next_attempt_at_ns, text, row.position))
    if not (row.last_error or "").startswith(f"{deferred.code}:"):  # a row that waits for a week is told once
        body = {"attempts": row.attempts + 1, "code": deferred.code}
        tx.append("outbox.deferred", mesh=mesh, ref=row.id, body=body)


def reopen_inflight(tx: JournalTransaction) -> int:
    """Make rows pending again whose sending was cut off by the end of the process; return how many."""
    tx.db.execute(SQL.reopen_inflight)
    count = tx.db.changes()
    tx.db.execute(SQL.add_state, (count, -count, 0))
    return count


def bury_expired(tx: JournalTransaction, before_ns: int, mesh: str) -> list[tuple[str, str]]:
    """Give up pending rows that were queued before a time; return their ids and client ids, at most a few hundred."""
    rows: list[Any] = list(tx.db.execute(SQL.expired, (before_ns, _SWEEP_ROWS)))
    text = f"{MAX_AGE}: it waited longer than a message may"
    for position, row_id, client_message_id in rows:
        tx.db.execute(SQL.mark_dead, (text, position))
        note_dead(tx, row_id, client_message_id, MAX_AGE, mesh)
    if rows:
        tx.db.execute(SQL.add_state, (-len(rows), 0, 0))
    return [(row_id, client_message_id) for _position, row_id, client_message_id in rows]


def strip_done(tx: JournalTransaction, before_ns: int) -> int:
    """Take the events out of rows that were done before a time; return how many, at most a few hundred."""
    rows: list[Any] = list(tx.db.execute(SQL.strippable, (before_ns, _SWEEP_ROWS)))
    for position, size in rows:
        tx.db.execute(SQL.strip, (position,))
        tx.db.execute(SQL.add_state, (0, 0, -size))
    return len(rows)


def note_dead(tx: JournalTransaction, row_id: str, client_message_id: str, code: str, mesh: str) -> None:
    """Record that a row is dead."""
    tx.append("outbox.dead", mesh=mesh, ref=row_id, body={"client_message_id": client_message_id, "code": code})
