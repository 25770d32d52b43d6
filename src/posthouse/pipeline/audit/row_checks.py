"""Checks of a single row: an event against its id and signature, a record against the form of its type.

The audit does not trust that the relay checked a row. A Pinch confirm must carry its reader's signature; the envelope
of a bus record must match the record. Checks that need several rows are rules. Spark workers run these checks for
every row, so apart from the signature they do as little as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from posthouse.journal.records import RECORD_TYPES
from posthouse.keys.signature import verify
from posthouse.model.errors import PosthouseError
from posthouse.model.event import CONFIRMATION, MESSAGE, Event, decode_event, event_id, is_replacing, read_fence_tag
from posthouse.model.message import message_fingerprint, read_confirmation, read_message
from posthouse.model.node import node_from_key
from posthouse.model.pinch import confirm_bytes, parse_address
from posthouse.pipeline.audit.rule import Entry


class EventRow(NamedTuple):
    """The columns of an event besides its content."""

    id: str
    pubkey: str | None
    kind: int
    created_at_ns: int


#: Code and detail of a finding.
Fault = tuple[str, str]


class FenceClaim(NamedTuple):
    """The lock that a fenced event claims to hold."""

    mesh: str
    resource: str
    author: str
    token: int
    #: The addressable coordinate that the event writes.
    address: str
    is_strict: bool


class Proof(NamedTuple):
    """The result of checking an event."""

    faults: tuple[Fault, ...]
    #: The fields that its record must repeat; None if the event cannot be parsed.
    facts: dict[str, Any] | None = None
    fence: FenceClaim | None = None


def prove(row: EventRow, content: str) -> Proof:
    """Check one event and return its faults and the fields that other rows must agree with."""
    try:
        event = decode_event(content.encode())
        canonical = event.canonical()
    except (PosthouseError, UnicodeEncodeError) as fault:
        return Proof((("event_unreadable", str(fault)),))
    faults = []
    derived = event_id(canonical)
    if not derived == event.id == row.id:
        faults.append(("event_id_wrong", f"the content hashes to {derived}, the event states {event.id}"))
    try:
        verify(event.pubkey, canonical, event.sig)
    except PosthouseError as fault:
        faults.append(("signature_invalid", str(fault)))
    if (event.kind, event.created_at_ns, event.pubkey) != (row.kind, row.created_at_ns, row.pubkey):
        faults.append(("event_disagrees", "the columns of the store differ from the content"))
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
        read = read_confirmation(event)
        return facts | {"type": "confirmation.accepted", "mesh": read.mesh, "sender": read.sender, "ids": read.ids}
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
    if message.from_agent:
        facts["from_agent"] = message.from_agent
    return facts


def _fence(event: Event) -> FenceClaim | None:
    if not is_replacing(event.kind) or (fence := read_fence_tag(event)) is None:
        return None  # only replaceable events can be fenced
    address = f"{event.kind}:{event.pubkey}:{event.d}"
    return FenceClaim(event.mesh, fence.resource, event.pubkey, fence.token, address, fence.is_strict)


#: Record type -> the fields that every record of it has.
ALWAYS = {
    name: tuple(field for field, meaning in shape.body.items() if "always" in meaning)
    for name, shape in RECORD_TYPES.items()
}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def read_body(type_: str, text: str) -> tuple[dict[str, Any] | None, Fault | None]:
    """Return the body of a record, or the fault that makes it unreadable."""
    always = ALWAYS.get(type_)
    if always is None:
        return None, ("record_type_unknown", f"the type {type_!r} is unknown")
    try:
        body = _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError) as fault:
        return None, ("record_body_invalid", f"the body of this {type_} is not a JSON object: {fault}")
    for name in always:
        if name not in body:
            return None, ("record_body_invalid", f"this {type_} lacks the field {name}")
    return body, None


def check_record(entry: Entry) -> Iterator[Fault]:
    """Yield the faults of a record with a readable body."""
    check = _CHECKS.get(entry.type)
    if check is not None:
        yield from check(entry)


def _check_published(entry: Entry) -> Iterator[Fault]:
    envelope = entry.body["envelope"]
    id_, sender = (envelope.get("id"), envelope.get("from")) if isinstance(envelope, dict) else (None, None)
    if (id_, sender) != (entry.ref, entry.actor):
        yield "bus_disagrees", f"its envelope is {id_} from {sender}"


def _check_confirm(entry: Entry) -> Iterator[Fault]:
    body = entry.body
    try:
        node = node_from_key(parse_address(entry.actor).key)
        verify(node, confirm_bytes(entry.ref.encode(), body["timestamp"]), body["signature"])
    except (PosthouseError, OverflowError, AttributeError, TypeError) as fault:
        yield "pinch_signature_invalid", f"confirm of {entry.actor}: {fault}"


_CHECKS: dict[str, Callable[[Entry], Iterator[Fault]]] = {
    "bus.published": _check_published,
    "pinch.confirmed": _check_confirm,
}
