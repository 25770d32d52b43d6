"""Rates of the accept path as token buckets in boot time, within bounded memory: of keys, strangers and meshes.

A key has a bucket under a rate that all keys share. An address is charged for the work that keys without rights cause.
A mesh with limits has buckets for the events and the bytes of all its members together; they hold the tokens of five
seconds, so that short bursts pass. Relays that share a store divide every rate: each grants its part, so that all of
them together never grant more than the rate.
"""

from __future__ import annotations

from collections.abc import Container

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.rate import Bucket, Rate, full_bucket, is_full, take

MAX_KEYS = 65_536  # about 16 MB


class RateShare:
    """The part of each rate that this relay grants; one object for all buckets of a relay."""

    def __init__(self) -> None:
        #: how many relays of the store are alive
        self.relays = 1

    def of(self, rate: Rate) -> Rate:
        """Return this relay's part of a rate, at least one token."""
        if self.relays == 1:
            return rate
        return Rate(max(1, rate.per_s // self.relays), max(1, rate.burst // self.relays))


class RateBuckets:
    """The token buckets of all keys under one rate."""

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS, *, share: RateShare | None = None) -> None:
        self.whole_rate = rate
        self._share = share or RateShare()
        self._max_keys = max_keys
        #: of the keys that took tokens recently
        self.by_key: dict[str, Bucket] = {}

    @property
    def rate(self) -> Rate:
        """The rate that this relay grants."""
        return self._share.of(self.whole_rate)

    def take(self, key: str, now_ns: int, tokens: int = 1) -> int:
        """Take tokens and return 0, or return the nanoseconds until there are enough."""
        bucket, rate = self.by_key.get(key), self.rate
        if bucket is None:
            if len(self.by_key) >= self._max_keys:
                self._drop_full(now_ns)
            bucket = full_bucket(rate, now_ns)
        self.by_key[key], wait_ns = take(bucket, rate, now_ns, tokens)
        return wait_ns

    def wait_ns(self, key: str, now_ns: int) -> int:
        """Return the nanoseconds until a key has a token, without taking it."""
        bucket = self.by_key.get(key)
        return 0 if bucket is None else take(bucket, self.rate, now_ns)[1]

    def give_back(self, key: str, tokens: int = 1) -> None:
        """Give tokens back: their event turned out to be free."""
        bucket = self.by_key.get(key)
        if bucket is not None:
            level = min(bucket.level + tokens * SECOND_NS, self.rate.burst * SECOND_NS)
            self.by_key[key] = Bucket(level, bucket.at_ns)

    def __len__(self) -> int:
        return len(self.by_key)

    def _drop_full(self, now_ns: int) -> None:
        rate = self.rate
        kept = {key: bucket for key, bucket in self.by_key.items() if not is_full(bucket, rate, now_ns)}
        if len(kept) > self._max_keys // 2:
            newest = sorted(kept.items(), key=lambda entry: entry[1].at_ns)[-(self._max_keys // 2) :]
            kept = dict(newest)
        self.by_key.clear()
        self.by_key.update(kept)


STRANGER_RATE = Rate(20, 500)  # refused events and logins of one address: room for a mistake, not for a flood


class Strangers:
    """Charges an address, or an authenticated node, for the work that keys without rights cause."""

    def __init__(self, clock: Clock, share: RateShare, rate: Rate = STRANGER_RATE) -> None:
        self._clock = clock
        self._buckets = RateBuckets(rate, share=share)
        #: payers that may have nothing left
        self.charged: Container[str | None] = self._buckets.by_key

    def check(self, payer: str | None) -> None:
        """Raise stranger_rate_exceeded if a payer has nothing left."""
        wait_ns = 0 if payer is None else self._buckets.wait_ns(payer, self._clock.boot_ns())
        if wait_ns:
            wait_s = -(-wait_ns // MILLISECOND_NS) / 1000
            raise error("stranger_rate_exceeded", payer=payer, rate=self._buckets.rate.per_s, retry_after_s=wait_s)

    def charge(self, payer: str | None) -> None:
        """Take a token of a payer, if it has one."""
        if payer is not None:
            self._buckets.take(payer, self._clock.boot_ns())

    def give_back(self, payer: str | None) -> None:
        """Give a token back, because the key turned out to have rights."""
        if payer is not None:
            self._buckets.give_back(payer)


_BURST_S = 5


class MeshRates:
    """The buckets of all meshes with a rate."""

    def __init__(self, share: RateShare) -> None:
        self._share = share
        #: (mesh, what is counted) -> bucket
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def charge(self, mesh: str, limits: MeshLimits, size: int, now_ns: int) -> PosthouseError | None:
        """Take the tokens of one event of so many bytes, or return mesh_rate_limited."""
        taken: dict[tuple[str, str], Bucket] = {}
        for what, per_s, tokens in _rates(limits, size):
            rate = self._share.of(Rate(per_s, per_s * _BURST_S))
            bucket = self._buckets.get((mesh, what)) or full_bucket(rate, now_ns)
            taken[mesh, what], wait_ns = take(bucket, rate, now_ns, tokens)
            if wait_ns:
                wait_s = -(-wait_ns // MILLISECOND_NS) / 1000
                return error("mesh_rate_limited", mesh=mesh, rate=per_s, what=what, retry_after_s=wait_s)
        self._buckets |= taken
        return None

    def give_back(self, mesh: str, limits: MeshLimits, size: int) -> None:
        """Give the tokens of an event back, because it turned out to be free."""
        for what, per_s, tokens in _rates(limits, size):
            if (bucket := self._buckets.get((mesh, what))) is not None:
                level = min(bucket.level + tokens * SECOND_NS, per_s * _BURST_S * SECOND_NS)
                self._buckets[mesh, what] = Bucket(level, bucket.at_ns)


def _rates(limits: MeshLimits, size: int) -> list[tuple[str, int, int]]:
    """Return what is limited: its name, how much per second, and how much an event of this size takes."""
    found = (("events", limits.events_per_s, 1), ("bytes", limits.bytes_per_s, size))
    return [(what, per_s, tokens) for what, per_s, tokens in found if per_s is not None]
