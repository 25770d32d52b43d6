"""Outbox rows as values: what is put in, what a drain takes out, and what the local interface shows.

The names in `shown` are a contract of the local interface. If you change one: 1. DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from posthouse.model.timestamps import format_utc

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
