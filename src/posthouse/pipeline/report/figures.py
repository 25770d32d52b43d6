"""The figures of the report page, as plain values; their size does not grow with the history."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hour:
    """Traffic of one source in one hour; deliveries are in their current state."""

    #: Hours since 1970.
    hour: int
    source: str
    messages: int
    deliveries: int
    delivered: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Latency:
    """Delivery latency of one source in one hour."""

    hour: int
    source: str
    deliveries: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


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
class AgentHealth:
    """The health of one agent."""

    agent: str
    sent: int = 0
    received: int = 0
    waiting: int = 0
    failed: int = 0
    #: p50 and p90 of the median hour; the longest of all hours.
    p50_ms: float | None = None
    p90_ms: float | None = None
    max_ms: float | None = None
    refused: int = 0
    loops_stopped: int = 0
    lock_waits: int = 0
    lock_wait_ms: int = 0
    #: Median time to answer a message, and the number of answers.
    answer_ms: float | None = None
    answers: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True)
class SlowAnswer:
    """A message that was answered late."""

    agent: str
    asker: str
    answer_ms: float
    #: The message that was answered.
    message_id: str


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
class FoundDetail:
    """A finding of the audit, and the message that it is about, if it has a trace on the page."""

    code: str
    detail: str
    message_id: str = ""


@dataclass(frozen=True)
class AuditSummary:
    """The result of the audit: findings by code, each with its meaning as note, and the first findings."""

    rows: int
    findings: tuple[Ranked, ...] = ()
    details: tuple[FoundDetail, ...] = ()
    events: int = 0
    seals: int = 0


@dataclass(frozen=True)
class TraceStep:
    """One record about a message."""

    at_ns: int
    #: The type of the record.
    what: str
    who: str
    detail: str = ""


@dataclass(frozen=True)
class Trace:
    """The records about one message, oldest first."""

    message_id: str
    steps: tuple[TraceStep, ...]


@dataclass(frozen=True)
class Totals:
    """The figures of a period that the page compares with the previous period."""

    messages: int = 0
    deliveries: int = 0
    delivered: int = 0
    failed: int = 0
    latency_ms: float | None = None
    cost_usd: float = 0.0
    refused: int = 0
    lock_wait_ms: int = 0


@dataclass(frozen=True)
class Figures:
    """All figures of the page."""

    #: Unix seconds.
    made_at_s: float
    #: The filters of the page, such as `mesh main`; empty if it shows everything.
    limits: tuple[str, ...] = ()
    hours: tuple[Hour, ...] = ()
    outcomes: tuple[Ranked, ...] = ()
    latency: tuple[Latency, ...] = ()
    agents: tuple[AgentHealth, ...] = ()
    slow_answers: tuple[SlowAnswer, ...] = ()
    costs: tuple[Cost, ...] = ()
    spenders: tuple[Ranked, ...] = ()
    conversations: tuple[Ranked, ...] = ()
    tasks: tuple[Ranked, ...] = ()
    tokens: int = 0
    refusals: tuple[Ranked, ...] = ()
    refused: tuple[Ranked, ...] = ()
    contention: tuple[Contention, ...] = ()
    #: Source -> edges, largest first.
    edges: dict[str, tuple[Edge, ...]] = field(default_factory=dict)
    #: None: not audited.
    audit: AuditSummary | None = None
    traces: tuple[Trace, ...] = ()
    now: Totals = Totals()
    #: The preceding period of the same length; None: nothing to compare with.
    before: Totals | None = None
