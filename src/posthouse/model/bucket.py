"""A token bucket: a steady rate with room for a burst, as a pure rule over a small frozen state.

Tokens are counted in billionths, so that refilling is exact integer arithmetic over nanoseconds: rate per
second times elapsed nanoseconds. Time is boot time; a step back counts as no time passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.model.limits import SECOND_NS


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second, and how many may be saved up."""

    per_s: int
    burst: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one key has left."""

    #: billionths of a token
    level: int
    at_ns: int


def full_bucket(rate: Rate, now_ns: int) -> Bucket:
    """Return the bucket of a key that was not seen before."""
    return Bucket(rate.burst * SECOND_NS, now_ns)


def take(bucket: Bucket, rate: Rate, now_ns: int, tokens: int = 1) -> tuple[Bucket, int]:
    """Take tokens: return the new bucket and 0, or the refilled bucket and the nanoseconds until they are there.

    More tokens than the burst are never there at once; they are granted to a full bucket and leave it in debt.
    """
    elapsed = max(0, now_ns - bucket.at_ns)
    level = min(rate.burst * SECOND_NS, bucket.level + elapsed * rate.per_s)
    at_ns = max(now_ns, bucket.at_ns)
    needed = min(tokens, rate.burst) * SECOND_NS
    if level >= needed:
        return Bucket(level - tokens * SECOND_NS, at_ns), 0
    return Bucket(level, at_ns), -(-(needed - level) // rate.per_s)


def is_full(bucket: Bucket, rate: Rate, now_ns: int) -> bool:
    """Tell whether the bucket would be full by now, so that its key may be forgotten."""
    return bucket.level + max(0, now_ns - bucket.at_ns) * rate.per_s >= rate.burst * SECOND_NS
