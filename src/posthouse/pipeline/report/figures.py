"""The figures of the report page, as plain values; their size does not grow with the history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hour:
    """Traffic of one source in one hour."""

    #: Hours since 1970.
    hour: int
    source: str
    messages: int
    deliveries: int


@dataclass(frozen=True)
class Latency:
    """Delivery latency of one source in one hour."""

    hour: int
    source: str
    deliveries: int
    p50_ms: float
    p90_ms: float


@dataclass(frozen=True)
class Cost:
    """Cost of one model on one day."""

    day: str
    model: str
    cost_usd: float


@dataclass(frozen=True)
class Ranked:
    """A name with a figure, for rankings with the largest first."""

    name: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Contention:
    """Contention for one resource."""

    resource: str
    grants: int
    waits: int
    wait_ms: int
    wait_ms_max: int
    take_overs: int
    held_ms: int


@dataclass(frozen=True)
class Edge:
    """Deliveries from one sender to one recipient."""

    sender: str
    recipient: str
    deliveries: int


@dataclass(frozen=True)
class AuditSummary:
    """The result of the audit: findings by code, each with its meaning as note."""

    rows: int
    findings: tuple[Ranked, ...] = ()


def middle(values: Iterable[tuple[float, int]]) -> float | None:
    """Return the weighted median of (value, weight) pairs; quiet nights would distort a mean of hours."""
    ordered = sorted(pair for pair in values if pair[1] > 0)
    half = sum(weight for _, weight in ordered) / 2
    seen = 0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return None


@dataclass(frozen=True)
class Figures:
    """All figures of the page."""

    #: Unix seconds.
    made_at_s: float
    hours: tuple[Hour, ...] = ()
    outcomes: tuple[Ranked, ...] = ()
    latency: tuple[Latency, ...] = ()
    costs: tuple[Cost, ...] = ()
    spenders: tuple[Ranked, ...] = ()
    tokens: int = 0
    refusals: tuple[Ranked, ...] = ()
    refused: tuple[Ranked, ...] = ()
    contention: tuple[Contention, ...] = ()
    #: Source -> edges, largest first.
    edges: dict[str, tuple[Edge, ...]] = field(default_factory=dict)
    #: None: not audited.
    audit: AuditSummary | None = None

    @property
    def messages(self) -> int:
        return sum(hour.messages for hour in self.hours)

    @property
    def deliveries(self) -> int:
        return sum(hour.deliveries for hour in self.hours)

    @property
    def cost_usd(self) -> float:
        return sum(cost.cost_usd for cost in self.costs)
