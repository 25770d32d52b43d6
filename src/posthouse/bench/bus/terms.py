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

    messages: int = 4_000
    rounds: int = 5
    latency_messages: int = 1_000
    waiting: int = 10_000
    rebuild_files: int = 10_000
    fan_out_publishes: int = 60
    memory_publishes: int = 1_000_000


QUICK = Scale(
    messages=300,
    rounds=2,
    latency_messages=100,
    waiting=1_000,
    rebuild_files=1_000,
    fan_out_publishes=6,
    memory_publishes=4_000,
)


def median(values: Sequence[float]) -> float:
    """Return the middle value: one disturbed round moves it little."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
