"""A record as readers see it, and the one line of JSON that stands for it in digests.

Needs no SQLite: the pipeline's workers use it. If you change the canonical line: every published Merkle root and
every prune digest changes with it, so 1. a new digest version in protocol.md, 2. the pipeline, 3. the vectors.
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
    """Return the one line of JSON that stands for a record in digests."""
    fields = record._asdict()
    fields["at_ns"] = str(record.at_ns)  # beyond 2^53, where JSON numbers stop being exact
    return rfc8785.dumps(fields) + b"\n"


def digest_records(records: Iterable[Record]) -> str:
    """Return the BLAKE3 digest over the canonical lines of records in seq order."""
    hasher = blake3()
    for record in records:
        hasher.update(canonical_line(record))
    return hasher.hexdigest()


def digest_contents(contents: Iterable[bytes]) -> str:
    """Return the BLAKE3 digest over events as they are served, a line each, in seq order."""
    hasher = blake3()
    for content in contents:
        hasher.update(content)
        hasher.update(b"\n")
    return hasher.hexdigest()
