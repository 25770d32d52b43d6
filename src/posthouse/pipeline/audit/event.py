"""One event, proved again: its content hashes to its id, its author signed it, and what its record must say of it.

Runs in Spark's workers for every event there is, so it does as little as it can beside the signature. Nothing is
believed because a relay accepted it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from posthouse.keys.signature import verify
from posthouse.model.canonical import event_id
from posthouse.model.confirmation import read_confirmation
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event, decode_event
from posthouse.model.fence import read_fence_tag
from posthouse.model.kinds import CONFIRMATION, MESSAGE, is_replacing
from posthouse.model.message import message_fingerprint, read_message


class EventRow(NamedTuple):
    """What a feed tells of an event beside its content."""

    id: str
    pubkey: str | None
    kind: int
    created_at_ns: int


class Proof(NamedTuple):
    """What came out: faults as code and detail, and what the event says if it can be read."""

    faults: tuple[tuple[str, str], ...]
    facts: dict[str, Any] | None = None
    #: mesh, resource, and the part for the rule of locks
    fence: tuple[str, str, list[Any]] | None = None


def prove(row: EventRow, content: str) -> Proof:
    """Check one event and say what follows from it."""
    try:
        event = decode_event(content.encode())
        canonical = event.canonical()
    except (PosthouseError, UnicodeEncodeError) as fault:
        return Proof((("event_unreadable", str(fault)),))
    faults = []
    derived = event_id(canonical)
    if not derived == event.id == row.id:
        faults.append(("event_id_wrong", f"its content has the id {derived}, it says {event.id}"))
    try:
        verify(event.pubkey, canonical, event.sig)
    except PosthouseError as fault:
        faults.append(("signature_invalid", str(fault)))
    if (event.kind, event.created_at_ns, event.pubkey) != (row.kind, row.created_at_ns, row.pubkey):
        faults.append(("event_disagrees", "the store's columns are not those of its content"))
    try:
        facts = _facts(event, len(canonical))
        return Proof(tuple(faults), facts, _fence(event))
    except PosthouseError as fault:
        return Proof((*faults, ("event_unreadable", str(fault))))


def _facts(event: Event, size: int) -> dict[str, Any]:
    if event.kind == MESSAGE:
        return _message_facts(event, size)
    facts: dict[str, Any] = {"pubkey": event.pubkey, "size": size}
    if event.kind == CONFIRMATION:
        told = read_confirmation(event)
        return facts | {"type": "confirmation.accepted", "mesh": told.mesh, "sender": told.sender, "ids": told.ids}
    return facts | {"type": "event.accepted", "mesh": event.mesh, "kind": event.kind}


def _message_facts(event: Event, size: int) -> dict[str, Any]:
    message = read_message(event)
    facts = {
        "type": "message.accepted",
        "pubkey": event.pubkey,
        "mesh": message.mesh,
        "size": size,
        "client_message_id": message.client_message_id,
        "fingerprint": message_fingerprint(message, event).hex(),
        "destination_kind": message.destination_kind.value,
        "destination_ref": message.destination_ref,
    }
    if message.mentions:
        facts["mentions"] = list(message.mentions)
    if message.reply_to is not None:
        facts["reply_to"] = message.reply_to
    return facts


def _fence(event: Event) -> tuple[str, str, list[Any]] | None:
    if not is_replacing(event.kind) or (fence := read_fence_tag(event)) is None:
        return None  # others cannot be fenced
    address = f"{event.kind}:{event.pubkey}:{event.d}"
    return event.mesh, fence.resource, ["fence", event.id, event.pubkey, fence.token, address, fence.is_strict]
