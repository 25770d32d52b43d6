"""Proposed rules of a bus, and their decisions over the history of one sender or one mailbox. Pure, runs in workers.

A proposal is a config.json as a bus reads it (it may also hold `budget`: {maxHops, ttlMs, callBudget, cycleRule})
and an access-rules.json. Budget and access that it does not name stay as they were decided. The rate limit is a fold
over one sender's publishes; access, back-pressure, breaker and budget are a fold over one mailbox, in the order of
the original decisions. A message that the proposal refuses was never there. A message that it lets through although
it was refused has no recorded end: it leaves with the next message that ends there, or at once when none is waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from posthouse.model import breaker
from posthouse.model.access_rules import AccessRules, parse_rules
from posthouse.model.breaker import BreakerState, Circuit
from posthouse.model.budget import Budget, BudgetCeiling, CycleRule, check_budget, effective_budget
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import BUS_CALL_BUDGET, BUS_MAX_HOPS, BUS_TTL_MS
from posthouse.model.rate import check_rate_log, window_start_ns
from posthouse.model.reliability import RateLimit, Reliability, check_pressure, merge_reliability


class BudgetProposal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The bounds of budgets, as Bus takes them."""

    max_hops: int = BUS_MAX_HOPS
    ttl_ms: int = BUS_TTL_MS
    call_budget: int = BUS_CALL_BUDGET
    cycle_rule: CycleRule = "chain"

    @property
    def ceiling(self) -> BudgetCeiling:
        return BudgetCeiling(max_hops=self.max_hops, ttl_ms=self.ttl_ms, call_budget=self.call_budget)


@dataclass(frozen=True)
class Proposal:
    """Everything that decides; None leaves a question as it was decided."""

    reliability: Reliability
    rules: AccessRules | None = None
    budget: BudgetProposal | None = None


class _File(msgspec.Struct):
    budget: BudgetProposal | None = None


def read_proposal(config: Path | None, rules: Path | None) -> Proposal:
    """Read the files, or raise what is wrong with them."""
    reliability, budget = Reliability(), None
    if config is not None:
        data = _read(config)
        reliability = merge_reliability(reliability, data)
        budget = _read_budget(data)
    return Proposal(reliability, None if rules is None else parse_rules(_read(rules)), budget)


def _read_budget(data: bytes) -> BudgetProposal | None:
    try:
        budget = msgspec.json.decode(data, type=_File).budget
        if budget is not None:
            _ = budget.ceiling  # its bounds are checked when it is made
    except (msgspec.MsgspecError, PosthouseError) as fault:
        raise error("reliability_invalid", reason=str(fault)) from fault
    return budget


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as failure:
        raise error("config_unreadable", path=str(path), reason=failure.strerror or str(failure)) from failure


RATE_LIMITED = "rate_limited"
BOOTED = "booted"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A copy of a publish, or equal ones that were refused at one moment."""

    kind: str
    seq: int
    boot_ns: int
    id: str
    sender: str
    #: what was asked for: may be a wildcard
    said_to: str
    #: the endpoint's own subject
    subject: str
    place: str | None
    rated: bool
    #: the code of the refusal in life
    was: str | None
    was_times: int
    minute: int
    created_ms: int
    budget: str | None
    #: seq of the record
    record: int
    would: str | None = None
    would_times: int = 0
    text: str | None = None

    @property
    def order(self) -> tuple[int, int, int, str, int]:
        """The order of decisions.

        Within one moment nothing is freed, so what was let through comes first, then what counted for the rate and
        was refused after that, last what the rate refused: each then meets at least what it met in life.
        """
        rank = 0 if self.kind != "refused" else 2 if self.was == RATE_LIMITED else 1
        return self.seq, self.boot_ns, rank, self.id, self.record

    def refused(self, code: str, times: int, text: str | None) -> Attempt:
        """Return the row with its verdict."""
        return replace(self, would=code, would_times=times, text=text)


def simulate_sender(rows: Sequence[Attempt], boots: Sequence[int], config: RateLimit) -> Iterator[Attempt]:
    """Yield every attempt with what the rate limit would have said."""
    log: list[int] = []
    former: Attempt | None = None
    left = sorted(boots)
    for row in sorted(rows, key=lambda row: row.order):
        while left and left[0] <= row.seq:  # the window of another boot means nothing
            left.pop(0)
            log.clear()
        if not row.rated:
            yield row
        elif former is not None and row.id and former.id == row.id:
            yield row if former.would is None else row.refused(former.would, 0, former.text)
        else:
            for judged in _apply_rate_limit(row, log, config):
                former = judged
                yield judged


def _apply_rate_limit(row: Attempt, log: list[int], config: RateLimit) -> Iterator[Attempt]:
    """Judge a row that may stand for several publishes; what passes and what does not become a row each."""
    passed, text = 0, None
    times = max(1, row.was_times)
    while passed < times:
        verdict = check_rate_log(log, row.sender, row.boot_ns, config)
        if not verdict.allowed:
            text = verdict.text
            break
        log.append(row.boot_ns)
        passed += 1
    _forget(log, row.boot_ns, config)
    if row.was is None:
        yield row if text is None else row.refused(RATE_LIMITED, 1, text)
        return
    if passed:
        yield replace(row, was_times=passed)
    if passed < times:
        yield replace(row, was_times=times - passed).refused(RATE_LIMITED, times - passed, text)


def _forget(log: list[int], now_ns: int, config: RateLimit) -> None:
    """Drop what has left the window, now and then: a fold over years must not carry them all."""
    if len(log) > 4096 and log[0] <= (horizon := window_start_ns(now_ns, config)):
        log[:] = [at_ns for at_ns in log if at_ns > horizon]


def attempt_of(values: dict[str, Any]) -> Attempt:
    """Return the attempt in a row of a table."""
    return Attempt(**{name: values[name] for name in Attempt.__slots__})


ACCESS_DENIED, BACKPRESSURE = "access_denied", "backpressure"
CIRCUIT_OPEN, BUDGET_EXCEEDED = "circuit_open", "budget_exceeded"
_decode_budget = msgspec.json.Decoder(Budget).decode


@dataclass(frozen=True, slots=True)
class Change:
    """A record that changed the mailbox without a rule deciding."""

    kind: str
    seq: int
    boot_ns: int
    id: str


@dataclass(slots=True)
class Mailbox:
    """What the rules know of a mailbox."""

    proposal: Proposal
    #: ids of the messages in it
    present: set[str] = field(default_factory=set)
    #: messages that were refused in life
    guests: int = 0
    breaker: BreakerState = field(default_factory=BreakerState)
    is_served: bool = False
    boots: int = 0

    @property
    def depth(self) -> int:
        return len(self.present) + self.guests

    @property
    def boot_id(self) -> str:
        return str(self.boots)


def simulate_mailbox(rows: Sequence[Attempt], changes: Sequence[Change], proposal: Proposal) -> Iterator[Attempt]:
    """Yield every attempt with what the rules would have said."""
    box = Mailbox(proposal)
    left = sorted(changes, key=lambda change: (change.seq, change.kind == BOOTED))
    place = 0
    for row in sorted(rows, key=lambda row: row.order):
        while place < len(left) and left[place].seq <= row.seq:
            _apply(box, left[place])
            place += 1
        yield from _apply_mailbox_rules(box, row)


def _apply_mailbox_rules(box: Mailbox, row: Attempt) -> Iterator[Attempt]:
    """Judge a row that may stand for several; what passes and each way of not passing become a row."""
    times = max(1, row.was_times)
    verdicts: dict[tuple[str, str] | None, int] = {}
    for _ in range(times):
        verdict = _verdict(box, row)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        if verdict is None:
            _let_in(box, row)
    for verdict, count in verdicts.items():
        part = row if row.was is None else replace(row, was_times=count)
        yield part if verdict is None else part.refused(verdict[0], count, verdict[1])


def _verdict(box: Mailbox, row: Attempt) -> tuple[str, str] | None:
    """Return which rule refuses and its text, in the order of the bus."""
    denied = _denial(box.proposal, row)
    if denied is not None:
        return ACCESS_DENIED, denied
    config = box.proposal.reliability
    pressure = check_pressure(box.depth, config.backpressure)
    if pressure.text is not None:
        return BACKPRESSURE, pressure.text
    if box.breaker.circuit is not Circuit.CLOSED:
        box.breaker, may_pass = breaker.admit(box.breaker, config.circuit_breaker, row.boot_ns, box.boot_id)
        if not may_pass:
            return CIRCUIT_OPEN, breaker.refusal_text(row.place or "")
    spent = _overspent(box.proposal, row)
    if spent is not None:
        if box.breaker.circuit is Circuit.HALF_OPEN:
            box.breaker = breaker.withdraw(box.breaker)
        return BUDGET_EXCEEDED, spent
    return None


def _denial(proposal: Proposal, row: Attempt) -> str | None:
    if proposal.rules is None:
        return row.text or "access denied" if row.was == ACCESS_DENIED else None
    rule = proposal.rules.deciding_rule(row.sender, row.subject)
    if rule is None or proposal.rules.allows(row.sender, row.subject):
        return None
    return f"access denied: the rule from {rule.from_} to {rule.to} keeps {row.sender} from {row.subject}"


def _overspent(proposal: Proposal, row: Attempt) -> str | None:
    if proposal.budget is None:
        return row.text or "budget exceeded" if row.was == BUDGET_EXCEEDED else None
    if row.budget is None:  # refused before its budget mattered: taken for a fresh one
        return None
    budget = effective_budget(proposal.budget.ceiling, row.created_ms, _decode_budget(row.budget))
    return check_budget(budget, row.subject, row.created_ms, proposal.budget.cycle_rule)


def _let_in(box: Mailbox, row: Attempt) -> None:
    if row.was is None:
        box.present.add(row.id)
    elif box.present:
        box.guests += 1


def _apply(box: Mailbox, change: Change) -> None:
    """Follow one record."""
    kind, config = change.kind, box.proposal.reliability.circuit_breaker
    if kind == BOOTED:
        box.boots += 1
    elif kind == "unregistered":
        box.present, box.guests, box.breaker, box.is_served = set(), 0, BreakerState(), False
    elif kind in ("served", "reset"):
        box.breaker, box.is_served = BreakerState(boot_id=box.boot_id), box.is_served or kind == "served"
    elif kind == "left":
        box.is_served = False
    elif kind == "adopted":
        box.present.add(change.id)
    elif change.id in box.present:
        if kind == "closed":
            if not box.is_served:
                box.breaker = breaker.record_success(box.breaker, config, box.boot_id)
            return
        box.present.discard(change.id)
        box.guests = 0
        if kind == "handled":
            box.breaker = breaker.record_success(box.breaker, config, box.boot_id)
        elif kind in ("failed", "withdrawn"):
            box.breaker = breaker.record_failure(box.breaker, config, change.boot_ns, box.boot_id)
