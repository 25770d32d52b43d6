"""Event rows: everything a store writes of an event, derived from the event alone, so that a check can compare.

The row holds the JSON that is served verbatim, the journal record and the index terms. A term is a short key that
finds an event: its author, its kind, both, its mesh, each one-letter tag, and its coordinate. A term contains a short
value as it is, after its length, so values that grow (numbers, ULIDs) lie side by side in the index; a long value is
hashed to 16 bytes. Rebuilding the index calls exactly these functions. If you change the composition of a term: 1. a
migration that reindexes, 2. the contract suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec
from blake3 import blake3

from posthouse.model.deletion import Deletion, read_deletion
from posthouse.model.event import (
    ADDRESSABLE_KINDS,
    CONFIRMATION,
    DELETION,
    EPHEMERAL_KINDS,
    MESSAGE,
    PROFILE,
    RECEIPT,
    REPLACEABLE_KINDS,
    Coordinate,
    Event,
    encode_event,
    read_fence_tag,
)
from posthouse.model.filters import Filter
from posthouse.model.lease import FenceTag
from posthouse.model.limits import INT64_MAX, QUERY_PAGE_BYTES
from posthouse.model.message import Confirmation, message_fingerprint, read_confirmation, read_message
from posthouse.model.profile import read_agents
from posthouse.model.receipt import Receipt, read_receipt
from posthouse.relay.wire.delivery_rows import Addressed, ClosedDeliveries, MessageRecord


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """A verified event, and everything that the store keeps of it."""

    event: Event
    #: the event as JSON, served verbatim
    raw: bytes
    #: bytes of the canonical form
    size: int
    mesh: str
    #: the only node beside the author that may read it, for a direct message, its confirmations, receipts, deletions
    recipient: str | None
    expiration_s: int | None
    #: see the functions below
    index_terms: tuple[bytes, ...]
    #: the term of its coordinate, for replaceable and addressable events only
    address: bytes | None
    #: its journal record: the type, and the body as JSON
    record_type: str
    #: without fields for messages and confirmations, until the commit has determined recipients and effects
    record_body: str
    #: the tags of a message, a confirmation, a receipt or a deletion, parsed
    payload: Addressed | Confirmation | Receipt | Deletion | None = None
    is_ephemeral: bool = False
    #: of a fenced event; only replaceable and addressable events have one
    fence: FenceTag | None = None
    #: the node that brought it from another relay; such an event is stored and has no other effect
    mirrored_by: str | None = None


class CurrentEvent(NamedTuple):
    """The current event of a coordinate."""

    seq: int
    created_at_ns: int
    id: str


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A stored event as it is served."""

    seq: int
    raw: bytes
    #: its key was no longer trusted when it was signed or accepted
    is_suspect: bool = False


class ContentRow(msgspec.Struct, frozen=True, gc=False):
    """A stored event as deletion and retention see it."""

    seq: int
    id: str
    author: str
    kind: int
    created_at_ns: int
    mesh: str
    recipient: str | None
    #: the term of its coordinate, for replaceable and addressable events only
    address: bytes | None
    #: the event as JSON; None: it is gone
    raw: bytes | None
    #: of a content that was removed before it was archived
    digest: bytes | None
    #: a content.erased record names it
    is_erased: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """The events that a reader may see: its own direct messages, and everything else in these meshes."""

    node: str
    #: None means all meshes
    meshes: frozenset[str] | None
    #: keys that the node has succeeded
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """Stored events that match one of the filters, in commit order."""

    filters: Sequence[Filter]
    scope: Scope
    #: ascending: only later events; descending: only earlier ones
    from_seq: int | None = None
    limit: int = 500
    is_descending: bool = False
    #: of the events of a page; a larger event is alone on its page
    max_bytes: int = QUERY_PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a result: it contains every match up to `through_seq`."""

    events: list[StoredEvent]
    #: where the next page starts; at the end of an ascending query: the head that this read saw
    through_seq: int
    #: there are no more matches
    is_end: bool


class Pruned(msgspec.Struct, frozen=True):
    """The result of pruning."""

    records: int
    #: events that lost their content
    emptied: int


class Released(msgspec.Struct, frozen=True):
    """The result of checking events that an earlier pruning had to keep."""

    emptied: int
    checked: int
    #: the last event that was checked; None at the end
    through_seq: int | None


class Usage(NamedTuple):
    """Events with content, and the bytes of their JSON."""

    events: int
    bytes: int


class StoreSpace(NamedTuple):
    """The size of a store in bytes."""

    total: int
    free: int
    #: whether free space can go back to the file system while the store is in use
    is_incremental: bool


class SweptEvents(NamedTuple):
    """One step of a walk over the events of a mesh."""

    removed: int
    #: where the next step continues; None at the end
    through_seq: int | None


class ErasedEvents(NamedTuple):
    """One step of erasing a deleted mesh."""

    erased: int
    #: deliveries that ended
    closed: list[ClosedDeliveries]


class Tombstones(NamedTuple):
    """What deletions block among some events that are about to be written."""

    #: (event id, author)
    ids: frozenset[tuple[str, str]]
    #: address -> creation time of the last deletion that names it
    addresses: dict[bytes, int]


NO_TOMBSTONES = Tombstones(frozenset(), {})
_HASH_BYTES = 16
_PLAIN_BYTES = 32  # longer values are hashed: a ULID or a number is not, a node id or an event id is
_CACHED_CHARS = 80  # node ids, event ids and topics occur again and again


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
    """Return True if tags of a name are indexed; other tags are compared when the event is read."""
    return len(tag) == 1 and tag.isascii() and tag.isalpha()


def event_address(event: Event) -> bytes | None:
    """Return the term of an event's coordinate, or None if the event replaces nothing."""
    is_replacing = event.kind in REPLACEABLE_KINDS or event.kind in ADDRESSABLE_KINDS
    return address_term(Coordinate(event.kind, event.pubkey, event.d)) if is_replacing else None


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
    # names are one letter, or words of this module without = and #: the first of these two ends the name
    data = value.encode("utf-8", "surrogatepass")  # a filter may ask for text that no event can contain
    if len(data) <= _PLAIN_BYTES:
        return b"%b=%c%b" % (name.encode(), len(data), data)
    return b"%b#%b" % (name.encode(), blake3(data).digest(_HASH_BYTES))


_short = lru_cache(maxsize=32_768)(_term)


@lru_cache(maxsize=4_096)
def _common_terms(author: str, kind: int, mesh: str) -> tuple[bytes, ...]:
    """Return the terms that all events of an author with one kind in a mesh have."""
    return author_term(author), kind_term(kind), author_kind_term(author, kind), mesh_term(mesh)


_NO_FIELDS = "{}"


class ConfirmationRecord(msgspec.Struct, frozen=True, gc=False):
    """The body of a confirmation's journal record."""

    size: int
    sender: str
    #: of the messages that it confirmed
    ids: tuple[str, ...]


def event_row(event: Event, canonical: bytes, text: bytes | None = None, mesh: str | None = None) -> EventRow:
    """Return everything that is written of an event.

    `canonical`, `text` (as encode_event returns it) and `mesh` are arguments because callers have them already. Raises
    message_malformed, confirmation_malformed and the like for kinds whose tags have a meaning.
    """
    size, mesh, kind, expiration_s = len(canonical), mesh or event.mesh, event.kind, event.expiration_s
    record_type, record_body, recipient = "event.accepted", _NO_FIELDS, None
    payload: Addressed | Confirmation | Receipt | Deletion | None = None
    if kind == MESSAGE:
        payload = _addressed(event, size)
        record_type, recipient = "message.accepted", payload.message.recipient
    elif kind == CONFIRMATION:
        payload = read_confirmation(event)
        record_type, recipient = "confirmation.accepted", payload.sender
    elif kind == RECEIPT:
        payload = read_receipt(event)
        record_body, recipient = f'{{"kind":{kind},"size":{size}}}', payload.sender
    else:
        if kind == PROFILE:
            read_agents(event.content)
        elif kind == DELETION:
            payload = read_deletion(event)
            recipient = payload.recipient
        record_body = f'{{"kind":{kind},"size":{size}}}'
    address = event_address(event)
    return EventRow(
        event=event,
        raw=encode_event(event) if text is None else text,
        size=size,
        mesh=mesh,
        recipient=recipient,
        expiration_s=None if expiration_s is None else min(expiration_s, INT64_MAX),
        index_terms=event_terms(event, mesh, address),
        address=address,
        record_type=record_type,
        record_body=record_body,
        payload=payload,
        is_ephemeral=kind in EPHEMERAL_KINDS,
        fence=None if address is None else read_fence_tag(event),
    )


class MirroredRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The body of the journal record of a mirrored event."""

    kind: int
    size: int
    mirrored_by: str
    #: the resource of its fence
    fence: str = ""


def mirrored_row(row: EventRow, mirrored_by: str) -> EventRow:
    """Return the row of an event that another relay accepted, without its effect as message, confirmation or receipt.

    Only a deletion keeps its meaning, so that what an author erased is erased everywhere.
    """
    fence = "" if row.fence is None else row.fence.resource
    body = MirroredRecord(row.event.kind, row.size, mirrored_by, fence)
    return msgspec.structs.replace(
        row,
        record_type="event.accepted",
        record_body=msgspec.json.encode(body).decode(),
        payload=row.payload if isinstance(row.payload, Deletion) else None,
        mirrored_by=mirrored_by,
    )


def _addressed(event: Event, size: int) -> Addressed:
    message = read_message(event)
    digest = message_fingerprint(message, event)
    record = MessageRecord(
        size,
        message.client_message_id,
        digest.hex(),
        message.destination_kind,
        message.destination_ref,
        message.mentions,
        message.reply_to,
        message.from_agent,
    )
    mesh, sender = message.mesh, event.pubkey
    key = (mesh, sender, message.from_agent, message.client_message_id)
    route = (mesh, sender, message.recipient, message.destination_ref)
    return Addressed(message, digest, key, route, record)
