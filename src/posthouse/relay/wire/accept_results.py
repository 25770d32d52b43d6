"""Results of accepting an event, and the committed event that listeners get.

`Accepted` is the body of 201, 200 (duplicate) and 202 (ephemeral); messages and confirmations add their own fields.
`Declined` carries the error whose problem is the body: a refusal is a value, because a list has many results and one
refusal must not hide the others. `Committed` is built once per event, after its commit. If you change a field: 1.
docs/protocol.md, 2. openapi.json, 3. the client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.message import fingerprint_prefix
from posthouse.relay.wire.delivery_rows import Addressed, KnownMessage


class Accepted(msgspec.Struct, frozen=True):
    """The event is there: committed, or passed on when it is ephemeral."""

    id: str
    #: place in the journal; None for an ephemeral event
    seq: int | None
    #: the event was there before; nobody is told a second time
    duplicate: bool = False

    @property
    def status(self) -> int:
        """The HTTP status that goes with this answer."""
        if self.seq is None:
            return 202
        return 200 if self.duplicate else 201


class Declined(msgspec.Struct, frozen=True):
    """The event was not accepted; nothing of it was stored."""

    #: the id the event claims, or None when it could not be read
    id: str | None
    error: PosthouseError

    @property
    def status(self) -> int:
        """The HTTP status that goes with this answer."""
        return self.error.spec.status


Answer = Accepted | Declined


class Committed(msgspec.Struct, frozen=True, gc=False):
    """One event that is committed, or an ephemeral one that is passed on."""

    #: None for an ephemeral event: it has no place in the journal
    seq: int | None
    event: Event
    #: the event as JSON
    raw: bytes
    mesh: str
    #: the recipient of a direct message or of its confirmation; then only its author and this node may read it
    recipient: str | None

    def may_read(self, node: str) -> bool:
        """Tell whether a node that reads the mesh may read this event."""
        return self.recipient is None or node == self.recipient or node == self.event.pubkey


#: Called on the event loop with what one batch committed, in seq order, batches in commit order.
Listener = Callable[[Sequence[Committed]], None]
QUEUE_FULL = "queue_full"


class NotQueued(msgspec.Struct, frozen=True, gc=False):
    """A reader of a topic that this message was not queued for."""

    recipient: str
    reason: str


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """An id of a confirmation that had no effect."""

    id: str
    #: unknown, foreign, duplicate, expired, purged or blocked
    reason: str


class MessageAccepted(Accepted, frozen=True, gc=False):
    """A message was accepted: 201."""

    client_message_id: str = ""
    not_queued: tuple[NotQueued, ...] = ()


class MessageKnown(Accepted, frozen=True, gc=False):
    """The message was accepted before: 200, with the original id and seq."""

    client_message_id: str = ""
    #: whether its content is still here
    history_available: bool = True
    #: ISO-8601, UTC
    first_seen_at: str = ""


class ConfirmationAccepted(Accepted, frozen=True, gc=False):
    """A confirmation had an effect: 201, or 200 when it had it before."""

    confirmed: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()


def known_answer(known: KnownMessage, client_message_id: str) -> MessageKnown:
    """Return the original answer of a message."""
    return MessageKnown(
        known.id, known.seq, True, client_message_id, known.is_history_available, format_utc(known.first_seen_at_ns)
    )


def reused(addressed: Addressed) -> PosthouseError:
    """Return the refusal of another message under a client_message_id that was used."""
    return error(
        "idempotency_key_reused",
        client_message_id=addressed.message.client_message_id,
        conflict="request_fingerprint_mismatch",
        fingerprint_prefix=fingerprint_prefix(addressed.fingerprint),
    )


def naming_message(refusal: PosthouseError, matter: Any) -> PosthouseError:
    """Return a refusal that names the message it refuses by the sender's id, as every answer does."""
    if not isinstance(matter, Addressed) or "client_message_id" in refusal.fields:
        return refusal
    fields = refusal.fields | {"client_message_id": matter.message.client_message_id}
    return type(refusal)(refusal.spec, fields, refusal.hint)
