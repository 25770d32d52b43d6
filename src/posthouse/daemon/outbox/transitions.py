"""Outbox rows and every change of their state: accept, claim, settle, expire, requeue, drop.

    pending -> inflight -> done | dead        a deferred row goes back to pending
    pending | dead -> aborted                 by an operator; inflight too when the identity is replaced
    pending | dead -> done                    the relay had the message when it was to be requeued
    done -> pending                           the relay was restored from a backup
    -> done                                   this outbox was restored from a backup, and the relay has the message

Each function is the work of one transaction and appends its journal records in it. The writer runs one request at a
time, so two requests with one client_message_id never both insert; a refusal writes nothing. A row is settled only from
the state in which it is expected, so an operator's abort between two steps is kept. Only an insert checks the capacity,
so a retry of an accepted message gets its answer even on a full disk. An aborted row keeps its client_message_id and
names its successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from posthouse.daemon.outbox.outbox_rows import (
    Claimed,
    Deferred,
    Depth,
    NewRow,
    OutboxRow,
    Outcome,
    SendOutcome,
    Sent,
    SentBefore,
)
from posthouse.journal.append import JournalTransaction
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import decode_event
from posthouse.model.message import read_message
from posthouse.model.outbox_rules import AcceptAction, AcceptOutcome, OutboxStatus, OutboxView, decide_accept
from posthouse.model.strict_json import parse_jcs
from posthouse.model.usage import USAGE
from posthouse.storage.sql_files import Component, Statements

_PACKAGE = "posthouse.daemon.outbox"
OUTBOX = Component("outbox", _PACKAGE)
SQL = Statements(_PACKAGE, "outbox.sql")
REFUSE_AT = 0.95  # of the capacity; the rest is for changes of existing rows
MAX_AGE = "max_age_exceeded"
MAX_AGE_TEXT = "it waited longer than a message may"
OPERATOR = "operator"
REMINT = "remint"
_SWEEP_ROWS = 500  # per transaction
_COUNT_EVERY = 16  # new rows, which each send reads to know the size of the outbox: writing the counters costs a page
_CHANGEABLE = (OutboxStatus.DEAD, OutboxStatus.PENDING)
_BY_CLIENT_ID, _INSERT, _STATE = SQL.by_client_id, SQL.insert_row, SQL.read_state


def note_outcomes(tx: JournalTransaction, outcomes: Sequence[Outcome], mesh: str) -> None:
    """Store the outcomes of messages; only the first receipt of a message counts."""
    statements = {"confirmed": SQL.note_confirmed, "read": SQL.note_read, "rejected": SQL.note_rejected}
    for outcome in outcomes:
        position: Any = tx.db.execute(SQL.position_of_sent, {"message_id": outcome.message_id}).get
        tx.db.execute(statements[outcome.state], outcome._asdict() | {"position": position})
        if position is None or not tx.db.changes():
            continue
        row_id: Any = tx.db.execute(SQL.id_of_position, (position,)).get
        if outcome.state == "confirmed":
            tx.append("outbox.confirmed", mesh=mesh, ref=row_id, body={"at_ns": outcome.at_ns})
        else:
            body = {"state": outcome.state, "at_ns": outcome.at_ns}
            tx.append("outbox.receipt", mesh=mesh, ref=row_id, body=body)


class _ExistingRow(NamedTuple):
    """The row that already has a client_message_id."""

    status: str
    request_fingerprint: bytes
    broker_message_id: str | None
    history_id: int | None
    last_error: str | None
    id: str
    event_id: str

    def view(self) -> OutboxView:
        """Return the fields that the accept table uses."""
        status = OutboxStatus(self.status)
        return OutboxView(status, self.request_fingerprint, self.broker_message_id, self.history_id, self.last_error)


def accept_row(
    tx: JournalTransaction, row: NewRow, mesh: str, capacity_bytes: int, via: str | None = None
) -> AcceptOutcome:
    """Decide the answer to a request by the accept table, and insert its row if it is new."""
    found: Any = tx.db.execute(_BY_CLIENT_ID, (row.client_message_id, row.from_agent)).fetchone()
    existing = None if found is None else _ExistingRow(*found)
    outcome = decide_accept(None if existing is None else existing.view(), row.request_fingerprint)
    if outcome.action is AcceptAction.INSERT:
        _check_capacity(tx, len(row.event), capacity_bytes)
        _insert_row(tx, row, mesh, via=via)
        return AcceptOutcome(outcome.action, outcome.status, outcome.body | {"id": row.id, "message_id": row.event_id})
    if outcome.action is AcceptAction.ANSWER and existing is not None:
        ids = {"id": existing.id, "message_id": existing.broker_message_id or existing.event_id}
        return AcceptOutcome(outcome.action, outcome.status, outcome.body | ids)
    return outcome


def _insert_row(
    tx: JournalTransaction, row: NewRow, mesh: str, at_ns: int | None = None, via: str | None = None
) -> int:
    """Insert a pending row, queued now or at the given time, with its journal record; return its position."""
    size = len(row.event)
    tx.db.execute(_INSERT, (*row, tx.now_ns if at_ns is None else at_ns, size))
    position = tx.db.last_insert_rowid()
    if position % _COUNT_EVERY == 0:
        tx.db.execute(SQL.count_new)
    body = {
        "client_message_id": row.client_message_id,
        "fingerprint": row.request_fingerprint.hex(),
        "destination": row.destination,
        "size": size,
    }
    given: dict[str, Any] = {"from_agent": row.from_agent, "to_agent": row.to_agent, "via": via}
    given |= _local_fields(row)
    body |= {name: value for name, value in given.items() if value}
    tx.append("outbox.queued", mesh=mesh, ref=row.id, body=body)
    return position


def _local_fields(row: NewRow) -> dict[str, Any]:
    """Return the facts that only this journal has about a message within this host: that it was local, its usage."""
    if b'"pubkey":"%b"' % row.destination.encode() not in row.event:  # decoding every event would cost more
        return {}
    meta = read_message(decode_event(row.event)).meta
    return {"local": True, "usage": parse_jcs(meta).get(USAGE) if meta else None}


def _check_capacity(tx: JournalTransaction, size: int, capacity_bytes: int) -> None:
    """Raise insufficient_storage if `size` more bytes would exceed the share of the capacity for new rows."""
    state: Any = tx.db.execute(_STATE).fetchone()
    used = Depth(*state).bytes
    if used + size > REFUSE_AT * capacity_bytes:
        raise error("insufficient_storage", used=used, capacity=capacity_bytes)


def claim_rows(tx: JournalTransaction, destination: str, limit: int, mesh: str) -> list[Claimed]:
    """Claim the oldest pending rows of a destination for sending."""
    rows = [Claimed(*found) for found in tx.db.execute(SQL.claimable, (destination, limit))]
    if rows:
        tx.db.executemany(SQL.mark_inflight, [(row.position,) for row in rows])
        tx.db.execute(SQL.add_state, (-len(rows), len(rows), 0))
        tx.append("outbox.inflight", mesh=mesh, ref=rows[0].id, body={"ids": [row.id for row in rows]})
    return rows


def settle_rows(tx: JournalTransaction, outcomes: Sequence[SendOutcome], mesh: str) -> None:
    """Write the outcomes of the rows of one frame."""
    deferred = 0
    for outcome in outcomes:
        if isinstance(outcome, Sent):
            _settle_sent(tx, outcome, mesh)
        elif isinstance(outcome, Deferred):
            deferred += 1
            _settle_deferred(tx, outcome, mesh)
        else:
            tx.db.execute(SQL.mark_dead, (f"{outcome.code}: {outcome.text}", outcome.row.position))
            _append_dead(tx, outcome.row.id, outcome.row.client_message_id, outcome.code, mesh)
    tx.db.execute(SQL.add_state, (deferred, -len(outcomes), 0))


def _settle_sent(tx: JournalTransaction, sent: Sent, mesh: str) -> None:
    row = sent.row
    not_queued = msgspec.json.encode(sent.not_queued).decode() if sent.not_queued else None
    tx.db.execute(SQL.mark_done, (tx.now_ns, sent.broker_message_id, sent.history_id, not_queued, row.position))
    body = {
        "client_message_id": row.client_message_id,
        "message_id": sent.broker_message_id,
        "history_id": sent.history_id,
    }
    if sent.history_id is None:  # between agents of this host: its daemon is the recipient's
        note_outcomes(tx, [Outcome(sent.broker_message_id, "confirmed", tx.now_ns)], mesh)
    tx.append("outbox.done", mesh=mesh, ref=row.id, body=body)


def _settle_deferred(tx: JournalTransaction, deferred: Deferred, mesh: str) -> None:
    row, text = deferred.row, f"{deferred.code}: {deferred.text}"
    tx.db.execute(SQL.mark_deferred, (deferred.next_attempt_at_ns, text, row.position))
    # a row that waits for a week for one reason gets one record
    if not (row.last_error or "").startswith(f"{deferred.code}:"):
        body = {"attempts": row.attempts + 1, "code": deferred.code}
        tx.append("outbox.deferred", mesh=mesh, ref=row.id, body=body)


def reopen_answered_rows(tx: JournalTransaction, epoch: str, since_ns: int, mesh: str) -> list[str]:
    """Make rows pending again if the relay that answered them has another epoch now; return their destinations."""
    known: str | None = tx.db.execute(SQL.relay_epoch).get
    if known == epoch:
        return []
    tx.db.execute(SQL.set_relay_epoch, (epoch,))
    rows: list[Any] = [] if known is None else list(tx.db.execute(SQL.answered, (since_ns,)))
    for start in range(0, len(rows), _SWEEP_ROWS):
        part = rows[start : start + _SWEEP_ROWS]
        tx.db.executemany(SQL.reopen, [(position,) for position, _id, _destination in part])
        tx.append("outbox.reopened", mesh=mesh, ref=epoch, body={"ids": [row_id for _at, row_id, _to in part]})
    tx.db.execute(SQL.add_state, (len(rows), 0, 0))
    return list(dict.fromkeys(destination for _at, _id, destination in rows))


def reopen_inflight_rows(tx: JournalTransaction) -> int:
    """Make rows pending again that were in flight when the process ended; return how many."""
    tx.db.execute(SQL.reopen_inflight)
    count = tx.db.changes()
    tx.db.execute(SQL.add_state, (count, -count, 0))
    return count


def expire_rows(tx: JournalTransaction, before_ns: int, mesh: str) -> list[tuple[str, str]]:
    """Give up at most a few hundred pending rows queued before a time; return their ids and client_message_ids."""
    rows: list[Any] = list(tx.db.execute(SQL.expired, (before_ns, _SWEEP_ROWS)))
    text = f"{MAX_AGE}: {MAX_AGE_TEXT}"
    for position, row_id, client_message_id in rows:
        tx.db.execute(SQL.mark_dead, (text, position))
        _append_dead(tx, row_id, client_message_id, MAX_AGE, mesh)
    if rows:
        tx.db.execute(SQL.add_state, (-len(rows), 0, 0))
    return [(row_id, client_message_id) for _position, row_id, client_message_id in rows]


def strip_done_rows(tx: JournalTransaction, before_ns: int) -> int:
    """Remove the events of at most a few hundred rows that were done before a time; return how many."""
    rows: list[Any] = list(tx.db.execute(SQL.strippable, (before_ns, _SWEEP_ROWS)))
    for position, size in rows:
        tx.db.execute(SQL.strip, (position,))
        tx.db.execute(SQL.add_state, (0, 0, -size))
    return len(rows)


def _append_dead(tx: JournalTransaction, row_id: str, client_message_id: str, code: str, mesh: str) -> None:
    tx.append("outbox.dead", mesh=mesh, ref=row_id, body={"client_message_id": client_message_id, "code": code})


def requeue_row(
    tx: JournalTransaction, position: int, successor: NewRow, mesh: str, capacity_bytes: int, via: str | None = None
) -> None:
    """Abort a dead or pending row and insert its successor."""
    row = _changeable_row(tx, position)
    _check_id_unused(tx, successor)
    _check_capacity(tx, len(successor.event), capacity_bytes)
    _abort(tx, row, OPERATOR, successor.id, mesh, via)
    _insert_row(tx, successor, mesh, via=via)


def note_accepted_row(tx: JournalTransaction, position: int, message_id: str, history_id: int, mesh: str) -> None:
    """Settle a dead or pending row as done: the relay turned out to have its message."""
    row = _changeable_row(tx, position)
    tx.db.execute(SQL.mark_accepted, (tx.now_ns, message_id, history_id, position))
    if row.status == OutboxStatus.PENDING:
        tx.db.execute(SQL.add_state, (-1, 0, 0))
    body = {"client_message_id": row.client_message_id, "message_id": message_id, "history_id": history_id}
    tx.append("outbox.done", mesh=mesh, ref=row.id, body=body)


def add_sent_rows(tx: JournalTransaction, sent: Sequence[SentBefore], mesh: str) -> int:
    """Insert rows that are done for messages that the relay has; return how many the outbox lacked."""
    count = 0
    for row, history_id, sent_at_ns in sent:
        if tx.db.execute(_BY_CLIENT_ID, (row.client_message_id, row.from_agent)).fetchone() is None:
            position = _insert_row(tx, row, mesh, sent_at_ns)
            note_accepted_row(tx, position, row.event_id, history_id, mesh)
            count += 1
    return count


def drop_row(tx: JournalTransaction, position: int, mesh: str, via: str | None = None) -> None:
    """Abort a dead or pending row without a successor."""
    _abort(tx, _changeable_row(tx, position), OPERATOR, None, mesh, via)


def abort_open_rows(tx: JournalTransaction, mesh: str) -> int:
    """Abort every row that was not sent, because the identity that signed it is replaced; return how many."""
    rows = [OutboxRow(*found) for found in tx.db.execute(f"{SQL.columns} WHERE status IN ('pending', 'inflight')")]
    for row in rows:
        _abort(tx, row, REMINT, None, mesh)
    return len(rows)


def _changeable_row(tx: JournalTransaction, position: int) -> OutboxRow:
    found: Any = tx.db.execute(f"{SQL.columns} WHERE position = ?", (position,)).fetchone()
    row = OutboxRow(*found)
    if row.status not in _CHANGEABLE:
        raise error("outbox_row_state", id=row.id, status=row.status, allowed="dead or pending rows")
    return row


def _check_id_unused(tx: JournalTransaction, successor: NewRow) -> None:
    found: Any = tx.db.execute(SQL.by_client_id, (successor.client_message_id, successor.from_agent)).fetchone()
    if found is not None:
        raise _collision_error(_ExistingRow(*found), successor)


def _collision_error(existing: _ExistingRow, successor: NewRow) -> PosthouseError:
    """Return the refusal of a client_message_id that is already taken, in the terms of the accept table."""
    view = OutboxView(OutboxStatus(existing.status), existing.request_fingerprint)
    body = decide_accept(view, successor.request_fingerprint).body
    is_same = existing.request_fingerprint == successor.request_fingerprint
    comparison = "match" if is_same else "mismatch"
    return error(
        "idempotency_key_reused",
        client_message_id=successor.client_message_id,
        conflict=body.get("conflict", f"outbox_{existing.status}_fingerprint_{comparison}"),
        daemon_fingerprint_prefix=successor.request_fingerprint[:8].hex(),
    )


def _abort(
    tx: JournalTransaction, row: OutboxRow, by: str, successor: str | None, mesh: str, via: str | None = None
) -> None:
    tx.db.execute(SQL.mark_aborted, (tx.now_ns, by, successor, row.position))
    if row.status == OutboxStatus.PENDING:
        tx.db.execute(SQL.add_state, (-1, 0, 0))
    elif row.status == OutboxStatus.INFLIGHT:
        tx.db.execute(SQL.add_state, (0, -1, 0))
    body = {"client_message_id": row.client_message_id, "aborted_by": by}
    body |= {name: value for name, value in (("superseded_by", successor), ("via", via)) if value is not None}
    tx.append("outbox.aborted", mesh=mesh, ref=row.id, body=body)
