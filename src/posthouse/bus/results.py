"""Values that the bus returns (frozen structs, empty containers instead of None), and errors that carry them."""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from posthouse.model.breaker import Circuit
from posthouse.model.envelope import Envelope, HandlerError
from posthouse.model.errors import ERROR_CODES, Refused, Transient

#: results of ack
AckAnswer = Literal["acked", "unknown", "being_served"]


class Reason(enum.StrEnum):
    """Why an endpoint refused a message."""

    ACCESS_DENIED = "access_denied"
    RATE_LIMITED = "rate_limited"
    BACKPRESSURE = "backpressure"
    CIRCUIT_OPEN = "circuit_open"
    BUDGET_EXCEEDED = "budget_exceeded"


class Rejection(msgspec.Struct, frozen=True):
    """The refusal of one endpoint; `endpoint_hash` is "*" if the publish was refused as a whole."""

    endpoint_hash: str
    subject: str
    reason: Reason
    text: str


class PublishResult(msgspec.Struct, frozen=True):
    """The result of a publish."""

    message_id: str
    #: number of mailboxes that stored the message
    delivered_to: int
    rejected: tuple[Rejection, ...] = ()
    #: by mailbox: 0 (empty) to 1 (full), before this message
    mailbox_pressure: dict[str, float] = msgspec.field(default_factory=dict)


class PublishRefused(Refused):
    """A publish that reached no mailbox and that no dead letter keeps: only the caller still has the message."""

    @property
    def result(self) -> PublishResult:
        """The result that `refusals="return"` would have returned."""
        return msgspec.convert(self.fields["result"], PublishResult)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds until rate limit or breaker may admit the message; None if no time is known."""
        found: float | None = self.fields["retry_after_s"]
        return found


def publish_refused(subject: str, result: PublishResult, retry_after_s: float | None) -> PublishRefused:
    """Return the error that says why nothing was published."""
    fields: dict[str, Any] = {
        "subject": subject,
        "reason": refusal_text(result),
        "retry_after_s": retry_after_s,
        "result": msgspec.to_builtins(result),
    }
    return PublishRefused(ERROR_CODES["publish_refused"], fields)


def refusal_text(result: PublishResult) -> str:
    """Return why a publish reached no mailbox."""
    return "; ".join(rejection.text for rejection in result.rejected) or "no endpoint matches"


class RequestTimeout(Transient, TimeoutError):
    """A request whose reply has not arrived in time; also a TimeoutError, like those that asyncio raises."""


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
    """A dead letter: its mailbox, its message if it has one, and why and when it failed."""

    id: str
    #: subject of the message, or of the endpoint if the file held no message
    subject: str
    endpoint_hash: str
    reason: str
    #: ISO-8601, UTC
    failed_at: str
    envelope: Envelope | None
    #: the exception, if a handler raised
    error: HandlerError | None = None
    #: the rule that refused the message, or no_endpoint; None for a message that the mailbox had accepted
    refused: str | None = None
    #: its payload was dropped to make room for newer dead letters, so it cannot be requeued
    is_payload_dropped: bool = False


class LetterCount(msgspec.Struct, frozen=True):
    """The dead letters of one mailbox: of refused messages, and of messages that it had accepted."""

    #: row of the endpoint in bus.db; 0 for unrouted/
    number: int
    #: the endpoint, or `unrouted`
    subject: str
    endpoint_hash: str
    refused: int
    refused_bytes: int
    failed: int
    failed_bytes: int


class Metrics(msgspec.Struct, frozen=True):
    """Number of messages in the index, by status and by subject."""

    total_messages: int
    by_status: dict[str, int]
    by_subject: dict[str, int]
    #: mailboxes that hold dead letters
    dead_letters: tuple[LetterCount, ...] = ()


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
