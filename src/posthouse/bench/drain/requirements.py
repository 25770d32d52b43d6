"""What queues have to reach."""

from __future__ import annotations

from posthouse.bench.requirement import Requirement

REQUIRED = (
    Requirement("1,000 queued for one reader, confirmed/s", "one_reader", "per_s", "at least", 10_000, 20_000),
    Requirement("50 readers with 1,000 each, confirmed/s", "crowd", "per_s", "at least", 12_000, 25_000),
    Requirement("a message in a queue of 1,000, of one in a queue of 10", "depth", "drain_cost", "at most", 1.2),
    Requirement("sending into a queue of 1,000, of one of 10", "depth", "send_cost", "at most", 1.2),
    Requirement("sending to who is away, of publishing the same", "sending", "cost", "at most", 1.25),
)
