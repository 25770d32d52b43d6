"""The Merkle tree over a range of rows, and the canonical lines its leaves are made of; every bronze commit has a root.

A line is the RFC 8785 form of a row, columns in the order of their names; columns that end in _ns are written as
text. For journal rows it is byte for byte posthouse.journal.record.canonical_line. Block n of a range (after, to]
holds the seqs (after + 4096 n, after + 4096 (n + 1)]. A leaf is the BLAKE3 of a block's lines in seq order; a node
is the BLAKE3 of the byte 1, its left and its right child; a node without a sibling moves up unchanged. If you change
any of this: 1. docs/protocol.md and its vectors, 2. VERSION, 3. the audit must know both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import rfc8785
from blake3 import blake3

if TYPE_CHECKING:
    import pyarrow as pa


def canonical_lines(rows: pa.Table) -> bytes:
    """Return the lines of rows, in their order."""
    names = sorted(rows.column_names)
    columns = [rows.column(name).to_pylist() for name in names]
    columns = [_texts(values) if name.endswith("_ns") else values for name, values in zip(names, columns, strict=True)]
    shape = _shape(tuple(names))
    return _ENCODER.encode_lines([shape(*values) for values in zip(*columns, strict=True)])


def slow_lines(rows: pa.Table) -> bytes:
    """Return the lines by the letter of RFC 8785; what canonical_lines is held against."""
    return b"".join(rfc8785.dumps(_as_written(row)) + b"\n" for row in rows.to_pylist())


def _as_written(row: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if name.endswith("_ns") and value is not None else value for name, value in row.items()}


def _texts(values: Sequence[int | None]) -> list[str | None]:
    return [None if value is None else str(value) for value in values]


_ENCODER = msgspec.json.Encoder()
_SHAPES: dict[tuple[str, ...], type[msgspec.Struct]] = {}


def _shape(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return a record type whose fields are encoded in this order."""
    if names not in _SHAPES:
        fields = [(f"f{position}", Any) for position in range(len(names))]
        rename = {f"f{position}": name for position, name in enumerate(names)}
        _SHAPES[names] = msgspec.defstruct("Line", fields, rename=rename, gc=False)
    return _SHAPES[names]


VERSION = 1
BLOCK_ROWS = 4096
NOTE = "posthouse.merkle"
_NODE = b"\x01"  # no leaf starts with it: lines begin with a brace


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaves; there must be one."""
    level = list(leaves)
    while len(level) > 1:
        pairs = [blake3(_NODE + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


class Seal(msgspec.Struct, frozen=True):
    """What a bronze commit says of its rows, and what is published about them."""

    epoch: str
    feed: str
    #: rows (after, to]
    after: int
    to: int
    rows: int
    root: str
    #: hex, in order; tells which block was altered
    leaves: tuple[str, ...]
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Block:
    """One leaf's worth of a range: the rows (after, to]."""

    after: int
    to: int


def blocks(after: int, to: int) -> Iterator[Block]:
    """Cut a range into its blocks."""
    for low in range(after, to, BLOCK_ROWS):
        yield Block(low, min(low + BLOCK_ROWS, to))


def leaf(lines: bytes) -> bytes:
    """Return the leaf of a block's lines."""
    return blake3(lines).digest()


def leaves_of(rows: pa.Table, after: int, to: int) -> list[bytes]:
    """Return the leaves of rows in seq order that lie in (after, to], `after` being where a block begins."""
    seqs = rows.column("seq").to_numpy()
    cuts = [0, *(int(seqs.searchsorted(block.to, side="right")) for block in blocks(after, to))]
    return [leaf(canonical_lines(rows.slice(low, high - low))) for low, high in pairwise(cuts)]
