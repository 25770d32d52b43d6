"""What every measurement of the bus shares: limits, payload, subject, and how a run of numbers is summed up.

The safety rules stay switched on; their limits are raised out of the way, and the report prints them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posthouse.model.reliability import Backpressure, CircuitBreaker, RateLimit, Reliability

PAYLOAD = {"content": "x" * 240}  # 256 bytes of JSON
PAYLOAD_BYTES = 256
SUBJECT = "bench.target"
SENDER = "bench.sender"

LIMITS = Reliability(
    rate_limit=RateLimit(max_per_window=1_000_000_000),
    circuit_breaker=CircuitBreaker(),
    backpressure=Backpressure(max_mailbox_size=100_000_000),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done; `quick` is for tests and a first look."""

    #: per round
    messages: int = 500
    rounds: int = 21
    latency_messages: int = 1_000
    waiting: int = 10_000
    rebuild_files: int = 10_000
    fan_out_publishes: int = 10
    memory_publishes: int = 1_000_000


QUICK = Scale(
    messages=200,
    rounds=5,
    latency_messages=100,
    waiting=1_000,
    rebuild_files=1_000,
    fan_out_publishes=3,
    memory_publishes=4_000,
)


def median(values: Sequence[float]) -> float:
    """Return the middle value: one disturbed round moves it little."""
    return statistics.median(values)


def median_ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """Return the middle of the rounds' ratios: what else the machine did in a round hit both."""
    return round(statistics.median(mine / other for mine, other in zip(ours, bare, strict=True)), 3)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
