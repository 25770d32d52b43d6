"""Accepting a message: look the id up, apply the accept table, insert; all inside one transaction.

Two requests with one id can never both insert, because the writer runs them one after the other. A refusal writes
nothing. The room of the outbox is judged only for what would be inserted, so a retry of an accepted message is
answered however full the disk is.
"""

from __future__ import annotations

from typing import Any

from posthouse.daemon.outbox.component import SQL
from posthouse.daemon.outbox.rows import NewRow
from posthouse.journal.append import JournalTransaction
from posthouse.model.accept_table import Action, OutboxStatus, OutboxView, Outcome, decide_accept
from posthouse.model.errors import error

_BY_CLIENT_ID, _INSERT, _STATE, _ADD_STATE = SQL.by_client_id, SQL.insert_row, SQL.read_state, SQL.add_state
REFUSE_AT = 0.95  # of the capacity: what is left is for the rows' own changes


def accept(tx: JournalTransaction, row: NewRow, mesh: str, capacity_bytes: int) -> Outcome:
    """Decide what a request gets, and insert its row if it is new."""
    found: Any = tx.db.execute(_BY_CLIENT_ID, (row.client_message_id,)).fetchone()
    outcome = decide_accept(_view(found), row.request_fingerprint)
    if outcome.action is Action.INSERT:
        check_room(tx, len(row.event), capacity_bytes)
        insert(tx, row, mesh)
        return Outcome(outcome.action, outcome.status, outcome.body | {"id": row.id, "message_id": row.event_id})
    if outcome.action is Action.ANSWER:
        return Outcome(outcome.action, outcome.status, outcome.body | {"id": found[5], "message_id": found[6]})
    return outcome


def insert(tx: JournalTransaction, row: NewRow, mesh: str) -> None:
    """Insert a row as pending, with its record and counters."""
    size = len(row.event)
    values = (row.id, row.client_message_id, row.request_fingerprint, row.event_id, row.event, row.destination)
    tx.db.execute(_INSERT, (*values, tx.now_ns, size))
    tx.db.execute(_ADD_STATE, (1, 0, size))
    body = {
        "client_message_id": row.client_message_id,
        "fingerprint": row.request_fingerprint.hex(),
        "destination": row.destination,
        "size": size,
    }
    tx.append("outbox.queued", mesh=mesh, ref=row.id, body=body)


def check_room(tx: JournalTransaction, size: int, capacity_bytes: int) -> None:
    """Raise insufficient_storage unless so many bytes more stay below the bound."""
    state: Any = tx.db.execute(_STATE).fetchone()
    used = state[2]
    if used + size > REFUSE_AT * capacity_bytes:
        raise error("insufficient_storage", used=used, capacity=capacity_bytes)


def _view(found: Any) -> OutboxView | None:
    if found is None:
        return None
    status, request_fingerprint, broker_message_id, history_id, last_error, _id, _event_id = found
    return OutboxView(OutboxStatus(status), request_fingerprint, broker_message_id, history_id, last_error)
