"""Access, back-pressure, breaker and budget over the history of one mailbox: a fold in the order of decisions.

State follows the journal: what was stored and has ended, who served, what failed. A message that the proposal refuses
never was there: its end is ignored. One that it lets through and life refused has no end to follow: it is taken to
leave with the next message that ends there, or at once when none waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from posthouse.model import breaker
from posthouse.model.breaker import BreakerState, Circuit
from posthouse.model.budget import Budget, check_budget, effective_budget
from posthouse.model.pressure import judge_pressure
from posthouse.pipeline.whatif.proposal import Proposal
from posthouse.pipeline.whatif.sender import BOOTED, Attempt

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


def judge_mailbox(rows: Sequence[Attempt], changes: Sequence[Change], proposal: Proposal) -> Iterator[Attempt]:
    """Yield every attempt with what the rules would have said."""
    box = Mailbox(proposal)
    left = sorted(changes, key=lambda change: (change.seq, change.kind == BOOTED))
    place = 0
    for row in sorted(rows, key=lambda row: row.order):
        while place < len(left) and left[place].seq <= row.seq:
            _apply(box, left[place])
            place += 1
        yield from _judge(box, row)


def _judge(box: Mailbox, row: Attempt) -> Iterator[Attempt]:
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
    pressure = judge_pressure(box.depth, config.backpressure)
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
