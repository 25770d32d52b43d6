"""Terms: the short keys events are found by.

An event has one for its author, its kind, its mesh, for each tag with a name of one letter, and one for its
coordinate, under which all versions of a line stand (its address alias). A term is 16 bytes of a hash, so that values
of 8 KiB index like short ones; two different values with one term would take 2^64 tries to make. Rebuilding
the index calls exactly these functions.

If you change what a term is made of: 1. a migration that reindexes, 2. the contract suite.
"""

from __future__ import annotations

from functools import lru_cache

from blake3 import blake3

from posthouse.model.coordinate import Coordinate
from posthouse.model.event import Event
from posthouse.model.kinds import is_replacing

TERM_BYTES = 16
_CACHED_CHARS = 80  # node ids, event ids, topics: what comes again and again


def author_term(node: str) -> bytes:
    """Return the term of an author."""
    return _short("author", node)


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
    return len(tag) == 1 and tag.isascii()


def event_address(event: Event) -> bytes | None:
    """Return the term of an event's coordinate, or None when it replaces nothing."""
    return address_term(Coordinate(event.kind, event.pubkey, event.d)) if is_replacing(event.kind) else None


def event_terms(event: Event, mesh: str, address: bytes | None) -> tuple[bytes, ...]:
    """Return all terms of an event, each once."""
    terms = {_short("author", event.pubkey), _short("kind", str(event.kind)), _short("mesh", mesh)}
    for tag in event.tags:
        if len(tag) > 1 and is_indexed(tag[0]):
            terms.add(tag_term(tag[0], tag[1]))
    if address is not None:
        terms.add(address)
    return tuple(terms)


def _term(name: str, value: str) -> bytes:
    # names hold no NUL: one letter, or a word of this module
    return blake3(f"{name}\0{value}".encode()).digest(TERM_BYTES)


_short = lru_cache(maxsize=32_768)(_term)
