"""Secrets that authenticate a caller: the Ed25519 key of a node with its node id, and bearer tokens.

Invariant: a node id that passed `public_key`, or came from a NodeKey, names a canonical point of the prime-order
group, in one spelling. Refused are points off the curve, non-canonical encodings and points with a small-order part:
without this check one owner could hold several ids, and a signature under a small-order key would match any message.
NodeKey keeps its secret out of repr, pickles and copies; only `reveal_seed` returns it. Compare tokens only with
`same_token` (constant time).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn, Self

from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_sign,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_seed_keypair,
)

from posthouse.model.errors import error
from posthouse.model.node import node_from_key, node_key

PUBLIC_BYTES = 32
_FIELD = 2**255 - 19  # p: the coordinates of the curve are numbers below it
_SIGN_BIT = 1 << 255  # of x, carried in the topmost bit of the encoded y


def check_point(public: bytes) -> None:
    """Raise node_id_invalid unless `public` is the canonical encoding of a valid public key."""
    reason = _point_fault(public)
    if reason:
        raise error("node_id_invalid", node=f"ed25519:{public.hex()}", reason=reason)


def _point_fault(public: bytes) -> str | None:
    if len(public) != PUBLIC_BYTES:
        return f"it has {len(public)} bytes, not {PUBLIC_BYTES}"
    number = int.from_bytes(public, "little")
    y = number & ~_SIGN_BIT
    if y >= _FIELD:
        return "its encoding is not canonical: y is not below p"
    if number & _SIGN_BIT and y in (1, _FIELD - 1):  # the two points with x = 0
        return "its encoding is not canonical: x is zero and has a sign"
    if not crypto_core_ed25519_is_valid_point(public):
        return "it is not a point of the prime-order group"
    return None


SEED_BYTES = 32
SIGNATURE_BYTES = 64
_DERIVED = b"posthouse derive"  # keeps derived secrets apart from other uses of the seed as a key
_CHECKED_KEYS = 4096  # cached valid node ids: the check costs nearly as much as a signature


class NodeKey:
    """The private key of a node with its public key and node id."""

    __slots__ = ("_exchange_secret", "_secret", "former", "node", "public")

    def __init__(self, seed: bytes, former: Sequence[NodeKey] = ()) -> None:
        """Derive the key pair from its seed of 32 bytes; `former` are its predecessors."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes")
        #: The public key, 32 bytes.
        self.public: bytes
        self.public, self._secret = crypto_sign_seed_keypair(seed)
        self._exchange_secret: bytes | None = None
        #: The node id.
        self.node = node_id(self.public)
        #: Predecessors of this key, the latest first: they only open what was sealed for them.
        self.former = tuple(former)

    @classmethod
    def generate(cls) -> Self:
        """Create a new key from the system's random source."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def stands_for(self, node: str) -> bool:
        """Return True if a node id is that of this key, or of one of its predecessors."""
        return node == self.node or any(node == key.node for key in self.former)

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature (64 bytes) of exactly these bytes."""
        return crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def exchange_secret(self) -> bytes:
        """Return the X25519 secret of this key, for sealing."""
        if self._exchange_secret is None:  # every sealed message needs it
            self._exchange_secret = crypto_sign_ed25519_sk_to_curve25519(self._secret)
        return self._exchange_secret

    def derive(self, purpose: bytes) -> bytes:
        """Return a secret of 32 bytes for one purpose; it reveals neither the key nor the secret of another one."""
        return hashlib.blake2b(purpose, digest_size=32, key=self._secret[:SEED_BYTES], person=_DERIVED).digest()

    def reveal_seed(self) -> bytes:
        """Return the secret seed, for key files and key formats; never log it."""
        return self._secret[:SEED_BYTES]

    def __repr__(self) -> str:
        return f"NodeKey({self.node!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NodeKey holds a secret and cannot be pickled or copied; store it as a key file")


def node_id(public: bytes) -> str:
    """Return the node id of a public key of 32 bytes, or raise node_id_invalid."""
    check_point(public)
    return node_from_key(public)


@lru_cache(maxsize=_CHECKED_KEYS)
def public_key(node: str) -> bytes:
    """Return the public key of a node id; refuse other spellings and invalid points."""
    public = node_key(node)
    check_point(public)
    return public


TOKEN_BYTES = 32


def new_token() -> str:
    """Return a new random token of 43 characters."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def same_token(given: str | bytes, expected: str | bytes) -> bool:
    """Return True if two tokens are equal; takes the same time wherever they differ."""
    return hmac.compare_digest(_as_bytes(given), _as_bytes(expected))


def _as_bytes(token: str | bytes) -> bytes:
    # header bytes that are not UTF-8 become surrogates: they must compare unequal, not raise
    return token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
