"""The Merkle tree over a range of rows, and the canonical lines that its leaves hash; every bronze commit has a root.

A line is the RFC 8785 (canonical JSON) form of a row, with columns in the order of their names; columns whose names
end in _ns are strings. For journal rows it equals posthouse.journal.digest.canonical_line byte for byte. Block n of a
range (after, to] holds the seqs (after + 4096 n, after + 4096 (n + 1)]. A leaf of version 2 is the BLAKE3 hash of the
BLAKE3 digests of a block's lines in seq order, so the digest of a row is enough after its content was erased; a leaf of
version 1 is the BLAKE3 hash of the lines themselves. posthouse.model.merkle_tree computes the root from the leaves. If
you change any of this: 1. docs/protocol.md and its vectors, 2. VERSION, 3. let the audit check all versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

if TYPE_CHECKING:
    import pyarrow as pa


def canonical_lines(rows: pa.Table) -> bytes:
    """Return the lines of rows, in row order."""
    names = sorted(rows.column_names)
    columns = [rows.column(name).to_pylist() for name in names]
    columns = [_texts(values) if name.endswith("_ns") else values for name, values in zip(names, columns, strict=True)]
    row_type = _row_type(tuple(names))
    return _ENCODER.encode_lines([row_type(*values) for values in zip(*columns, strict=True)])


def _texts(values: Sequence[int | None]) -> list[str | None]:
    return [None if value is None else str(value) for value in values]


_ENCODER = msgspec.json.Encoder()
_ROW_TYPES: dict[tuple[str, ...], type[msgspec.Struct]] = {}


def _row_type(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return a struct type with these columns; msgspec encodes it about ten times as fast as rfc8785 a dict."""
    if names not in _ROW_TYPES:
        fields = [(f"f{position}", Any) for position in range(len(names))]
        rename = {f"f{position}": name for position, name in enumerate(names)}
        _ROW_TYPES[names] = msgspec.defstruct("Line", fields, rename=rename, gc=False)
    return _ROW_TYPES[names]


VERSION = 2
BLOCK_ROWS = 4096
EMPTY_LEAF = blake3(b"").hexdigest()  # of a block without rows, in every version
NOTE = "posthouse.merkle"


class Seal(msgspec.Struct, frozen=True):
    """The root over the rows of one bronze commit; a run publishes it without the leaves."""

    epoch: str
    feed: str
    #: The commit holds the rows (after, to].
    after: int
    to: int
    rows: int
    root: str
    #: Hex, in order; the audit uses them to name the altered block.
    leaves: tuple[str, ...]
    version: int = VERSION

    def leaf_after(self, block_after: int) -> str:
        """Return the leaf of the block that starts after a seq."""
        return self.leaves[(block_after - self.after) // BLOCK_ROWS]


@dataclass(frozen=True, slots=True)
class Block:
    """The rows (after, to] under one leaf."""

    after: int
    to: int


def blocks(after: int, to: int) -> Iterator[Block]:
    """Split a range into its blocks."""
    for low in range(after, to, BLOCK_ROWS):
        yield Block(low, min(low + BLOCK_ROWS, to))


def block_after(range_after: int, seq: int) -> int:
    """Return the seq after which the block of a row starts, in a range that starts after `range_after`."""
    return range_after + (seq - range_after - 1) // BLOCK_ROWS * BLOCK_ROWS


def row_digests(rows: pa.Table) -> list[bytes]:
    """Return the digest of every row, in row order."""
    return [blake3(line).digest() for line in canonical_lines(rows).splitlines(keepends=True)]


def leaf(rows: pa.Table, version: int = VERSION, kept: Mapping[int, bytes] | None = None) -> bytes:
    """Return the leaf of a block's rows in seq order; `kept` holds the digests of erased rows by seq."""
    if version == 1:
        return blake3(canonical_lines(rows)).digest()
    digests = row_digests(rows)
    if kept:
        seqs = rows.column("seq").to_pylist()
        digests = [kept.get(seq, digest) for seq, digest in zip(seqs, digests, strict=True)]
    return blake3(b"".join(digests)).digest()


def leaves_of(rows: pa.Table, after: int, to: int, version: int = VERSION) -> list[bytes]:
    """Return the leaves of the rows (after, to], given in seq order; a block must start at `after`."""
    seqs = rows.column("seq").to_numpy()
    cuts = [0, *(int(seqs.searchsorted(block.to, side="right")) for block in blocks(after, to))]
    return [leaf(rows.slice(low, high - low), version) for low, high in pairwise(cuts)]
