"""Bodies about messages, their deliveries and the queues of readers that relay and client share.

One struct per body; both sides encode and decode it. Times are nanoseconds since 1970 unless the name says otherwise.
If you change a field: 1. docs/protocol.md, 2. docs/openapi.json and docs/asyncapi.json, 3. a test of relay
and client each. NotQueued is also part of the journal's record of a message: see posthouse.journal.records.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from posthouse.model.receipt import ReceiptState
from posthouse.model.request import AnswerState

EventId = Annotated[str, Meta(description="An event id.", extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]


class State(enum.StrEnum):
    """The state of a message's delivery to one reader."""

    QUEUED = "queued"
    SENT = "sent"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    DEAD = "dead"
    EXPIRED = "expired"
    PURGED = "purged"
    BLOCKED = "blocked"


#: plain text, so that a client reads the state of a newer relay
_StateText = Annotated[
    str,
    Meta(
        description="The state of a message's delivery to one reader.",
        extra_json_schema={"enum": [each.value for each in State]},
    ),
]


class DeliveryState(msgspec.Struct, frozen=True):
    """The state of a message for one recipient; times in nanoseconds, null if it has not happened."""

    recipient: str
    state: _StateText
    #: True if it waited in the queue; None until it is sent
    was_stored: bool | None
    #: number of times it was sent
    attempts: int
    queued_at_ns: int
    sent_at_ns: int | None
    closed_at_ns: int | None
    #: reason of the reader that rejected it, or the limit that made it dead
    reason: str | None
    #: what became of a direct message after it was confirmed: read or rejected
    receipt: str | None = None
    #: when, by the clock of the reader's host
    receipt_at_ms: int | None = None
    #: why it was rejected
    receipt_reason: str | None = None


class NotQueued(msgspec.Struct, frozen=True, gc=False):
    """A reader of a topic that a message was not queued for."""

    recipient: str
    reason: str


class MessageStates(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its state for each recipient; its content is an event."""

    id: str
    seq: int
    mesh: str
    sender: str
    #: the sender's agent; "" for the host itself, and from a relay that does not know agents
    from_agent: str = ""
    client_message_id: str
    destination_kind: str
    #: the topic, or the recipient's key in hex and, after a slash, its agent
    destination_ref: str
    first_seen_at_ns: int
    #: False once its content was pruned
    history_available: bool
    mentions: tuple[str, ...]
    deliveries: tuple[DeliveryState, ...]
    #: readers of a topic whose queue had no room; they find the message in the topic's history
    not_queued: tuple[NotQueued, ...] = ()


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An id of a confirmation or a receipt that had no effect."""

    id: str
    #: unknown, foreign, duplicate, expired, purged, blocked or, in a receipt, topic
    reason: str


class ConfirmedItem(msgspec.Struct, frozen=True, gc=False):
    """One message that its reader has confirmed, in the CONFIRMED command."""

    id: str
    was_stored: bool
    at_ns: int


class ReceiptEntry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message in a receipt, in the RECEIPT command."""

    id: EventId
    state: ReceiptState
    at_ms: int
    reason: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """One answer to a request."""

    state: AnswerState
    message_id: str
    #: node id of the responder
    sender: str
    #: the responder's agent; "" for its host
    from_agent: str
    #: the answer in the clear, or the reason of a refusal; None if it could not be opened
    body: str | None
    meta: dict[str, Any] | None = None
    #: the responder's member name, where it is known
    sender_name: str | None = None
    #: error code, if it could not be opened
    undecryptable: str | None = None


class Queue(msgspec.Struct, frozen=True):
    """One reader's queue."""

    recipient: str
    #: unconfirmed messages
    depth: int
    #: rejected and dead ones
    parked: int
    #: ids of confirmations that wait for this node as their sender
    confirmations: int
    oldest_ns: int | None
    #: unconfirmed messages that were sent: all before the first that was not
    in_flight: int = 0


class QueueList(msgspec.Struct, frozen=True):
    """Queues that are not empty; if `next` is null there are no more."""

    queues: list[Queue]
    next: str | None


class QueueRow(msgspec.Struct, frozen=True):
    """A message in a queue, without its content."""

    id: str
    seq: int
    #: its position in the queue
    position: int
    recipient: str
    sender: str
    state: _StateText
    was_stored: bool | None
    attempts: int
    timeouts: int
    flaps: int
    queued_at_ns: int
    sent_at_ns: int | None
    closed_at_ns: int | None
    reason: str | None


class QueueRows(msgspec.Struct, frozen=True):
    """Rows in the order of the queue; if `next` is null there are no more."""

    rows: list[QueueRow]
    next: str | None


class PurgedMessages(msgspec.Struct, frozen=True):
    """The ids of the messages that were purged."""

    purged: tuple[str, ...]


class Requeued(msgspec.Struct, frozen=True):
    """The ids of the messages that wait again, and of those that did not fit into the queue."""

    requeued: tuple[str, ...]
    no_room: tuple[str, ...]
