"""The daemon's accept table: what a request gets when its client_message_id may have been seen before.

A pure function of the row under that id and the fingerprint of the request. An id once in the outbox is never
released: a row that is dead or aborted still refuses it. Nothing is written or read here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from posthouse.model.fingerprint import fingerprint_prefix


class OutboxStatus(enum.StrEnum):
    """The states of an outbox row."""

    PENDING = "pending"
    INFLIGHT = "inflight"
    DONE = "done"
    DEAD = "dead"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class OutboxView:
    """The fields of an outbox row the table looks at."""

    status: OutboxStatus
    request_fingerprint: bytes
    broker_message_id: str | None = None
    history_id: int | None = None
    #: why a dead row is dead
    last_error: str | None = None


class Action(enum.StrEnum):
    """What the daemon does with the request."""

    INSERT = "insert"
    ANSWER = "answer"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell of the table: the action, the HTTP status and the body beside client_message_id."""

    action: Action
    status: int
    body: dict[str, Any]


_QUEUED = {"status": "queued", "duplicate": False}


def decide_accept(row: OutboxView | None, request_fingerprint: bytes) -> Outcome:
    """Return what the request gets."""
    if row is None:
        return Outcome(Action.INSERT, 202, dict(_QUEUED))
    if row.request_fingerprint != request_fingerprint:
        return _conflict(row, "mismatch", request_fingerprint)
    match row.status:
        case OutboxStatus.PENDING:
            return Outcome(Action.ANSWER, 202, dict(_QUEUED))
        case OutboxStatus.INFLIGHT:
            return Outcome(Action.ANSWER, 202, {"status": "inflight", "duplicate": False})
        case OutboxStatus.DONE:
            return Outcome(Action.ANSWER, 200, {"status": "done", "duplicate": True, **_sent_as(row)})
        case OutboxStatus.DEAD | OutboxStatus.ABORTED:
            return _conflict(row, "match", request_fingerprint)


def _conflict(row: OutboxView, comparison: str, request_fingerprint: bytes) -> Outcome:
    body: dict[str, Any] = {
        "error": "idempotency_key_reused",
        "conflict": f"outbox_{row.status.value}_fingerprint_{comparison}",
        "daemon_fingerprint_prefix": fingerprint_prefix(request_fingerprint),
    }
    if row.status is OutboxStatus.DONE:
        body["broker_message_id"] = row.broker_message_id
    if row.status is OutboxStatus.DEAD and comparison == "match":
        body["reason"] = row.last_error
    return Outcome(Action.REFUSE, 409, body)


def _sent_as(row: OutboxView) -> dict[str, Any]:
    return {"broker_message_id": row.broker_message_id, "history_id": row.history_id}
