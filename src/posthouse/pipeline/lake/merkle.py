"""The Merkle tree over a range of rows: every bronze commit carries its root.

Rows are cut by seq: block n of a range (after, to] holds the seqs (after + 4096 n, after + 4096 (n + 1)], at most 4,096
rows. A leaf is the BLAKE3 of a block's canonical lines in seq order; a node is the BLAKE3 of the byte 1, its left and
its right child; a node without a sibling is handed up unchanged. The range alone tells the blocks, so anybody who has
the rows can compute the root again.

If you change any of this: 1. docs/protocol.md and its vectors, 2. VERSION, 3. the audit must know both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from posthouse.pipeline.lake.lines import canonical_lines

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
BLOCK_ROWS = 4096
NOTE = "posthouse.merkle"
_NODE = b"\x01"  # no leaf starts with it: lines begin with a brace


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


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaves; there must be one."""
    level = list(leaves)
    while len(level) > 1:
        pairs = [blake3(_NODE + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]
