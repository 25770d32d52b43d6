"""The values of an outbox: rows as they are stored, claimed, settled and shown.

The names in `to_api` are a contract of the local API. If you change one: 1. DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import format_utc
from posthouse.model.outbox_rules import MessageState, known_state


class NewRow(NamedTuple):
    """A message after validation, resolution, sealing and signing."""

    id: str
    client_message_id: str
    request_fingerprint: bytes
    event_id: str
    #: the signed event as JSON; every attempt sends these bytes
    event: bytes
    #: node id of the recipient, or #topic
    destination: str
    #: agent of this host that sends it, "" for the host itself
    from_agent: str = DEFAULT_INBOX
    #: agent of the recipient, "" for its default inbox
    to_agent: str = DEFAULT_INBOX
    reply_to_id: str | None = None


class SentBefore(NamedTuple):
    """A message of this host that the relay has and the outbox has lost."""

    row: NewRow
    #: seq at the relay
    history_id: int
    #: when it was signed
    sent_at_ns: int


class Claimed(NamedTuple):
    """A row claimed for sending."""

    position: int
    id: str
    client_message_id: str
    event: bytes
    enqueued_at_ns: int
    #: attempts before this one
    attempts: int
    #: error of the attempt before
    last_error: str | None
    from_agent: str = DEFAULT_INBOX


class OwnPost(NamedTuple):
    """A topic post that the relay has answered."""

    position: int
    history_id: int
    event: bytes
    #: its id at the relay
    message_id: str


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
    from_agent: str
    to_agent: str
    confirmed_at_ns: int | None
    read_at_ns: int | None
    rejected_at_ns: int | None
    reject_reason: str | None
    #: readers of a topic whose queue had no room: a JSON array of {recipient, reason}
    not_queued: str | None

    @property
    def message_id(self) -> str:
        """The id under which readers know the message: that of its first event, if another outbox had sent it."""
        return self.broker_message_id or self.event_id

    @property
    def state(self) -> MessageState:
        """How far the message has got, to this host's knowledge."""
        return known_state(self.status, self.confirmed_at_ns, self.read_at_ns, self.rejected_at_ns, self.not_queued)

    def to_api(self) -> dict[str, Any]:
        """Return the row as the local API shows it."""
        return {
            "id": self.id,
            "client_message_id": self.client_message_id,
            "status": self.status,
            "attempts": self.attempts,
            "enqueued_at": format_utc(self.enqueued_at_ns),
            "next_attempt_at": _format_time(self.next_attempt_at_ns),
            "delivered_at": _format_time(self.delivered_at_ns),
            "broker_message_id": self.broker_message_id,
            "history_id": self.history_id,
            "last_error": self.last_error,
            "aborted_at": _format_time(self.aborted_at_ns),
            "aborted_by": self.aborted_by,
            "superseded_by": self.superseded_by,
            "payload_bytes": self.payload_bytes,
            "destination": self.destination,
            "message_id": self.message_id,
            "from_agent": self.from_agent,
            "to_agent": self.to_agent,
            "state": self.state.value,
            "confirmed_at": _format_time(self.confirmed_at_ns),
            "read_at": _format_time(self.read_at_ns),
            "rejected_at": _format_time(self.rejected_at_ns),
            "reject_reason": self.reject_reason,
            "not_queued": [] if self.not_queued is None else msgspec.json.decode(self.not_queued),
        }


class Outcome(NamedTuple):
    """The outcome of a message at its recipient."""

    message_id: str
    #: confirmed, read or rejected
    state: str
    at_ns: int
    reason: str | None = None


class Depth(NamedTuple):
    """The counters of the outbox."""

    pending: int
    inflight: int
    #: size of the stored events
    bytes: int


def _format_time(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_utc(at_ns)


class Sent(NamedTuple):
    """The relay has accepted a row."""

    row: Claimed
    broker_message_id: str
    history_id: int | None
    not_queued: Sequence[Any] = ()


class Deferred(NamedTuple):
    """A row that waits for another attempt."""

    row: Claimed
    code: str
    text: str
    next_attempt_at_ns: int


class GivenUp(NamedTuple):
    """A row that becomes dead: the relay refuses it permanently, or it is too old."""

    row: Claimed
    code: str
    text: str


SendOutcome = Sent | Deferred | GivenUp
