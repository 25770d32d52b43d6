"""Changes of a store as a follower gets them: the group of one transaction, a position among groups, a page of groups.

A position names a stream (one uninterrupted recording), a number and a digest. Each digest covers the one before it, so
equal digests mean equal histories: a follower can never apply a group to a state other than the one it was made for.
If you change a struct: 1. docs/protocol.md, 2. a leader and a follower of different versions must still refuse or
understand each other.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from blake3 import blake3

MEDIA_TYPE = "application/vnd.msgpack"
FIRST_DIGEST = bytes(32)


class StreamPosition(NamedTuple):
    """The position of a recording, or of a copy that follows it."""

    stream: str
    number: int
    digest: bytes


class ChangeGroup(msgspec.Struct, frozen=True, gc=False):
    """What one transaction changed."""

    number: int
    #: wall time of the transaction
    at_ns: int
    #: seq of the newest record of the journal after it
    head: int
    digest: bytes
    #: a changeset of SQLite's session extension
    changeset: bytes


class ChangesPage(msgspec.Struct, frozen=True):
    """The groups after a position that fit into one answer, in order."""

    groups: list[ChangeGroup]
    #: seq of the leader's newest record
    head: int
    #: nothing is left after these groups
    is_complete: bool


def next_digest(digest: bytes, number: int, changeset: bytes) -> bytes:
    """Return the digest of a group, given that of the group before it."""
    return blake3(digest + number.to_bytes(8, "big") + changeset).digest()


def encode_page(page: ChangesPage) -> bytes:
    """Return a page as MessagePack."""
    return msgspec.msgpack.encode(page)


_DECODER = msgspec.msgpack.Decoder(ChangesPage)


def decode_page(data: bytes) -> ChangesPage:
    """Decode a page; raise msgspec.DecodeError if it is malformed."""
    return _DECODER.decode(data)
