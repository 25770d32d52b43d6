"""Sealing of message bodies: a NaCl box for one reader, age for several; the value of the tag ["enc", ...].

box: base64(nonce || box) under X25519 keys converted from both nodes' Ed25519 keys; either of the two can open it, and
it proves to the reader that the peer made it. age: armor with each reader as an ssh-ed25519 recipient; anyone can seal
for a node id, so only the event's signature identifies the sender, and a sender that wants to read its own message
lists itself as a reader.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Sequence
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

from posthouse.keys.identity import NodeKey, public_key
from posthouse.keys.ssh import decode_base64, write_private_key, write_public_line
from posthouse.model.errors import error

BOX = "box"
TAG_BYTES = 16  # Poly1305
_NONCE_CONTEXT = "posthouse 2026-11-15 nonce of a box that is made repeatably"
_SHARED_KEYS = 1024  # cached pairs of nodes: deriving a key costs ten times as much as sealing a short text with it


def seal_box(key: NodeKey, reader: str, plaintext: bytes) -> str:
    """Return `plaintext` sealed by `key` for the node `reader`, under a new random nonce."""
    return seal_box_with_nonce(key, reader, plaintext, secrets.token_bytes(crypto_box_NONCEBYTES))


def seal_box_with_nonce(key: NodeKey, reader: str, plaintext: bytes, nonce: bytes) -> str:
    """Seal under a given nonce, for test vectors; two texts under one nonce reveal each other."""
    return base64.b64encode(nonce + crypto_box_afternm(plaintext, nonce, _shared_key(key, reader))).decode("ascii")


def seal_box_repeatably(key: NodeKey, reader: str, plaintext: bytes, purpose: str) -> str:
    """Return the same sealed bytes for the same text and purpose, so that a retry repeats its bytes.

    The nonce is a hash of the secret and of all inputs, so another text never gets the same nonce; an observer of two
    such boxes learns only if they are equal.
    """
    hasher = blake3(key.exchange_secret(), derive_key_context=_NONCE_CONTEXT)
    for part in (reader.encode(), purpose.encode(), plaintext):
        hasher.update(len(part).to_bytes(8, "big") + part)
    nonce = hasher.digest(crypto_box_NONCEBYTES)
    return seal_box_with_nonce(key, reader, plaintext, nonce)


def open_box(key: NodeKey, peer: str, content: str) -> bytes:
    """Return the plaintext that `peer` sealed for `key`, or `key` for `peer`; refuse altered content."""
    try:
        data = decode_base64(content)
    except ValueError as failure:
        raise error("sealed_malformed", enc=BOX, reason=str(failure)) from failure
    if len(data) < crypto_box_NONCEBYTES + TAG_BYTES:
        raise error("sealed_malformed", enc=BOX, reason="it is too short")
    nonce, box = data[:crypto_box_NONCEBYTES], data[crypto_box_NONCEBYTES:]
    try:
        return crypto_box_open_afternm(box, nonce, _shared_key(key, peer))
    except CryptoError as failure:
        raise error("sealed_unopened", enc=BOX) from failure


@lru_cache(maxsize=_SHARED_KEYS)
def _shared_key(key: NodeKey, peer: str) -> bytes:
    """Return the shared secret of two nodes, the same from either side."""
    return crypto_box_beforenm(crypto_sign_ed25519_pk_to_curve25519(public_key(peer)), key.exchange_secret())


AGE = "age"
_AGE_BEGIN = "-----BEGIN AGE ENCRYPTED FILE-----\n"


def seal_age(readers: Iterable[str], plaintext: bytes) -> str:
    """Return `plaintext` sealed for every node in `readers`."""
    import pyrage  # type: ignore[import-untyped]  # compiled, without type stubs; few messages have several readers

    recipients = [pyrage.ssh.Recipient.from_str(write_public_line(node)) for node in dict.fromkeys(readers)]
    if not recipients:
        raise ValueError("sealing needs at least one reader")
    sealed: bytes = pyrage.encrypt(plaintext, recipients, armored=True)
    return sealed.decode("ascii")


def open_age(key: NodeKey, content: str) -> bytes:
    """Return the plaintext if `key` is one of the readers; refuse altered content."""
    if not content.startswith(_AGE_BEGIN) or not content.isascii():
        raise error("sealed_malformed", enc=AGE, reason="it is not age armor")
    import pyrage

    identity = pyrage.ssh.Identity.from_buffer(write_private_key(key).encode())
    try:
        plaintext: bytes = pyrage.decrypt(content.encode(), [identity])
    except pyrage.DecryptError as failure:
        raise error("sealed_unopened", enc=AGE) from failure
    return plaintext


def seal(key: NodeKey, readers: Sequence[str], plaintext: bytes) -> tuple[str, str]:
    """Return (enc, content) of `plaintext` sealed by `key` for the nodes `readers`."""
    if len(readers) == 1:
        return BOX, seal_box(key, readers[0], plaintext)
    return AGE, seal_age(readers, plaintext)


def open_sealed(key: NodeKey, peer: str, enc: str, content: str) -> bytes:
    """Return the plaintext of content sealed as `enc`; `peer` is the other node, usually the author."""
    try:
        opener = _OPENERS[enc]
    except KeyError:
        raise error("sealed_malformed", enc=enc[:16], reason="this form of sealing is unknown") from None
    return opener(key, peer, content)


_OPENERS: dict[str, Callable[[NodeKey, str, str], bytes]] = {
    BOX: open_box,
    AGE: lambda key, _peer, content: open_age(key, content),
}
