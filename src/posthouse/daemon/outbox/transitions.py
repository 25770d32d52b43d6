"""Outbox rows and every change of their state: accept, claim, settle, expire, requeue, drop.

    pending -> inflight -> done | dead        a deferred row goes back to pending
    pending | dead -> aborted                 by an operator; inflight too when the identity is replaced

Each function is the work of one transaction and appends its journal records in it. Two requests with one
client_message_id never both insert, because the writer runs them one after the other; a refusal writes nothing. A
row is settled only from the state it is expected in, so an operator's abort between two steps stands. Capacity is
checked only for an insert: a retry of an accepted message is answered however full the disk is. An aborted row keeps
its client_message_id and names its successor.

The names in `shown` are a contract of the local interface. If you change one: 1. DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from posthouse.journal.append import JournalTransaction
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.outbox_rules import AcceptAction, AcceptOutcome, OutboxStatus, OutboxView, decide_accept
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

_PACKAGE = "posthouse.daemon.outbox"
OUTBOX = Component("outbox", _PACKAGE)
SQL = Statements(_PACKAGE, "outbox.sql")
ROW_COLUMNS = 17


class NewRow(NamedTuple):
    """A message that was validated, resolved, sealed and signed."""

    id: str
    client_message_id: str
    request_fingerprint: bytes
    event_id: str
    #: the signed event as JSON: what every attempt sends
    event: bytes
    #: node id of the recipient, or #topic
    destination: str


class Claimed(NamedTuple):
    """A row taken for sending."""

    position: int
    id: str
    client_message_id: str
    event: bytes
    enqueued_at_ns: int
    #: made before this one
    attempts: int
    #: of the attempt before
    last_error: str | None
    payload_bytes: int


class OutboxRow(NamedTuple):
    """One row without its event."""

    position: int
    id: str
    client_message_id: str
    status: str
    attempts: int
    enqueued_at_ns: int
    next_attempt_at_ns: int | None
    delivered_at_ns: int | None
    broker_message_id: str | None
    history_id: int | None
    last_error: str | None
    aborted_at_ns: int | None
    aborted_by: str | None
    superseded_by: str | None
    payload_bytes: int
    destination: str
    event_id: str

    def shown(self) -> dict[str, Any]:
        """Return the row as the local interface tells it."""
        return {
            "id": self.id,
            "client_message_id": self.client_message_id,
            "status": self.status,
            "attempts": self.attempts,
            "enqueued_at": format_utc(self.enqueued_at_ns),
            "next_attempt_at": _shown_time(self.next_attempt_at_ns),
            "delivered_at": _shown_time(self.delivered_at_ns),
            "broker_message_id": self.broker_message_id,
            "history_id": self.history_id,
            "last_error": self.last_error,
            "aborted_at": _shown_time(self.aborted_at_ns),
            "aborted_by": self.aborted_by,
            "superseded_by": self.superseded_by,
            "payload_bytes": self.payload_bytes,
            "destination": self.destination,
            "message_id": self.event_id,
        }


class Depth(NamedTuple):
    """The counters of the outbox."""

    pending: int
    inflight: int
    #: of stored events
    bytes: int


def _shown_time(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_utc(at_ns)


_BY_CLIENT_ID, _INSERT, _STATE, _ADD_STATE = SQL.by_client_id, SQL.insert_row, SQL.read_state, SQL.add_state
REFUSE_AT = 0.95  # of the capacity: what is left is for the rows' own changes


def accept_row(tx: JournalTransaction, row: NewRow, mesh: str, capacity_bytes: int) -> AcceptOutcome:
    """Decide what a request gets, and insert its row if it is new."""
    found: Any = tx.db.execute(_BY_CLIENT_ID, (row.client_message_id,)).fetchone()
    outcome = decide_accept(_view(found), row.request_fingerprint)
    if outcome.action is AcceptAction.INSERT:
        check_room(tx, len(row.event), capacity_bytes)
        insert_row(tx, row, mesh)
        return AcceptOutcome(outcome.action, outcome.status, outcome.body | {"id": row.id, "message_id": row.event_id})
    if outcome.action is AcceptAction.ANSWER:
        return AcceptOutcome(outcome.action, outcome.status, outcome.body | {"id": found[5], "message_id": found[6]})
    return outcome


def insert_row(tx: JournalTransaction, row: NewRow, mesh: str) -> None:
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


SendOutcome = Sent | Deferred | GivenUp


def claim_rows(tx: JournalTransaction, destination: str, limit: int, mesh: str) -> list[Claimed]:
    """Take the oldest pending rows of a destination for sending."""
    rows = [Claimed(*found) for found in tx.db.execute(SQL.claimable, (destination, limit))]
    if rows:
        tx.db.executemany(SQL.mark_inflight, [(row.position,) for row in rows])
        tx.db.execute(SQL.add_state, (-len(rows), len(rows), 0))
        tx.append("outbox.inflight", mesh=mesh, ref=rows[0].id, body={"ids": [row.id for row in rows]})
    return rows


def settle_rows(tx: JournalTransaction, results: Sequence[SendOutcome], mesh: str) -> None:
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
            _append_dead(tx, result.row.id, result.row.client_message_id, result.code, mesh)
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


def reopen_inflight_rows(tx: JournalTransaction) -> int:
    """Make rows pending again whose sending was cut off by the end of the process; return how many."""
    tx.db.execute(SQL.reopen_inflight)
    count = tx.db.changes()
    tx.db.execute(SQL.add_state, (count, -count, 0))
    return count


def expire_rows(tx: JournalTransaction, before_ns: int, mesh: str) -> list[tuple[str, str]]:
    """Give up pending rows that were queued before a time; return their ids and client ids, at most a few hundred."""
    rows: list[Any] = list(tx.db.execute(SQL.expired, (before_ns, _SWEEP_ROWS)))
    text = f"{MAX_AGE}: it waited longer than a message may"
    for position, row_id, client_message_id in rows:
        tx.db.execute(SQL.mark_dead, (text, position))
        _append_dead(tx, row_id, client_message_id, MAX_AGE, mesh)
    if rows:
        tx.db.execute(SQL.add_state, (-len(rows), 0, 0))
    return [(row_id, client_message_id) for _position, row_id, client_message_id in rows]


def strip_done_rows(tx: JournalTransaction, before_ns: int) -> int:
    """Take the events out of rows that were done before a time; return how many, at most a few hundred."""
    rows: list[Any] = list(tx.db.execute(SQL.strippable, (before_ns, _SWEEP_ROWS)))
    for position, size in rows:
        tx.db.execute(SQL.strip, (position,))
        tx.db.execute(SQL.add_state, (0, 0, -size))
    return len(rows)


def _append_dead(tx: JournalTransaction, row_id: str, client_message_id: str, code: str, mesh: str) -> None:
    """Record that a row is dead."""
    tx.append("outbox.dead", mesh=mesh, ref=row_id, body={"client_message_id": client_message_id, "code": code})


OPERATOR = "operator"
REMINT = "remint"
_CHANGEABLE = (OutboxStatus.DEAD, OutboxStatus.PENDING)


def requeue_row(tx: JournalTransaction, position: int, successor: NewRow, mesh: str, capacity_bytes: int) -> OutboxRow:
    """Abort a dead or pending row and insert its successor; return the row as it was."""
    row = _changeable(tx, position)
    _refuse_collision(tx, successor)
    check_room(tx, len(successor.event), capacity_bytes)
    _abort(tx, row, OPERATOR, successor.id, mesh)
    insert_row(tx, successor, mesh)
    return row


def drop_row(tx: JournalTransaction, position: int, mesh: str) -> OutboxRow:
    """Abort a dead or pending row without a successor; return the row as it was."""
    row = _changeable(tx, position)
    _abort(tx, row, OPERATOR, None, mesh)
    return row


def abort_open_rows(tx: JournalTransaction, mesh: str) -> int:
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
        raise collision_error(found[0], found[1], successor)


def collision_error(status: str, request_fingerprint: bytes, successor: NewRow) -> PosthouseError:
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
