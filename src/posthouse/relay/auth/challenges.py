"""Challenges: 32 bytes that one key may answer once, within a minute.

A challenge carries its time and a keyed hash over the node (or connection) it was given to, so giving one out
takes no memory: nobody can exhaust the relay by asking. Only answered ones are remembered, until they would have
expired anyway. The key of the hash is made anew by each process: a challenge of another relay, or of
this one before a restart, is nothing here.

    challenge = milliseconds (6 bytes) || random (10) || BLAKE2b-128 keyed, over those 16 bytes and the holder
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import CHALLENGE_TTL_S, MILLISECOND_NS

_TIME_BYTES = 6
_RANDOM_BYTES = 10
_MAC_BYTES = 16
_HEAD_BYTES = _TIME_BYTES + _RANDOM_BYTES
MAX_SPENT = 100_000  # answered within one minute; beyond that answers are refused, never remembered less


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge as it is told, and when it ends on the wall clock."""

    text: str
    expires_at_ns: int


class Challenges:
    """Gives out challenges and lets each be spent once by its holder."""

    def __init__(self, clock: Clock, *, ttl_s: int = CHALLENGE_TTL_S, max_spent: int = MAX_SPENT) -> None:
        self._clock = clock
        self._ttl_ms = ttl_s * 1_000
        self._max_spent = max_spent
        self._secret = secrets.token_bytes(32)
        #: challenge -> the millisecond of boot time after which it may be forgotten, oldest first
        self._spent: OrderedDict[bytes, int] = OrderedDict()

    def issue(self, holder: str) -> Challenge:
        """Return a fresh challenge that only `holder` (a node id, or the name of a connection) can spend."""
        head = self._now_ms().to_bytes(_TIME_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
        expires_at_ns = self._clock.wall_ns() + self._ttl_ms * MILLISECOND_NS
        return Challenge((head + self._mac(head, holder)).hex(), expires_at_ns)

    def spend(self, text: str, holder: str) -> None:
        """Take the challenge, or raise challenge_invalid: forged, of another holder, too old, or spent before."""
        packed = _unpack(text)
        head = packed[:_HEAD_BYTES]
        is_ours = hmac.compare_digest(packed[_HEAD_BYTES:], self._mac(head, holder))
        now_ms = self._now_ms()
        expires_ms = int.from_bytes(head[:_TIME_BYTES], "big") + self._ttl_ms
        self._forget(now_ms)
        if not is_ours or now_ms >= expires_ms or packed in self._spent:
            raise error("challenge_invalid")
        if len(self._spent) >= self._max_spent:
            raise error("requests_exhausted", limit=self._max_spent)
        self._spent[packed] = now_ms + self._ttl_ms

    def _mac(self, head: bytes, holder: str) -> bytes:
        return hashlib.blake2b(head + holder.encode(), digest_size=_MAC_BYTES, key=self._secret).digest()

    def _forget(self, now_ms: int) -> None:
        while self._spent:
            challenge, until_ms = next(iter(self._spent.items()))
            if until_ms > now_ms:
                return
            del self._spent[challenge]

    def _now_ms(self) -> int:
        return self._clock.boot_ns() // MILLISECOND_NS


def _unpack(text: str) -> bytes:
    if len(text) == 2 * (_HEAD_BYTES + _MAC_BYTES) and text.isascii() and text == text.lower():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise error("challenge_invalid")
