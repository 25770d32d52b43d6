"""What senders and readers are answered: the accept's answer, with what messages and confirmations add to it.

If you change a field: 1. docs/protocol.md, 2. openapi.json, 3. the client that reads it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.fingerprint import fingerprint_prefix
from posthouse.model.timestamps import format_utc
from posthouse.relay.answers import Accepted
from posthouse.relay.deliver.rows import Addressed, KnownMessage

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
