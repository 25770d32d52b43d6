"""Figures of a made-up week, with names that agents choose to do harm."""

from __future__ import annotations

import math
from random import Random

from posthouse.pipeline.report.figures import (
    AgentHealth,
    AuditSummary,
    Contention,
    Cost,
    Edge,
    Figures,
    Hour,
    Latency,
    Ranked,
    SlowAnswer,
    Totals,
    Trace,
    TraceStep,
)

FIRST_HOUR = 20_514 * 24
HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror=alert(1)>',
    "</svg></style><h1>gone</h1>",
    "a" * 120,
    "name\u202egnihtyna\x00\x1b[31m",
)
NAMES = (
    "planner",
    "coder",
    "reviewer",
    "tester",
    "librarian",
    "herald",
    "smith",
    "scout",
    "treasurer",
    "surveyor",
    "scribe",
)
RECORDS = ("message.accepted", "delivery.sent", "delivery.confirmed")
HOUR_NS = 3_600_000_000_000
MODELS = ("granite-large", "granite-small", "heron-2", "heron-2-mini")


def make_sample(names: tuple[str, ...] = NAMES, days: int = 7, audit: AuditSummary | None = None) -> Figures:
    """Return figures of so many days."""
    rng = Random(7)
    hours, latency = [], []
    for number in range(days * 24):
        busy = max(0.0, math.sin((number % 24 - 6) / 24 * 2 * math.pi)) ** 2 * rng.uniform(0.6, 1.3)
        for source, size in (("relay", 34), ("bus", 22)):
            messages = round(size * busy)
            opened, failed = round(messages * 1.6), round(messages * rng.uniform(0, 0.2))
            hours.append(Hour(FIRST_HOUR + number, source, messages, opened, opened - failed, failed))
            if messages:
                p50 = rng.lognormvariate(6.5 if source == "relay" else 7.5, 0.5)
                p90 = p50 * rng.uniform(3, 60)
                latency.append(Latency(FIRST_HOUR + number, source, messages, p50, p90, p90 * rng.uniform(1.5, 20)))
    return Figures(
        made_at_s=1_773_100_000,
        hours=tuple(hours),
        outcomes=(
            *(Ranked("delivered", 3_702), Ranked("waiting", 41), Ranked("rejected", 38), Ranked("failed", 87)),
            *(Ranked("expired", 122), Ranked("blocked", 9), Ranked("removed", 14)),
        ),
        latency=tuple(latency),
        agents=tuple(_agent(rng, name) for name in names),
        slow_answers=tuple(
            SlowAnswer(names[at], names[-1 - at], 9e6 / (at + 1), f"{at:064x}") for at in range(len(names[:5]))
        ),
        costs=tuple(
            Cost(f"2026-03-{2 + day:02d}", model, rng.uniform(0.2, 3.5) / (at + 1))
            for day in range(min(days, 28))
            for at, model in enumerate(MODELS)
        ),
        spenders=tuple(Ranked(name, 9.5 / (at + 1)) for at, name in enumerate(names[:8])),
        tokens=7_412_345,
        refusals=tuple(
            Ranked(code, 160 // (at + 1))
            for at, code in enumerate(("backpressure", "rate_limited", "circuit_open", "queue_full", "topic_unknown"))
        ),
        refused=tuple(
            Ranked(f"{names[at]} → {names[-1 - at]}", 44 // (at + 1), code)
            for at, code in enumerate(("rate_limited", "backpressure", "circuit_open", "backpressure"))
        ),
        contention=tuple(
            Contention(resource, 60 // (at + 1), 40 // (at + 1), 620_000 // (at + 1), 61_000, 4 - at, 1_900_000)
            for at, resource in enumerate(("deploy/production", "branch/main", "index/rebuild", "ledger/march"))
        ),
        edges={
            "relay": _edges(rng, names),
            "bus": _edges(rng, tuple(f"agents.{name}.inbox" for name in names)),
        },
        audit=audit,
        traces=tuple(
            Trace(f"{at:064x}", tuple(TraceStep(FIRST_HOUR * HOUR_NS + at, what, names[at]) for what in RECORDS))
            for at in range(3)
        ),
        now=Totals(4_012, 6_440, 6_103, 247, 812.0, 61.4, 301, 1_900_000),
        before=Totals(3_870, 6_002, 5_801, 203, 1_204.0, 48.2, 0, 2_100_000),
    )


def _agent(rng: Random, name: str) -> AgentHealth:
    p50 = rng.lognormvariate(6.5, 0.5)
    return AgentHealth(
        name,
        sent=rng.randrange(900),
        received=rng.randrange(900),
        waiting=rng.randrange(3),
        failed=rng.randrange(12),
        p50_ms=p50,
        p90_ms=p50 * 8,
        refused=rng.randrange(40),
        loops_stopped=rng.randrange(2),
        lock_waits=rng.randrange(9),
        lock_wait_ms=41_000,
        answer_ms=p50 * 30,
        cost_usd=rng.uniform(0, 12),
    )


def _edges(rng: Random, names: tuple[str, ...]) -> tuple[Edge, ...]:
    pairs = [(a, b) for a in names for b in names if a != b and rng.random() < 0.8]
    found = [Edge(a, b, max(1, round(rng.lognormvariate(2.2, 1.1)))) for a, b in pairs]
    return tuple(sorted(found, key=lambda edge: -edge.deliveries))
