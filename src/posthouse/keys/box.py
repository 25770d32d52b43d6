"""Sealing for one reader: NaCl box between two nodes, content = base64(nonce || box), tag ["enc", "box"].

The keys are X25519 keys converted from the Ed25519 keys of both nodes, so either of the two can open a box
again: the sender reads its own history with `reader` and `peer` exchanged. A box proves to its reader that
the peer made it.
"""

from __future__ import annotations

import secrets
from functools import lru_cache

from blake3 import blake3
from nacl.bindings import (
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_NONCEBYTES,
    crypto_box_open_afternm,
    crypto_sign_ed25519_pk_to_curve25519,
)
from nacl.exceptions import CryptoError

from posthouse.keys.encoding import decode_base64, encode_base64
from posthouse.keys.identity import NodeKey, public_key
from posthouse.model.errors import error

ENC = "box"
TAG_BYTES = 16  # Poly1305
_NONCE_CONTEXT = "posthouse 2026-11-15 nonce of a box that is made repeatably"
_SHARED_KEYS = 1024  # pairs of nodes remembered: making one costs ten times as much as sealing a short text with it


def seal_box(key: NodeKey, reader: str, plaintext: bytes) -> str:
    """Return `plaintext` sealed by `key` for the node `reader`, under a fresh random nonce."""
    return seal_box_with_nonce(key, reader, plaintext, secrets.token_bytes(crypto_box_NONCEBYTES))


def seal_box_with_nonce(key: NodeKey, reader: str, plaintext: bytes, nonce: bytes) -> str:
    """Seal under a given nonce, for test vectors; two texts under one nonce betray each other."""
    return encode_base64(nonce + crypto_box_afternm(plaintext, nonce, _shared_key(key, reader)))


def seal_box_repeatably(key: NodeKey, reader: str, plaintext: bytes, purpose: str) -> str:
    """Return the same sealed bytes for the same text and purpose: what is made again after a failure stays the same.

    The nonce is a hash of the secret and of all that goes in, so another text never gets the same one; whoever sees two
    such boxes learns only whether they are equal.
    """
    told = b"".join(len(part).to_bytes(8, "big") + part for part in (reader.encode(), purpose.encode(), plaintext))
    nonce = blake3(key.exchange_secret() + told, derive_key_context=_NONCE_CONTEXT).digest(crypto_box_NONCEBYTES)
    return seal_box_with_nonce(key, reader, plaintext, nonce)


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
        return crypto_box_open_afternm(box, nonce, _shared_key(key, peer))
    except CryptoError as failure:
        raise error("sealed_unopened", enc=ENC) from failure


@lru_cache(maxsize=_SHARED_KEYS)
def _shared_key(key: NodeKey, peer: str) -> bytes:
    """Return the secret that two nodes share; it is the same from either side."""
    return crypto_box_beforenm(crypto_sign_ed25519_pk_to_curve25519(public_key(peer)), key.exchange_secret())
