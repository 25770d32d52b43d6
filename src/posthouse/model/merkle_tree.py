"""The hash tree of RFC 6962 over BLAKE3: its root, and the path that proves one leaf.

An inner node is the hash of the byte 1, its left and its right child; a node without a sibling moves up unchanged.
Leaves are 32 bytes; callers decide what they hash. The lake's commits and batch signatures use this tree, so a change
voids their roots: docs/protocol.md and its vectors describe both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from blake3 import blake3

HASH_BYTES = 32
_KEPT_NODES = 4_096  # about 1 MiB; leaves of a tree share most of their way to the root, and come together
_INNER = b"\x01"


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over at least one leaf."""
    return _levels(leaves)[-1][0]


def root_and_paths(leaves: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the root over at least one leaf, and the path of each leaf."""
    *levels, (top,) = _levels(leaves)
    found = [b""]  # the path of the root; from here each level prefixes the siblings of its nodes
    for level in reversed(levels):
        last = len(level) - 1
        found = [
            level[index ^ 1] + found[index >> 1] if index & 1 or index < last else found[index >> 1]
            for index in range(last + 1)
        ]
    return top, found


@lru_cache(maxsize=64 * 64)
def path_length(index: int, size: int) -> int:
    """Return how many hashes the path of a leaf has in a tree of `size` leaves."""
    length, last = 0, size - 1
    while last:
        length += index & 1 or index < last
        index, last = index >> 1, last >> 1
    return length


def root_of_path(leaf: bytes, index: int, size: int, path: bytes) -> bytes:
    """Return the root that a leaf and its path imply; the path must have the right length."""
    node, last, at = leaf, size - 1, 0
    while last:
        sibling = path[at : at + HASH_BYTES]
        if index & 1:
            node, at = _hash_of_path(sibling, node), at + HASH_BYTES
        elif index < last:
            node, at = _hash_of_path(node, sibling), at + HASH_BYTES
        index, last = index >> 1, last >> 1
    return node


def _levels(leaves: Sequence[bytes]) -> list[Sequence[bytes]]:
    levels = [leaves]
    while len(levels[-1]) > 1:
        level = levels[-1]
        pairs = [_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        levels.append(pairs + ([level[-1]] if len(level) % 2 else []))
    return levels


def _hash(left: bytes, right: bytes) -> bytes:
    return blake3(_INNER + left + right).digest()


_hash_of_path = lru_cache(maxsize=_KEPT_NODES)(_hash)
