"""The one journal record of an accepted event: its type, and its body as JSON."""

from __future__ import annotations

import msgspec

from posthouse.model.confirmation import read_confirmation
from posthouse.model.event import Event
from posthouse.model.kinds import CONFIRMATION, MESSAGE
from posthouse.model.message import message_fingerprint, read_message

_encode = msgspec.json.Encoder().encode


def describe(event: Event, size: int) -> tuple[str, str, str | None]:
    """Return type and body of the record, and the one node beside the author that may read the event.

    Raises message_malformed, confirmation_malformed and the like for kinds whose tags have a meaning.
    """
    if event.kind == MESSAGE:
        return _message(event, size)
    if event.kind == CONFIRMATION:
        return _confirmation(event, size)
    return "event.accepted", f'{{"kind":{event.kind},"size":{size}}}', None


def _message(event: Event, size: int) -> tuple[str, str, str | None]:
    message = read_message(event)
    body = {
        "size": size,
        "client_message_id": message.client_message_id,
        "fingerprint": message_fingerprint(message, event).hex(),
        "destination_kind": message.destination_kind.value,
        "destination_ref": message.destination_ref,
        "recipients": [],
    }
    if message.mentions:
        body["mentions"] = message.mentions
    if message.reply_to is not None:
        body["reply_to"] = message.reply_to
    return "message.accepted", _encode(body).decode(), message.recipient


def _confirmation(event: Event, size: int) -> tuple[str, str, str | None]:
    confirmation = read_confirmation(event)
    body = {"size": size, "ids": [], "sender": confirmation.sender}
    return "confirmation.accepted", _encode(body).decode(), confirmation.sender
