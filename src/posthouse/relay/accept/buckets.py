"""Rates per key: a token bucket each, in boot time, within bounded memory.

A key whose bucket is full again is forgotten first. Beyond that the keys seen longest ago go: they get their burst
anew, which costs less than a memory that anybody with enough keys could fill.
"""

from __future__ import annotations

from posthouse.model.bucket import Bucket, Rate, full_bucket, is_full, take
from posthouse.model.limits import SECOND_NS

MAX_KEYS = 65_536  # about 16 MB


class Buckets:
    """The buckets of all keys under one rate."""

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS) -> None:
        self.rate = rate
        self._max_keys = max_keys
        self._buckets: dict[str, Bucket] = {}

    def take(self, key: str, now_ns: int, tokens: int = 1) -> int:
        """Take tokens; return 0, or the nanoseconds until they are there."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._max_keys:
                self._forget(now_ns)
            bucket = full_bucket(self.rate, now_ns)
        self._buckets[key], wait_ns = take(bucket, self.rate, now_ns, tokens)
        return wait_ns

    def give_back(self, key: str, tokens: int = 1) -> None:
        """Return tokens: what they were taken for had been paid before."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            level = min(bucket.level + tokens * SECOND_NS, self.rate.burst * SECOND_NS)
            self._buckets[key] = Bucket(level, bucket.at_ns)

    def __len__(self) -> int:
        return len(self._buckets)

    def _forget(self, now_ns: int) -> None:
        kept = {key: bucket for key, bucket in self._buckets.items() if not is_full(bucket, self.rate, now_ns)}
        if len(kept) > self._max_keys // 2:
            newest = sorted(kept.items(), key=lambda entry: entry[1].at_ns)[-(self._max_keys // 2) :]
            kept = dict(newest)
        self._buckets = kept
