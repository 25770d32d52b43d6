"""What the page shows, as plain values: small however long the history is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hour:
    """Traffic of one hour and source."""

    #: hours since 1970
    hour: int
    source: str
    messages: int
    deliveries: int


@dataclass(frozen=True)
class Latency:
    """How long deliveries of one hour took."""

    hour: int
    source: str
    deliveries: int
    p50_ms: float
    p90_ms: float


@dataclass(frozen=True)
class Cost:
    """What a day cost on one model."""

    day: str
    model: str
    cost_usd: float


@dataclass(frozen=True)
class Ranked:
    """A name with a figure, largest first."""

    name: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Contention:
    """How a resource was fought over."""

    resource: str
    grants: int
    waits: int
    wait_ms: int
    wait_ms_max: int
    take_overs: int
    held_ms: int


@dataclass(frozen=True)
class Edge:
    """How much one sent to another."""

    sender: str
    recipient: str
    deliveries: int


@dataclass(frozen=True)
class AuditSummary:
    """What the audit found; `findings` by code with its meaning."""

    rows: int
    findings: tuple[Ranked, ...] = ()


def middle(values: Iterable[tuple[float, int]]) -> float | None:
    """Return the value in the middle when each counts as often as its weight says; a mean would follow the nights."""
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
    """Everything on the page."""

    #: unix seconds
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
    #: source -> edges, largest first
    edges: dict[str, tuple[Edge, ...]] = field(default_factory=dict)
    #: None: not audited
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
