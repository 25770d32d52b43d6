"""The rate limit of the bus: a sliding window log of the publishes a sender was let through.

A publish is allowed while fewer than the limit lie within the window that ends now; one that is refused leaves no
trace, so a sender that keeps trying is not punished for it. Times are boot times of one boot: the store drops those
of another. The text of the refusal is a contract.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from posthouse.model.limits import SECOND_NS
from posthouse.model.reliability import RateLimit
from posthouse.model.subjects import prefixes


@dataclass(frozen=True, slots=True)
class RateVerdict:
    """Whether a publish is let through, and what the window held."""

    allowed: bool
    count: int
    limit: int
    #: times at or before this one have left the window and may be forgotten
    horizon_ns: int
    #: why not, or None
    text: str | None = None


def limit_for(sender: str, config: RateLimit) -> int:
    """Return the sender's limit: the override with the longest prefix of its subject, else the general one."""
    overrides = config.per_sender_overrides
    if overrides:
        for prefix in prefixes(sender):
            if prefix in overrides:
                return overrides[prefix]
    return config.max_per_window


def window_start_ns(now_ns: int, config: RateLimit) -> int:
    """Return the start of the window; a publish at exactly that time has just left it."""
    return now_ns - config.window_secs * SECOND_NS


def judge_rate(count: int, sender: str, now_ns: int, config: RateLimit) -> RateVerdict:
    """Decide one publish of a sender that has `count` publishes after window_start_ns."""
    limit = limit_for(sender, config)
    horizon_ns = window_start_ns(now_ns, config)
    if not config.enabled or count < limit:
        return RateVerdict(True, count, limit, horizon_ns)
    text = f"rate limit exceeded: {count}/{limit} messages in {config.window_secs}s window"
    return RateVerdict(False, count, limit, horizon_ns, text)


def judge_log(times_ns: Sequence[int], sender: str, now_ns: int, config: RateLimit) -> RateVerdict:
    """Decide one publish from the ascending log of the sender's former ones."""
    count = len(times_ns) - bisect_right(times_ns, window_start_ns(now_ns, config))
    return judge_rate(count, sender, now_ns, config)
