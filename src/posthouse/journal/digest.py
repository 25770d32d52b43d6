"""A record of the journal as a value, the canonical line that represents it, and digests of records and events.

A digest of many events is a digest over the digests of each, so that it can be computed after one of them was erased.

If you change the canonical line, every published Merkle root and prune digest changes: 1. a new digest version in
protocol.md, 2. the pipeline, 3. the vectors. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import rfc8785
from blake3 import blake3


class Record(NamedTuple):
    """One fact of the journal; `body` is JSON text."""

    seq: int
    at_ns: int
    type: str
    mesh: str | None
    actor: str | None
    ref: str | None
    body: str

    def decoded_body(self) -> dict[str, Any]:
        """Return the body as a dictionary."""
        return msgspec.json.decode(self.body, type=dict[str, Any])


def canonical_line(record: Record) -> bytes:
    """Return the line of canonical JSON that represents a record in digests."""
    fields = record._asdict()
    fields["at_ns"] = str(record.at_ns)  # above 2^53 JSON numbers are not exact
    return rfc8785.dumps(fields) + b"\n"


def digest_records(records: Iterable[Record]) -> str:
    """Return the BLAKE3 digest over the canonical lines of records in seq order."""
    hasher = blake3()
    for record in records:
        hasher.update(canonical_line(record))
    return hasher.hexdigest()


def record_digest(record: Record) -> bytes:
    """Return the BLAKE3 digest of a record, which outlives its content."""
    return blake3(canonical_line(record)).digest()


def content_digest(content: bytes) -> bytes:
    """Return the BLAKE3 digest of an event as it is served, which outlives the event."""
    return blake3(content).digest()


def digest_contents(digests: Iterable[bytes]) -> str:
    """Return the BLAKE3 digest over the content digests of events in seq order."""
    return blake3(b"".join(digests)).hexdigest()
