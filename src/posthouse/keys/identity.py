"""Who a node is: an Ed25519 key pair, and the node id `ed25519:<64 lower-case hex>` made of its public half.

Invariant: a node id that passed `public_key`, or came from a NodeKey, names a sound point of the curve, in
one spelling only. NodeKey keeps its secret out of repr, pickles and copies; `reveal_seed` is the way to it.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import NoReturn, Self

from nacl.bindings import crypto_sign, crypto_sign_ed25519_sk_to_curve25519, crypto_sign_seed_keypair

from posthouse.keys.curve import check_point
from posthouse.model.node import node_from_key, node_key

SEED_BYTES = 32
SIGNATURE_BYTES = 64
_CHECKED_KEYS = 4096  # node ids remembered as sound: the check costs nearly as much as a signature


class NodeKey:
    """The private key of a node, and the public key and node id that belong to it."""

    __slots__ = ("_secret", "node", "public")

    def __init__(self, seed: bytes) -> None:
        """Derive the key pair from its seed of 32 bytes."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes")
        #: The public key, 32 bytes.
        self.public: bytes
        self.public, self._secret = crypto_sign_seed_keypair(seed)
        #: The node id.
        self.node = node_id(self.public)

    @classmethod
    def generate(cls) -> Self:
        """Make a new key from the system's randomness."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature (64 bytes) of exactly these bytes."""
        return crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def exchange_secret(self) -> bytes:
        """Return the X25519 secret of this key, for sealing."""
        return crypto_sign_ed25519_sk_to_curve25519(self._secret)

    def reveal_seed(self) -> bytes:
        """Return the secret seed, for key files and key formats; never log it."""
        return self._secret[:SEED_BYTES]

    def __repr__(self) -> str:
        return f"NodeKey({self.node!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NodeKey holds a secret and cannot be pickled or copied; store it as a key file")


def node_id(public: bytes) -> str:
    """Return the node id of a public key of 32 bytes; an unsound key is refused."""
    check_point(public)
    return node_from_key(public)


@lru_cache(maxsize=_CHECKED_KEYS)
def public_key(node: str) -> bytes:
    """Return the public key that a node id names; other spellings and unsound points are refused."""
    public = node_key(node)
    check_point(public)
    return public
