"""Terms: the short keys events are found by.

An event has one for its author, its kind, both together, its mesh, for each tag with a name of one letter, and one for
its coordinate, under which all versions of a line stand (its address alias). A short value stands in its term as
it is, behind its length, so that values that grow (numbers, ULIDs) lie side by side in the index and cost few pages:
without the length 1235 would lie far from 1234, behind 12340 to 12349 and all that begins with them. A long value is
hashed to 16 bytes, and two with one term would take 2^64 tries to make. Rebuilding the index calls exactly
these functions.

If you change what a term is made of: 1. a migration that reindexes, 2. the contract suite.
"""

from __future__ import annotations

from functools import lru_cache

from blake3 import blake3

from posthouse.model.coordinate import Coordinate
from posthouse.model.event import Event
from posthouse.model.kinds import is_replacing

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
