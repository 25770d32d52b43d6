"""The one journal record of an accepted event: its type, and its body as JSON."""

from __future__ import annotations

import msgspec

from posthouse.model.confirmation import Confirmation, read_confirmation
from posthouse.model.event import Event
from posthouse.model.fingerprint import DestinationKind
from posthouse.model.kinds import CONFIRMATION, MESSAGE
from posthouse.model.message import message_fingerprint, read_message
from posthouse.relay.deliver.rows import Addressed

_encode = msgspec.json.Encoder().encode

#: type and body of the record, the one node beside the author that may read the event, and what its tags say
Description = tuple[str, str, str | None, Addressed | Confirmation | None]


class _MessageBody(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the record of a message says; who it was queued for is added when that is known."""

    size: int
    client_message_id: str
    fingerprint: str
    destination_kind: DestinationKind
    destination_ref: str
    mentions: tuple[str, ...] = ()
    reply_to: str | None = None


def describe(event: Event, size: int) -> Description:
    """Return what is known of an event's record before it is accepted: of messages and confirmations not all.

    Raises message_malformed, confirmation_malformed and the like for kinds whose tags have a meaning.
    """
    if event.kind == MESSAGE:
        return _message(event, size)
    if event.kind == CONFIRMATION:
        return _confirmation(event, size)
    return "event.accepted", f'{{"kind":{event.kind},"size":{size}}}', None, None


def _message(event: Event, size: int) -> Description:
    message = read_message(event)
    digest = message_fingerprint(message, event)
    body = _MessageBody(
        size,
        message.client_message_id,
        digest.hex(),
        message.destination_kind,
        message.destination_ref,
        message.mentions,
        message.reply_to,
    )
    mesh, sender, recipient = message.mesh, event.pubkey, message.recipient
    key, way = (mesh, sender, message.client_message_id), (mesh, sender, recipient, message.destination_ref)
    return "message.accepted", _encode(body).decode(), recipient, Addressed(message, digest, key, way)


def _confirmation(event: Event, size: int) -> Description:
    confirmation = read_confirmation(event)
    body = {"size": size, "sender": confirmation.sender}
    return "confirmation.accepted", _encode(body).decode(), confirmation.sender, confirmation
