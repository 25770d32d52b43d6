"""Sealing for one reader: NaCl box between two nodes, content = base64(nonce || box), tag ["enc", "box"].

The keys are X25519 keys converted from the Ed25519 keys of both nodes, so either of the two can open a box
again: the sender reads its own history with `reader` and `peer` exchanged. A box proves to its reader that
the peer made it.
"""

from __future__ import annotations

import secrets

from nacl.bindings import (
    crypto_box,
    crypto_box_NONCEBYTES,
    crypto_box_open,
    crypto_sign_ed25519_pk_to_curve25519,
)
from nacl.exceptions import CryptoError

from posthouse.keys.encoding import decode_base64, encode_base64
from posthouse.keys.identity import NodeKey, public_key
from posthouse.model.errors import error

ENC = "box"
TAG_BYTES = 16  # Poly1305


def seal_box(key: NodeKey, reader: str, plaintext: bytes) -> str:
    """Return `plaintext` sealed by `key` for the node `reader`, under a fresh random nonce."""
    return seal_box_with_nonce(key, reader, plaintext, secrets.token_bytes(crypto_box_NONCEBYTES))


def seal_box_with_nonce(key: NodeKey, reader: str, plaintext: bytes, nonce: bytes) -> str:
    """Seal under a given nonce, for test vectors; two texts under one nonce betray each other."""
    return encode_base64(nonce + crypto_box(plaintext, nonce, _exchange_public(reader), key.exchange_secret()))


def open_box(key: NodeKey, peer: str, content: str) -> bytes:
    """Return the plaintext that `peer` sealed for `key`, or `key` for `peer`; refuse what was altered."""
    try:
        data = decode_base64(content)
    except ValueError as failure:
        raise error("sealed_malformed", enc=ENC, reason=str(failure)) from failure
    if len(data) < crypto_box_NONCEBYTES + TAG_BYTES:
        raise error("sealed_malformed", enc=ENC, reason="it is too short")
    nonce, box = data[:crypto_box_NONCEBYTES], data[crypto_box_NONCEBYTES:]
    try:
        return crypto_box_open(box, nonce, _exchange_public(peer), key.exchange_secret())
    except CryptoError as failure:
        raise error("sealed_unopened", enc=ENC) from failure


def _exchange_public(node: str) -> bytes:
    return crypto_sign_ed25519_pk_to_curve25519(public_key(node))
