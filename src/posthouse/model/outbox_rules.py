"""Rules of the daemon's outbox: the accept table, and the maximum age of an unsent message.

The accept table is a pure function of the row under a client_message_id and the fingerprint of the request. An id
once in the outbox is never released: a dead or aborted row still refuses it. The age bound stays below the life of
the relay's dedupe record, by a tenth of it and at least a day: a retry after that would be accepted as a new
message.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from posthouse.model.message import fingerprint_prefix


class OutboxStatus(enum.StrEnum):
    """The states of an outbox row."""

    PENDING = "pending"
    INFLIGHT = "inflight"
    DONE = "done"
    DEAD = "dead"
    ABORTED = "aborted"


class MessageState(enum.StrEnum):
    """The progress of a message, as its sender sees it."""

    QUEUED = "queued"
    #: the relay has it
    SENT = "sent"
    #: the recipient's daemon has it
    CONFIRMED = "confirmed"
    #: the full text was handed to the program of the recipient's agent
    READ = "read"
    ANSWERED = "answered"
    REJECTED = "rejected"
    DEAD = "dead"
    ABORTED = "aborted"
    EXPIRED = "expired"
    #: the queue of a reader of the topic had no room; that reader gets it from the topic's history later
    NOT_QUEUED = "not_queued"


def known_state(
    status: str,
    confirmed_at_ns: int | None,
    read_at_ns: int | None,
    rejected_at_ns: int | None,
    not_queued: str | None,
) -> MessageState:
    """Return the progress of a message, from its outbox row."""
    if status in (OutboxStatus.DEAD, OutboxStatus.ABORTED):
        return MessageState(status)
    if rejected_at_ns is not None:
        return MessageState.REJECTED
    if read_at_ns is not None:
        return MessageState.READ
    if confirmed_at_ns is not None:
        return MessageState.CONFIRMED
    if not_queued is not None:
        return MessageState.NOT_QUEUED
    return MessageState.SENT if status == OutboxStatus.DONE else MessageState.QUEUED


#: states of a delivery at the relay that say more than the sender's host knows
_AT_RELAY = {
    "rejected": MessageState.REJECTED,
    "dead": MessageState.DEAD,
    "purged": MessageState.DEAD,
    "expired": MessageState.EXPIRED,
}


def shown_state(known: MessageState, delivery: str | None, receipt: str | None, *, is_answered: bool) -> MessageState:
    """Return the state of a direct message, from its states on the sender's host and at the relay."""
    if is_answered:
        return MessageState.ANSWERED
    if receipt is not None and known in (MessageState.SENT, MessageState.CONFIRMED):
        return MessageState(receipt)
    if known is MessageState.SENT and delivery is not None:
        return MessageState.CONFIRMED if delivery == "confirmed" else _AT_RELAY.get(delivery, known)
    return known


@dataclass(frozen=True, slots=True)
class OutboxView:
    """The fields of an outbox row that the table depends on."""

    status: OutboxStatus
    request_fingerprint: bytes
    broker_message_id: str | None = None
    history_id: int | None = None
    #: why a dead row is dead
    last_error: str | None = None


class AcceptAction(enum.StrEnum):
    """The daemon's action for a request."""

    INSERT = "insert"
    ANSWER = "answer"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class AcceptOutcome:
    """A cell of the table: the action, the HTTP status and the body besides client_message_id."""

    action: AcceptAction
    status: int
    body: dict[str, Any]


_QUEUED = {"status": "queued", "duplicate": False}


def decide_accept(row: OutboxView | None, request_fingerprint: bytes) -> AcceptOutcome:
    """Return the cell of the table for a request."""
    if row is None:
        return AcceptOutcome(AcceptAction.INSERT, 202, dict(_QUEUED))
    if row.request_fingerprint != request_fingerprint:
        return _conflict(row, "mismatch", request_fingerprint)
    match row.status:
        case OutboxStatus.PENDING:
            return AcceptOutcome(AcceptAction.ANSWER, 202, dict(_QUEUED))
        case OutboxStatus.INFLIGHT:
            return AcceptOutcome(AcceptAction.ANSWER, 202, {"status": "inflight", "duplicate": False})
        case OutboxStatus.DONE:
            return AcceptOutcome(AcceptAction.ANSWER, 200, {"status": "done", "duplicate": True, **_sent_as(row)})
        case OutboxStatus.DEAD | OutboxStatus.ABORTED:
            return _conflict(row, "match", request_fingerprint)


def _conflict(row: OutboxView, comparison: str, request_fingerprint: bytes) -> AcceptOutcome:
    body: dict[str, Any] = {
        "error": "idempotency_key_reused",
        "conflict": f"outbox_{row.status.value}_fingerprint_{comparison}",
        "daemon_fingerprint_prefix": fingerprint_prefix(request_fingerprint),
    }
    if row.status is OutboxStatus.DONE:
        body["broker_message_id"] = row.broker_message_id
    if row.status is OutboxStatus.DEAD and comparison == "match":
        body["reason"] = row.last_error
    return AcceptOutcome(AcceptAction.REFUSE, 409, body)


def _sent_as(row: OutboxView) -> dict[str, Any]:
    return {"broker_message_id": row.broker_message_id, "history_id": row.history_id}


DEFAULT_MAX_AGE_H = 168
PERMANENT_BOUND_H = 720
MARGIN_MIN_H = 24
MARGIN_H_PER_DAY = 2.4  # a tenth of a day


def max_age_bound_h(retention_days: int | None) -> int:
    """Return the maximum hours that a row may wait; None means that the relay keeps its records forever."""
    if retention_days is None:
        return PERMANENT_BOUND_H
    return retention_days * 24 - max(MARGIN_MIN_H, math.ceil(retention_days * MARGIN_H_PER_DAY))


def default_max_age_h(retention_days: int | None) -> int:
    """Return the hours that a row may wait by default."""
    return min(DEFAULT_MAX_AGE_H, max_age_bound_h(retention_days))
