"""Authentication: challenges, signed proofs that answer them, and bearer tokens.

A challenge carries its time and a keyed hash, so issuing one takes no memory. Its holder can spend it once, within a
minute. A proof is an event of kind 22242 that names this relay; it is never stored. The relay keeps only hashes of
tokens, in memory, so a restart ends all of them. Tokens per node and in total are bounded; a token gives way only to a
newer one of its own node, or if its address holds the most of all.

    challenge = milliseconds (6 bytes) || random (10) || BLAKE2b-128 keyed, over those 16 bytes and the holder
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from posthouse.keys import new_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import AUTHENTICATION, Event
from posthouse.model.limits import CHALLENGE_TTL_S, CREATED_AT_MAX_AHEAD_NS, MILLISECOND_NS, SECOND_NS, TOKEN_TTL_S

_TIME_BYTES = 6
_RANDOM_BYTES = 10
_MAC_BYTES = 16
_HEAD_BYTES = _TIME_BYTES + _RANDOM_BYTES
MAX_SPENT = 100_000  # within one minute; further proofs are refused, because a forgotten challenge could be reused


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge as the client gets it, and when it expires by the wall clock."""

    text: str
    expires_at_ns: int


class Challenges:
    """Issues challenges; each can be spent once, by its holder."""

    def __init__(self, clock: Clock, *, ttl_s: int = CHALLENGE_TTL_S, max_spent: int = MAX_SPENT) -> None:
        self._clock = clock
        self._ttl_ms = ttl_s * 1_000
        self._max_spent = max_spent
        self._secret = secrets.token_bytes(32)
        #: challenge -> boot time in ms from which it is invalid anyway and can be dropped, oldest first
        self._spent: OrderedDict[bytes, int] = OrderedDict()

    def issue(self, holder: str) -> Challenge:
        """Return a new challenge that only `holder` (a node id or the name of a connection) can spend."""
        head = self._now_ms().to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
        expires_at_ns = self._clock.wall_ns() + self._ttl_ms * MILLISECOND_NS
        return Challenge((head + self._mac(head, holder)).hex(), expires_at_ns)

    def check(self, text: str, holder: str) -> bytes:
        """Return the bytes of a challenge, or raise challenge_invalid: forged, of another holder, or expired."""
        packed = _unpack_challenge(text)
        head = packed[:_HEAD_BYTES]
        is_ours = hmac.compare_digest(packed[_HEAD_BYTES:], self._mac(head, holder))
        if not is_ours or self._now_ms() >= int.from_bytes(head[:_TIME_BYTES], "big") + self._ttl_ms:
            raise error("challenge_invalid")
        return packed

    def spend(self, text: str, holder: str) -> None:
        """Check a challenge and spend it, or raise challenge_invalid, also if it was spent before."""
        packed, now_ms = self.check(text, holder), self._now_ms()
        self._drop_expired(now_ms)
        if packed in self._spent:
            raise error("challenge_invalid")
        if len(self._spent) >= self._max_spent:
            raise error("requests_exhausted", limit=self._max_spent)
        self._spent[packed] = now_ms + self._ttl_ms

    def _mac(self, head: bytes, holder: str) -> bytes:
        return hashlib.blake2b(head + holder.encode(), digest_size=_MAC_BYTES, key=self._secret).digest()

    def _drop_expired(self, now_ms: int) -> None:
        while self._spent:
            challenge, until_ms = next(iter(self._spent.items()))
            if until_ms > now_ms:
                return
            del self._spent[challenge]

    def _now_ms(self) -> int:
        return self._clock.boot_ns() // MILLISECOND_NS


def _unpack_challenge(text: str) -> bytes:
    if len(text) == 2 * (_HEAD_BYTES + _MAC_BYTES) and text.isascii() and text == text.lower():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise error("challenge_invalid")


FRESH_NS = CREATED_AT_MAX_AHEAD_NS  # in both directions: a node whose clock may publish may also log in


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


TOKENS_PER_NODE = 16  # enough for the processes of one node; a further token replaces the node's oldest
MAX_TOKENS = 100_000  # about 50 MB; a further token replaces the oldest of the address that holds the most


@dataclass(frozen=True, slots=True)
class Token:
    """A new token; the relay itself keeps only its hash."""

    text: str
    expires_at_ns: int

    def __repr__(self) -> str:
        return f"Token(expires_at_ns={self.expires_at_ns})"


@dataclass(frozen=True, slots=True)
class _Held:
    node: str
    address: str
    expires_boot_ns: int


class Tokens:
    """The valid tokens."""

    def __init__(self, clock: Clock, *, ttl_s: int = TOKEN_TTL_S, max_tokens: int = MAX_TOKENS) -> None:
        self._clock = clock
        self._ttl_ns = ttl_s * SECOND_NS
        self._max_tokens = max_tokens
        #: by hash, oldest first: all have the same lifetime, so the first is the next to expire
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._of_node: dict[str, OrderedDict[bytes, None]] = {}
        self._of_address: dict[str, OrderedDict[bytes, None]] = {}
        #: (minus a number of tokens, address): for each address at least one number that is not too small
        self._heaviest: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._held)

    def issue(self, node: str, address: str | None = None) -> Token:
        """Return a new token for `node`, which asks from an address."""
        home = address or ""
        now_ns = self._clock.boot_ns()
        self._expire(now_ns)
        mine = self._of_node.get(node)
        if mine is not None and len(mine) >= TOKENS_PER_NODE:
            self._drop(next(iter(mine)))
        elif len(self._held) >= self._max_tokens:
            self._drop(self._oldest_of_heaviest(home))
        text = new_token()
        digest = _token_digest(text)
        self._held[digest] = _Held(node, home, now_ns + self._ttl_ns)
        self._of_node.setdefault(node, OrderedDict())[digest] = None
        self._of_address.setdefault(home, OrderedDict())[digest] = None
        self._note_weight(home)
        return Token(text, self._clock.wall_ns() + self._ttl_ns)

    def node_of(self, text: str) -> str:
        """Return the node of a token, or raise token_invalid."""
        held = self._held.get(_token_digest(text))
        if held is None or held.expires_boot_ns <= self._clock.boot_ns():
            raise error("token_invalid")
        return held.node

    def _note_weight(self, address: str) -> None:
        """Note how many tokens an address holds now; drop outdated numbers once there are more of them than tokens."""
        heap = self._heaviest
        heapq.heappush(heap, (-len(self._of_address[address]), address))
        if len(heap) > 2 * len(self._held):
            heap[:] = [(-len(digests), each) for each, digests in self._of_address.items()]
            heapq.heapify(heap)

    def _oldest_of_heaviest(self, home: str) -> bytes:
        """Return the oldest token of the address that holds the most; with equal numbers, of the one that asks."""
        heap = self._heaviest
        while len(self._of_address.get(heap[0][1], ())) < -heap[0][0]:  # some of its tokens have expired since
            address = heapq.heappop(heap)[1]
            if address in self._of_address:
                heapq.heappush(heap, (-len(self._of_address[address]), address))
        own = self._of_address.get(home)
        heaviest = self._of_address[heap[0][1]]
        return next(iter(own if own is not None and len(own) >= len(heaviest) else heaviest))

    def _expire(self, now_ns: int) -> None:
        while self._held:
            digest, held = next(iter(self._held.items()))
            if held.expires_boot_ns > now_ns:
                return
            self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        held = self._held.pop(digest)
        for digests_of, owner in ((self._of_node, held.node), (self._of_address, held.address)):
            del digests_of[owner][digest]
            if not digests_of[owner]:
                del digests_of[owner]


def _token_digest(text: str) -> bytes:
    # header bytes that are not UTF-8 arrive as surrogates: such a token is unknown and must not raise
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
