"""Values that the bus returns: frozen structs, with empty containers instead of None."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from posthouse.model.breaker import Circuit
from posthouse.model.envelope import Envelope

#: what ack answers
AckAnswer = Literal["acked", "unknown", "being_served"]


class Reason(enum.StrEnum):
    """Why an endpoint did not get a message."""

    ACCESS_DENIED = "access_denied"
    RATE_LIMITED = "rate_limited"
    BACKPRESSURE = "backpressure"
    CIRCUIT_OPEN = "circuit_open"
    BUDGET_EXCEEDED = "budget_exceeded"


class Rejection(msgspec.Struct, frozen=True):
    """One endpoint that refused; `endpoint_hash` is "*" when the publish as a whole was."""

    endpoint_hash: str
    subject: str
    reason: Reason
    text: str


class PublishResult(msgspec.Struct, frozen=True):
    """What became of a publish."""

    message_id: str
    #: how many mailboxes have stored it
    delivered_to: int
    rejected: tuple[Rejection, ...] = ()
    #: mailbox -> 0 (empty) to 1 (full), as it was before this message
    mailbox_pressure: dict[str, float] = msgspec.field(default_factory=dict)


class Endpoint(msgspec.Struct, frozen=True):
    """A registered endpoint; `number` is its row in bus.db."""

    number: int
    hash: str
    subject: str
    owner: str | None
    #: ISO-8601, UTC
    registered_at: str


class SubscriptionView(msgspec.Struct, frozen=True):
    """A subscription of this process."""

    pattern: str


class BreakerView(msgspec.Struct, frozen=True):
    """The breaker of one endpoint."""

    subject: str
    endpoint_hash: str
    circuit: Circuit
    failures: int
    successes: int
    probes: int


class Letter(msgspec.Struct, frozen=True):
    """A dead letter: where it lies, what it was, why and when it died."""

    id: str
    #: the message's subject; the endpoint's when the file could not be read as a message
    subject: str
    endpoint_hash: str
    reason: str
    #: ISO-8601, UTC
    failed_at: str
    envelope: Envelope | None


class Metrics(msgspec.Struct, frozen=True):
    """How many messages the index knows, by status and by subject."""

    total_messages: int
    by_status: dict[str, int]
    by_subject: dict[str, int]


class IndexRow(msgspec.Struct, frozen=True):
    """One message in the index."""

    id: str
    endpoint_hash: str
    subject: str
    sender: str
    status: str
    #: Unix milliseconds
    created_at: int
    expires_at: int
