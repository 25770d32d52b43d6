"""What sending through a daemon has to reach."""

from __future__ import annotations

from posthouse.bench.requirement import Requirement

REQUIRED = (
    Requirement("synced sends/s over the socket, 64 in flight", "accept", "per_s", "at least", 3_000),
    Requirement("one at a time, of bare commits", "single", "ratio", "at least", 0.3),
    Requirement("from one host to the inbox of another, idle, p50 ms", "latency", "p50_ms", "at most", 15),
    Requirement("10,000 waiting rows, drained/s", "drain", "per_s", "at least", 2_500),
    Requirement("sends/s while draining, of sends/s without", "drain", "accept_share", "at least", 0.7),
)
