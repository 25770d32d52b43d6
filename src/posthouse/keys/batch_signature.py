"""Batch signatures: one Ed25519 signature for up to 64 events of one author; each event still proves itself alone.

The author signs the root of a tree over the ids of the events. The signature of an event has its place in the tree and
the path to the root, so that a verifier needs no other event of the batch:

    "b1." base64url(index, 1 byte | size, 1 byte | Ed25519 signature, 64 bytes | path, 32 bytes for each hash)
    signed: "posthouse-batch-1\\n" size, 1 byte | root

Parsing is exact: one base64 spelling, an index below the size, a path of the length that both imply, no extra bytes. If
you change the form: docs/protocol.md, its vectors, and the TypeScript client.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence

import msgspec
from blake3 import blake3

from posthouse.keys.identity import NodeKey
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import BATCH_PREFIX
from posthouse.model.limits import BATCH_MAX_EVENTS
from posthouse.model.merkle_tree import HASH_BYTES, path_length, root_and_paths, root_of_path

_LABEL = b"posthouse-batch-1\n"
_LEAF = b"\x00"
_SIGNATURE_BYTES = 64
_HEAD_BYTES = 2 + _SIGNATURE_BYTES
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


class BatchSignature(msgspec.Struct, frozen=True, gc=False):
    """The parts of a batch signature."""

    index: int
    size: int
    signature: bytes
    path: bytes

    def signed_bytes(self, event_id: bytes) -> bytes:
        """Return the bytes that the Ed25519 signature covers if this event is at the place that the path gives."""
        return signed_bytes(self.size, root_of_path(_leaf(event_id), self.index, self.size, self.path))


def signed_bytes(size: int, tree_root: bytes) -> bytes:
    """Return the bytes that the Ed25519 signature of a batch covers."""
    return _LABEL + bytes((size,)) + tree_root


def sign_batch(key: NodeKey, event_ids: Sequence[str]) -> list[str]:
    """Return the signatures of 2 to 64 events of this key, in order."""
    size = len(event_ids)
    if not 2 <= size <= BATCH_MAX_EVENTS:
        raise ValueError(f"a batch has 2 to {BATCH_MAX_EVENTS} events")
    tree_root, paths = _tree(event_ids)
    return _write_all(key.sign(signed_bytes(size, tree_root)), paths)


def whole_batch_bytes(event_ids: Sequence[str], signatures: Sequence[str]) -> tuple[bytes, bytes] | None:
    """Return what an Ed25519 signature covers, and that signature, if these are all events of one batch in order.

    Each signature then is, byte for byte, the one that `sign_batch` gives to its event. None says only that they are
    not a whole batch: each event may still prove itself alone.
    """
    try:
        first = read_batch_signature(signatures[0])
    except PosthouseError:
        return None
    if first.size != len(signatures):
        return None
    tree_root, paths = _tree(event_ids)
    if _write_all(first.signature, paths) != list(signatures):
        return None
    return signed_bytes(first.size, tree_root), first.signature


def _tree(event_ids: Sequence[str]) -> tuple[bytes, list[bytes]]:
    return root_and_paths([_leaf(bytes.fromhex(event_id)) for event_id in event_ids])


def _write_all(signature: bytes, paths: Sequence[bytes]) -> list[str]:
    """Return the signatures of the events of a batch, given the paths of all of them."""
    return [_write(bytes((index, len(paths))) + signature + path) for index, path in enumerate(paths)]


def read_batch_signature(text: str) -> BatchSignature:
    """Return the parts of a batch signature, or raise signature_malformed; the signature is not verified."""
    try:
        encoded = text[len(BATCH_PREFIX) :].encode("ascii").translate(_FROM_URL)
        raw = a2b_base64(encoded + b"=" * (-len(encoded) % 4))
    except ValueError as failure:
        raise _malformed("it is not base64url") from failure
    if _write(raw) != text:
        raise _malformed("its base64url is not the canonical spelling")
    if len(raw) < _HEAD_BYTES:
        raise _malformed("it is too short")
    index, size = raw[0], raw[1]
    if not 2 <= size <= BATCH_MAX_EVENTS or index >= size:
        raise _malformed(f"index {index} of {size} events")
    path = raw[_HEAD_BYTES:]
    if len(path) != HASH_BYTES * path_length(index, size):
        raise _malformed("its path does not have the length that index and size imply")
    return BatchSignature(index, size, raw[2:_HEAD_BYTES], path)


def _leaf(event_id: bytes) -> bytes:
    return blake3(_LEAF + event_id).digest()


def _write(raw: bytes) -> str:
    return BATCH_PREFIX + b2a_base64(raw, newline=False).translate(_TO_URL).rstrip(b"=").decode()


def _malformed(reason: str) -> Exception:
    return error("signature_malformed", reason=f"as a batch signature, {reason}")
