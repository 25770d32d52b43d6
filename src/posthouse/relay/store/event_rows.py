"""Event rows: everything a store writes of an event, derived from the event alone, so that a check can compare.

The row holds the JSON that is served verbatim, the journal record and the index terms. A term is a short key an
event is found by: author, kind, both, mesh, each one-letter tag, and its coordinate. A short value stands in its
term behind its length, so values that grow (numbers, ULIDs) lie side by side in the index; a long value is hashed
to 16 bytes. Rebuilding the index calls exactly these functions.
If you change what a term is made of: 1. a migration that reindexes, 2. the contract suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
from blake3 import blake3

from posthouse.model.event import Coordinate, Event, encode_event
from posthouse.model.filters import Filter
from posthouse.model.kinds import CONFIRMATION, MESSAGE, is_replacing
from posthouse.model.limits import INT64_MAX
from posthouse.model.message import Confirmation, DestinationKind, message_fingerprint, read_confirmation, read_message
from posthouse.relay.wire.delivery_rows import Addressed


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """An event ready to be written: checked, and everything the store keeps of it worked out."""

    event: Event
    #: the event as JSON, served verbatim
    raw: bytes
    #: bytes of its canonical form
    size: int
    mesh: str
    #: who alone may read it beside its author, for a direct message and its confirmations
    recipient: str | None
    expiration_s: int | None
    #: the terms it is found by, see posthouse.relay.store.terms
    terms: tuple[bytes, ...]
    #: the term of its coordinate, for replaceable and addressable events
    address: bytes | None
    #: its record in the journal: the type, and the body as JSON
    record_type: str
    record_body: str
    #: what a message or a confirmation says; its record is completed where that takes effect
    matter: Addressed | Confirmation | None = None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A stored event as it is served."""

    seq: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class Scope:
    """What a reader may see: direct messages of its own, and everything else in these meshes."""

    node: str
    #: None means all meshes
    meshes: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Query:
    """Stored events that match one of the filters, in commit order."""

    filters: Sequence[Filter]
    scope: Scope
    #: ascending: only later ones; descending: only earlier ones
    from_seq: int | None = None
    limit: int = 500
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Part of an answer: every match up to `through_seq` that the query asked for is in it."""

    events: list[StoredEvent]
    #: where the next page goes on; ascending at the end: the head that this read saw
    through_seq: int
    #: nothing more is there
    is_end: bool


class Pruned(msgspec.Struct, frozen=True):
    """What pruning took away."""

    records: int
    #: events that lost their content
    emptied: int


class Released(msgspec.Struct, frozen=True):
    """What became of events that pruning had kept."""

    emptied: int
    looked_at: int
    #: the last that was looked at; None at the end
    through_seq: int | None


_HASH_BYTES = 16
_PLAIN_BYTES = 32  # of a value that stands as it is: a ULID or a number does, a node id or an event id does not
_CACHED_CHARS = 80  # node ids, event ids, topics: what comes again and again


def author_term(node: str) -> bytes:
    """Return the term of an author."""
    return _short("author", node)


def author_kind_term(node: str, kind: int) -> bytes:
    """Return the term of an author's events of one kind."""
    return _short(f"author-{kind}", node)


def kind_term(kind: int) -> bytes:
    """Return the term of a kind."""
    return _short("kind", str(kind))


def mesh_term(mesh: str) -> bytes:
    """Return the term of a mesh."""
    return _short("mesh", mesh)


def tag_term(name: str, value: str) -> bytes:
    """Return the term of an indexed tag and its first value."""
    return _short(name, value) if len(value) <= _CACHED_CHARS else _term(name, value)


def address_term(coordinate: Coordinate) -> bytes:
    """Return the term of a coordinate."""
    return _term("address", str(coordinate))


def is_indexed(tag: str) -> bool:
    """Tell whether tags of a name are indexed; others are compared when the event is read."""
    return len(tag) == 1 and tag.isascii() and tag.isalpha()


def event_address(event: Event) -> bytes | None:
    """Return the term of an event's coordinate, or None when it replaces nothing."""
    return address_term(Coordinate(event.kind, event.pubkey, event.d)) if is_replacing(event.kind) else None


def event_terms(event: Event, mesh: str, address: bytes | None) -> tuple[bytes, ...]:
    """Return all terms of an event, each once."""
    terms = set(_common_terms(event.pubkey, event.kind, mesh))
    for tag in event.tags:
        if len(tag) > 1 and is_indexed(tag[0]):
            terms.add(tag_term(tag[0], tag[1]))
    if address is not None:
        terms.add(address)
    return tuple(terms)


def _term(name: str, value: str) -> bytes:
    # names are one letter, or words of this module without = and #: the first of these ends the name
    data = value.encode("utf-8", "surrogatepass")  # what a filter asks for may be no text that an event can hold
    if len(data) <= _PLAIN_BYTES:
        return b"%b=%c%b" % (name.encode(), len(data), data)
    return b"%b#%b" % (name.encode(), blake3(data).digest(_HASH_BYTES))


_short = lru_cache(maxsize=32_768)(_term)


@lru_cache(maxsize=4_096)
def _common_terms(author: str, kind: int, mesh: str) -> tuple[bytes, ...]:
    """Return the terms that all events of an author and a kind in a mesh have."""
    return author_term(author), kind_term(kind), author_kind_term(author, kind), mesh_term(mesh)


_encode = msgspec.json.Encoder().encode
#: type and body of the record, the one node beside the author that may read the event, and what its tags say
RecordDescription = tuple[str, str, str | None, Addressed | Confirmation | None]


class _MessageBody(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the record of a message says; who it was queued for is added when that is known."""

    size: int
    client_message_id: str
    fingerprint: str
    destination_kind: DestinationKind
    destination_ref: str
    mentions: tuple[str, ...] = ()
    reply_to: str | None = None


def describe_record(event: Event, size: int) -> RecordDescription:
    """Return what is known of an event's record before it is accepted: of messages and confirmations not all.

    Raises message_malformed, confirmation_malformed and the like for kinds whose tags have a meaning.
    """
    if event.kind == MESSAGE:
        return _message(event, size)
    if event.kind == CONFIRMATION:
        return _confirmation(event, size)
    return "event.accepted", f'{{"kind":{event.kind},"size":{size}}}', None, None


def _message(event: Event, size: int) -> RecordDescription:
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


def _confirmation(event: Event, size: int) -> RecordDescription:
    confirmation = read_confirmation(event)
    body = {"size": size, "sender": confirmation.sender}
    return "confirmation.accepted", _encode(body).decode(), confirmation.sender, confirmation


def event_row(event: Event, canonical: bytes, text: bytes | None = None) -> EventRow:
    """Return everything that is written of an event, all of it worked out from the event itself.

    Whoever has its canonical bytes has them already; the same holds for `text`, which is encode_event's.
    """
    record_type, record_body, recipient, matter = describe_record(event, len(canonical))
    mesh, address, expiration_s = event.mesh, event_address(event), event.expiration_s
    return EventRow(
        event=event,
        raw=encode_event(event) if text is None else text,
        size=len(canonical),
        mesh=mesh,
        recipient=recipient,
        expiration_s=None if expiration_s is None else min(expiration_s, INT64_MAX),
        terms=event_terms(event, mesh, address),
        address=address,
        record_type=record_type,
        record_body=record_body,
        matter=matter,
    )
