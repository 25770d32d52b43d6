"""Authentication: challenges, signed proofs that answer them, and bearer tokens.

Challenges and tokens carry their time and a keyed hash, so issuing them takes no memory. The key of the hash is derived
from the relay's key: every relay with that key accepts the tokens of the others, even after a restart, and also their
challenges if they share a store. A challenge has one holder, which can spend it once, within a minute. A proof is an
event of kind 22242 that names this relay; it is never stored. A token stands for its node for an hour by the wall
clock; what the node may do is checked for each request.

    challenge = milliseconds (6 bytes) || random (10) || BLAKE2b-128 keyed, over those 16 bytes and the holder
    token     = base64url of: expiry in milliseconds (6 bytes) || public key (32) || BLAKE2b-128 keyed, over those 38
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from posthouse.keys import NodeKey
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import AUTHENTICATION, Event
from posthouse.model.limits import CHALLENGE_TTL_S, CREATED_AT_MAX_AHEAD_NS, MILLISECOND_NS, SECOND_NS, TOKEN_TTL_S
from posthouse.model.node import node_from_key, node_key

_TIME_BYTES = 6
_RANDOM_BYTES = 10
_MAC_BYTES = 16
_HEAD_BYTES = _TIME_BYTES + _RANDOM_BYTES
MAX_SPENT = 100_000  # within one minute; further proofs are refused, because a forgotten challenge could be reused


class SpentChallenges(Protocol):
    """Remembers the challenges that were answered, until they have expired."""

    async def spend_challenge(self, challenge: bytes, now_ms: int, until_ms: int) -> bool:
        """Note that a challenge, valid until `until_ms`, was answered; return False if it was noted before."""
        ...


class SpentInMemory:
    """The spent challenges of a relay that is alone on its store; its challenge key ends with the process."""

    def __init__(self, max_spent: int = MAX_SPENT) -> None:
        self._max_spent = max_spent
        #: challenge -> time in ms from which it is invalid anyway and can be dropped, oldest first
        self._until_ms: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until_ms)

    async def spend_challenge(self, challenge: bytes, now_ms: int, until_ms: int) -> bool:
        while self._until_ms and next(iter(self._until_ms.values())) <= now_ms:
            self._until_ms.popitem(last=False)
        if challenge in self._until_ms:
            return False
        if len(self._until_ms) >= self._max_spent:
            raise error("requests_exhausted", limit=self._max_spent)
        self._until_ms[challenge] = until_ms
        return True


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge as the client gets it, and when it expires by the wall clock."""

    text: str
    expires_at_ns: int


class Challenges:
    """Issues challenges; each can be spent once, by its holder. Made by `open_challenges`."""

    def __init__(
        self,
        clock: Clock,
        now_ns: Callable[[], int],
        secret: bytes,
        spent: SpentChallenges,
    ) -> None:
        self._clock = clock
        self._now_ns = now_ns
        self._secret = secret
        self._spent = spent

    def issue(self, holder: str) -> Challenge:
        """Return a new challenge that only `holder` (a node id or the name of a connection) can spend."""
        head = self._now_ms().to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
        expires_at_ns = self._clock.wall_ns() + CHALLENGE_TTL_S * SECOND_NS
        return Challenge((head + self._mac(head, holder)).hex(), expires_at_ns)

    def check(self, text: str, holder: str) -> tuple[bytes, int]:
        """Return a challenge and when it expires, or raise challenge_invalid: forged, of another holder, or expired."""
        packed = _unpack_challenge(text)
        head = packed[:_HEAD_BYTES]
        until_ms = int.from_bytes(head[:_TIME_BYTES], "big") + CHALLENGE_TTL_S * 1_000
        is_ours = hmac.compare_digest(packed[_HEAD_BYTES:], self._mac(head, holder))
        if not is_ours or self._now_ms() >= until_ms:
            raise error("challenge_invalid")
        return packed, until_ms

    async def spend(self, text: str, holder: str) -> None:
        """Check a challenge and spend it; raise challenge_invalid if it is not valid or was spent before."""
        packed, until_ms = self.check(text, holder)
        if not await self._spent.spend_challenge(packed, self._now_ms(), until_ms):
            raise error("challenge_invalid")

    def _mac(self, head: bytes, holder: str) -> bytes:
        return _mac(self._secret, head + holder.encode())

    def _now_ms(self) -> int:
        return self._now_ns() // MILLISECOND_NS


def open_challenges(clock: Clock, key: NodeKey, shared: SpentChallenges | None) -> Challenges:
    """Return the challenges of a relay; `shared` remembers those that were spent at any relay of its store.

    For a relay that is alone on its store, and for streams, memory is enough (None). So the key of these challenges
    ends with the process, and their minute is counted in boot time, which no step of the wall clock changes.
    """
    if shared is None:
        return Challenges(clock, clock.boot_ns, secrets.token_bytes(32), SpentInMemory())
    return Challenges(clock, clock.wall_ns, key.derive(b"challenges"), shared)


def _mac(secret: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_MAC_BYTES, key=secret).digest()


def _unpack_challenge(text: str) -> bytes:
    if len(text) == 2 * (_HEAD_BYTES + _MAC_BYTES) and text.isascii() and text == text.lower():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise error("challenge_invalid")


FRESH_NS = CREATED_AT_MAX_AHEAD_NS  # in both directions: a clock good enough to publish is good enough to log in


@dataclass(frozen=True, slots=True)
class Proof:
    """The signer and the tags of a proof; an absent tag is None."""

    node: str
    challenge: str | None
    invite: str | None
    name: str | None


def read_proof(event: Event, relay: str, now_ns: int) -> Proof:
    """Return the proof in a verified event that names `relay`, or raise proof_invalid."""
    if event.kind != AUTHENTICATION:
        raise _proof_invalid(f"its kind is {event.kind}, not {AUTHENTICATION}")
    if _single(event, "relay") != relay:
        raise _proof_invalid("it is not for this relay")
    if abs(event.created_at_ns - now_ns) > FRESH_NS:
        raise _proof_invalid(f"its created_at_ns is more than {FRESH_NS // SECOND_NS} s away from the relay's clock")
    return Proof(event.pubkey, _single(event, "challenge"), _single(event, "invite"), _single(event, "name"))


def _single(event: Event, name: str) -> str | None:
    tags = [tag for tag in event.tags if tag[0] == name]
    if not tags:
        return None
    if len(tags) > 1 or len(tags[0]) != 2:
        raise _proof_invalid(f"it needs exactly one {name} tag with one value")
    return tags[0][1]


def _proof_invalid(reason: str) -> PosthouseError:
    return error("proof_invalid", reason=reason)


_NODE_BYTES = 32
_SIGNED_BYTES = _TIME_BYTES + _NODE_BYTES
_TOKEN_CHARS = 72  # 54 bytes: no padding


@dataclass(frozen=True, slots=True)
class Token:
    """A new token."""

    text: str
    expires_at_ns: int

    def __repr__(self) -> str:
        return f"Token(expires_at_ns={self.expires_at_ns})"


class Tokens:
    """Issues tokens and resolves them to nodes."""

    def __init__(self, clock: Clock, secret: bytes, *, ttl_s: int = TOKEN_TTL_S) -> None:
        self._clock = clock
        self._secret = secret
        self._ttl_ms = ttl_s * 1_000

    def issue(self, node: str) -> Token:
        """Return a new token for `node`."""
        expires_ms = self._clock.wall_ns() // MILLISECOND_NS + self._ttl_ms
        signed = expires_ms.to_bytes(_TIME_BYTES, "big") + node_key(node)
        text = base64.urlsafe_b64encode(signed + _mac(self._secret, signed)).decode()
        return Token(text, expires_ms * MILLISECOND_NS)

    def node_of(self, text: str) -> str:
        """Return the node of a token, or raise token_invalid."""
        packed = _unpack_token(text)
        signed = packed[:_SIGNED_BYTES]
        expires_ms = int.from_bytes(signed[:_TIME_BYTES], "big")
        is_ours = hmac.compare_digest(packed[_SIGNED_BYTES:], _mac(self._secret, signed))
        if not is_ours or self._clock.wall_ns() // MILLISECOND_NS >= expires_ms:
            raise error("token_invalid")
        return node_from_key(signed[_TIME_BYTES:])


def _unpack_token(text: str) -> bytes:
    if len(text) == _TOKEN_CHARS:
        try:
            return base64.b64decode(text, altchars=b"-_", validate=True)
        except ValueError:  # header bytes that are not UTF-8 arrive as surrogates
            pass
    raise error("token_invalid")


def open_tokens(clock: Clock, key: NodeKey) -> Tokens:
    """Return the tokens of a relay."""
    return Tokens(clock, key.derive(b"tokens"))


_PEER_TTL_S = 60  # used once, when a relay connects to another; clocks of relays may differ by less


def peer_tokens(key: NodeKey, clock: Clock) -> Tokens:
    """Return the tokens with which relays of one store, which have the same key, authenticate to each other."""
    return Tokens(clock, key.derive(b"peers"), ttl_s=_PEER_TTL_S)
