"""Checks that need one row alone: an event against its id and signature, a record against the shape of its type.

Nothing is believed because a relay accepted it. A Pinch confirm must be signed by its reader's key; an envelope of
the bus must say what its record says. Everything that needs other rows is a rule. Runs in Spark's workers for every
row, so it does as little as it can besides the signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from posthouse.journal.records import RECORD_TYPES
from posthouse.keys.signature import verify
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event, decode_event, event_id, read_fence_tag
from posthouse.model.kinds import CONFIRMATION, MESSAGE, is_replacing
from posthouse.model.message import message_fingerprint, read_confirmation, read_message
from posthouse.model.node import node_from_key
from posthouse.model.pinch import confirm_bytes, parse_address
from posthouse.pipeline.audit.rule import Entry


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


Fault = tuple[str, str]
#: type -> the fields every record of it has
ALWAYS = {
    name: tuple(field for field, meaning in shape.body.items() if "always" in meaning)
    for name, shape in RECORD_TYPES.items()
}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def read_body(type_: str, text: str) -> tuple[dict[str, Any] | None, Fault | None]:
    """Return the body of a record, or what keeps it from being one."""
    always = ALWAYS.get(type_)
    if always is None:
        return None, ("record_type_unknown", f"records of the type {type_!r} are not known")
    try:
        body = _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError) as fault:
        return None, ("record_body_invalid", f"the body of a {type_} cannot be read: {fault}")
    for name in always:
        if name not in body:
            return None, ("record_body_invalid", f"a {type_} without {name}")
    return body, None


def check_record(entry: Entry) -> Iterator[Fault]:
    """Yield what is wrong with a record that could be read."""
    check = _CHECKS.get(entry.type)
    if check is not None:
        yield from check(entry)


def _check_published(entry: Entry) -> Iterator[Fault]:
    envelope = entry.body["envelope"]
    told = (envelope.get("id"), envelope.get("from")) if isinstance(envelope, dict) else (None, None)
    if told != (entry.ref, entry.actor):
        yield "bus_disagrees", f"the envelope in it is {told[0]} from {told[1]}"


def _check_confirm(entry: Entry) -> Iterator[Fault]:
    body = entry.body
    try:
        node = node_from_key(parse_address(entry.actor).key)
        verify(node, confirm_bytes(entry.ref.encode(), body["timestamp"]), body["signature"])
    except (PosthouseError, OverflowError, AttributeError, TypeError) as fault:
        yield "pinch_signature_invalid", f"of {entry.actor}: {fault}"


_CHECKS: dict[str, Callable[[Entry], Iterator[Fault]]] = {
    "bus.published": _check_published,
    "pinch.confirmed": _check_confirm,
}
