"""Results of accepting an event, and the committed event that listeners get.

`Accepted` is the body of 201, 200 (duplicate) and 202 (ephemeral); messages and confirmations add their own fields.
`Declined` carries the error that becomes the body of the answer. A refusal is a value, because a list has many results,
and one refusal must not hide the others. `Committed` is built once per event, after its commit. If you change a field:
1. docs/protocol.md, 2. openapi.json, 3. the client that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.message import fingerprint_prefix
from posthouse.model.message_api import Ignored, NotQueued
from posthouse.relay.wire.delivery_rows import Addressed, KnownMessage


class Accepted(msgspec.Struct, frozen=True):
    """The event was accepted: committed, or passed on if it is ephemeral."""

    id: str
    #: its seq in the journal; None for an ephemeral event
    seq: int | None
    #: the event was accepted before; it is not announced again
    duplicate: bool = False

    @property
    def status(self) -> int:
        """The HTTP status that goes with this answer."""
        if self.seq is None:
            return 202
        return 200 if self.duplicate else 201


class ReplacingAccepted(Accepted, frozen=True, gc=False):
    """A replaceable or addressable event was accepted."""

    #: whether it is the current event of its coordinate now; False if there is a newer one
    current: bool = False


class Declined(msgspec.Struct, frozen=True):
    """The event was refused; nothing of it was stored."""

    #: the id that the event claims, or None if the event could not be parsed
    id: str | None
    error: PosthouseError

    @property
    def status(self) -> int:
        """The HTTP status that goes with this answer."""
        return self.error.spec.status


Answer = Accepted | Declined


class Committed(msgspec.Struct, frozen=True, gc=False):
    """An event that was committed, or an ephemeral event that is passed on."""

    #: None for an ephemeral event: the journal does not contain it
    seq: int | None
    event: Event
    #: the event as JSON
    raw: bytes
    mesh: str
    #: the recipient of a direct message or of its confirmation; then only its author and this node may read it
    recipient: str | None

    def may_read(self, node: str) -> bool:
        """Return True if a node that may read the mesh may read this event."""
        return self.recipient is None or node == self.recipient or node == self.event.pubkey


#: Called on the event loop with the events of one group, in seq order; groups come in commit order.
Listener = Callable[[Sequence[Committed]], None]
#: Call a listener with every group of committed events from now on; return a function that stops it.
Listen = Callable[[Listener], Callable[[], None]]


class OccasionalListener:
    """A listener that is called only while there is something to listen for."""

    def __init__(self, listen: Listen, listener: Listener) -> None:
        self._listen = listen
        self._listener = listener
        self._stop: Callable[[], None] | None = None

    def set(self, *, is_needed: bool) -> None:
        """Start or stop listening; repeating it changes nothing."""
        if is_needed and self._stop is None:
            self._stop = self._listen(self._listener)
        elif not is_needed and self._stop is not None:
            self._stop()
            self._stop = None


QUEUE_FULL = "queue_full"


class MessageAccepted(Accepted, frozen=True, gc=False):
    """The message was accepted: 201."""

    client_message_id: str = ""
    not_queued: tuple[NotQueued, ...] = ()


class MessageKnown(Accepted, frozen=True, gc=False):
    """The message was accepted before: 200, with the original id and seq."""

    client_message_id: str = ""
    #: whether the relay still has its content
    history_available: bool = True
    #: ISO-8601, UTC
    first_seen_at: str = ""


class ReceiptAccepted(Accepted, frozen=True, gc=False):
    """The receipt had an effect: 201, or 200 if it was accepted before."""

    received: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()


class ConfirmationAccepted(Accepted, frozen=True, gc=False):
    """The confirmation had an effect: 201, or 200 if it was accepted before."""

    confirmed: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] = ()


class DeletionAccepted(Accepted, frozen=True, gc=False):
    """The deletion was accepted: 201, or 200 if it was accepted before."""

    #: how many events lost their content now
    deleted: int = 0


def known_answer(known: KnownMessage, client_message_id: str) -> MessageKnown:
    """Return the answer to a duplicate of a message: the original id and seq."""
    return MessageKnown(
        known.id, known.seq, True, client_message_id, known.is_history_available, format_utc(known.first_seen_at_ns)
    )


def repeated_answer(first: Accepted, first_seen_at_ns: int) -> Accepted:
    """Return the answer to an event that repeats another one of its group."""
    if isinstance(first, MessageAccepted) and first.seq is not None:
        known = KnownMessage(first.seq, first.id, b"", first_seen_at_ns, True)
        return known_answer(known, first.client_message_id)
    return msgspec.structs.replace(first, duplicate=True)


def reused(addressed: Addressed) -> PosthouseError:
    """Return the refusal of a different message with a client_message_id that its sender used before."""
    return error(
        "idempotency_key_reused",
        client_message_id=addressed.message.client_message_id,
        conflict="request_fingerprint_mismatch",
        fingerprint_prefix=fingerprint_prefix(addressed.fingerprint),
    )


def naming_message(refusal: PosthouseError, payload: Any) -> PosthouseError:
    """Return a refusal that names the client_message_id of the message, as every answer to a message does."""
    if not isinstance(payload, Addressed) or "client_message_id" in refusal.fields:
        return refusal
    fields = refusal.fields | {"client_message_id": payload.message.client_message_id}
    return type(refusal)(refusal.spec, fields, refusal.hint)
