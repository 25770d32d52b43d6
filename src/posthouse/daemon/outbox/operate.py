"""What an operator does to rows: requeue under a new id, or drop. Each function is the work of one transaction.

The old row stays as aborted and names its successor; its id is never free again. An id that is taken already rolls
everything back.
"""

from __future__ import annotations

from typing import Any

from posthouse.daemon.outbox.accept import check_room, insert
from posthouse.daemon.outbox.component import SQL
from posthouse.daemon.outbox.rows import NewRow, OutboxRow
from posthouse.journal.append import JournalTransaction
from posthouse.model.accept_table import OutboxStatus, OutboxView, decide_accept
from posthouse.model.errors import PosthouseError, error

OPERATOR = "operator"
REMINT = "remint"
_CHANGEABLE = (OutboxStatus.DEAD, OutboxStatus.PENDING)


def requeue(tx: JournalTransaction, position: int, successor: NewRow, mesh: str, capacity_bytes: int) -> OutboxRow:
    """Abort a dead or pending row and insert its successor; return the row as it was."""
    row = _changeable(tx, position)
    _refuse_collision(tx, successor)
    check_room(tx, len(successor.event), capacity_bytes)
    _abort(tx, row, OPERATOR, successor.id, mesh)
    insert(tx, successor, mesh)
    return row


def drop(tx: JournalTransaction, position: int, mesh: str) -> OutboxRow:
    """Abort a dead or pending row without a successor; return the row as it was."""
    row = _changeable(tx, position)
    _abort(tx, row, OPERATOR, None, mesh)
    return row


def abort_open(tx: JournalTransaction, mesh: str) -> int:
    """Abort everything that was not sent: the identity that signed it goes away; return how many."""
    rows = [OutboxRow(*found) for found in tx.db.execute(f"{SQL.columns} WHERE status IN ('pending', 'inflight')")]
    for row in rows:
        _abort(tx, row, REMINT, None, mesh)
    return len(rows)


def _changeable(tx: JournalTransaction, position: int) -> OutboxRow:
    found: Any = tx.db.execute(f"{SQL.columns} WHERE position = ?", (position,)).fetchone()
    row = OutboxRow(*found)
    if row.status not in _CHANGEABLE:
        raise error("outbox_row_state", id=row.id, status=row.status, allowed="dead or pending rows")
    return row


def _refuse_collision(tx: JournalTransaction, successor: NewRow) -> None:
    found: Any = tx.db.execute(SQL.by_client_id, (successor.client_message_id,)).fetchone()
    if found is not None:
        raise collision(found[0], found[1], successor)


def collision(status: str, request_fingerprint: bytes, successor: NewRow) -> PosthouseError:
    """Return the refusal of an id that is in the outbox already, in the words of the accept table."""
    row = OutboxView(OutboxStatus(status), request_fingerprint)
    body = decide_accept(row, successor.request_fingerprint).body
    comparison = "match" if request_fingerprint == successor.request_fingerprint else "mismatch"
    return error(
        "idempotency_key_reused",
        client_message_id=successor.client_message_id,
        conflict=body.get("conflict", f"outbox_{status}_fingerprint_{comparison}"),
        daemon_fingerprint_prefix=successor.request_fingerprint[:8].hex(),
    )


def _abort(tx: JournalTransaction, row: OutboxRow, by: str, successor: str | None, mesh: str) -> None:
    tx.db.execute(SQL.mark_aborted, (tx.now_ns, by, successor, row.position))
    if row.status == OutboxStatus.PENDING:
        tx.db.execute(SQL.add_state, (-1, 0, 0))
    elif row.status == OutboxStatus.INFLIGHT:
        tx.db.execute(SQL.add_state, (0, -1, 0))
    body = {"client_message_id": row.client_message_id, "aborted_by": by}
    tx.append(
        "outbox.aborted", mesh=mesh, ref=row.id, body=body if successor is None else body | {"superseded_by": successor}
    )
