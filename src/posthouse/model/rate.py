"""Rate limits as pure rules: the token bucket of relay and daemon, and the sliding window of the bus.

Bucket: tokens are counted in billionths, so refilling is exact integer arithmetic over nanoseconds. Window: a
publish is allowed while the window that ends now holds fewer than the limit; a refused publish is not counted.
Times are boot times of one boot; a step back counts as no time passed. The text of the bus's refusal is a contract.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from posthouse.model.limits import SECOND_NS
from posthouse.model.reliability import RateLimit


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second, and the maximum that accumulates."""

    per_s: int
    burst: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The remaining tokens of one key."""

    #: billionths of a token
    level: int
    at_ns: int


def full_bucket(rate: Rate, now_ns: int) -> Bucket:
    """Return the bucket of a new key."""
    return Bucket(rate.burst * SECOND_NS, now_ns)


def take(bucket: Bucket, rate: Rate, now_ns: int, tokens: int = 1) -> tuple[Bucket, int]:
    """Take tokens: return the new bucket and 0, or the refilled bucket and the nanoseconds until they are available.

    More tokens than the burst are never available at once; a full bucket grants them and goes negative.
    """
    elapsed = max(0, now_ns - bucket.at_ns)
    level = min(rate.burst * SECOND_NS, bucket.level + elapsed * rate.per_s)
    at_ns = max(now_ns, bucket.at_ns)
    needed = min(tokens, rate.burst) * SECOND_NS
    if level >= needed:
        return Bucket(level - tokens * SECOND_NS, at_ns), 0
    return Bucket(level, at_ns), -(-(needed - level) // rate.per_s)


def is_full(bucket: Bucket, rate: Rate, now_ns: int) -> bool:
    """Return True if the bucket would be full by now, so that its key can be dropped."""
    return bucket.level + max(0, now_ns - bucket.at_ns) * rate.per_s >= rate.burst * SECOND_NS


@dataclass(frozen=True, slots=True)
class RateVerdict:
    """The decision about a publish, and the state of the window."""

    allowed: bool
    count: int
    limit: int
    #: times at or before this one have left the window and can be dropped
    horizon_ns: int
    #: the reason of a refusal, or None
    text: str | None = None


def window_start_ns(now_ns: int, config: RateLimit) -> int:
    """Return the start of the window; a publish at exactly that time has just left it."""
    return now_ns - config.window_secs * SECOND_NS


def check_rate(count: int, sender: str, now_ns: int, config: RateLimit) -> RateVerdict:
    """Decide one publish of a sender that has `count` publishes after window_start_ns."""
    limit = config.limit_for(sender)
    horizon_ns = window_start_ns(now_ns, config)
    if not config.enabled or count < limit:
        return RateVerdict(True, count, limit, horizon_ns)
    text = f"rate limit exceeded: {count}/{limit} messages in {config.window_secs}s window"
    return RateVerdict(False, count, limit, horizon_ns, text)


def check_rate_log(times_ns: Sequence[int], sender: str, now_ns: int, config: RateLimit) -> RateVerdict:
    """Decide one publish from the ascending times of the sender's earlier ones."""
    count = len(times_ns) - bisect_right(times_ns, window_start_ns(now_ns, config))
    return check_rate(count, sender, now_ns, config)
