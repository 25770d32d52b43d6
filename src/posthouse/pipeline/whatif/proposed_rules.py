"""Proposed bus rules, and their decisions over the history of one sender or one mailbox. Pure; runs in workers.

A proposal is a config.json in the bus's format (it may also hold `budget`: {maxHops, ttlMs, callBudget, cycleRule})
and an access-rules.json. If it has no budget or no access rules, the recorded decisions stand. The rate limit is a
fold over one sender's publishes; access, back-pressure, breaker and budget are a fold over one mailbox, in the order
of the recorded decisions. A message that the proposal refuses never enters the mailbox. A message that it accepts
although the bus refused it has no recorded end: it leaves together with the next message that ends in the mailbox,
or immediately if the mailbox is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from posthouse.model import breaker
from posthouse.model.access_rules import AccessRules, parse_rules
from posthouse.model.breaker import BreakerState, Circuit
from posthouse.model.budget import Budget, BudgetCeiling, CycleRule, check_budget, effective_budget
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import BUDGET_CALLS, BUDGET_MAX_HOPS, BUDGET_TTL_MS
from posthouse.model.rate import check_rate_log, window_start_ns
from posthouse.model.reliability import RateLimit, Reliability, check_pressure, merge_reliability


class BudgetProposal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The limits of budgets, named like the arguments of Bus."""

    max_hops: int = BUDGET_MAX_HOPS
    ttl_ms: int = BUDGET_TTL_MS
    call_budget: int = BUDGET_CALLS
    cycle_rule: CycleRule = "hops"

    @property
    def ceiling(self) -> BudgetCeiling:
        return BudgetCeiling(max_hops=self.max_hops, ttl_ms=self.ttl_ms, call_budget=self.call_budget)


@dataclass(frozen=True)
class Proposal:
    """The rules to apply; with None the recorded decisions of that kind stand."""

    reliability: Reliability
    rules: AccessRules | None = None
    budget: BudgetProposal | None = None


class _File(msgspec.Struct):
    budget: BudgetProposal | None = None


def parse_proposal(config: bytes | None, rules: bytes | None) -> Proposal:
    """Validate the contents of the files of a proposal."""
    reliability, budget = Reliability(), None
    if config is not None:
        reliability = merge_reliability(reliability, config)
        budget = _read_budget(config)
    return Proposal(reliability, None if rules is None else parse_rules(rules), budget)


def _read_budget(data: bytes) -> BudgetProposal | None:
    try:
        budget = msgspec.json.decode(data, type=_File).budget
        if budget is not None:
            _ = budget.ceiling  # its constructor checks the limits
    except (msgspec.MsgspecError, PosthouseError) as fault:
        raise error("reliability_invalid", reason=str(fault)) from fault
    return budget


#: The tables of a comparison of history and simulation, with their columns.
COMPARED = {
    "totals": ("code", "was", "would"),
    "accepted": ("created_ms", "sender", "subject", "id", "would", "text"),
    "refusals": ("code", "key", "minute", "was", "would"),
}
RATE_LIMITED = "rate_limited"
BOOTED = "booted"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One copy of a publish, or several equal ones that were refused at the same moment."""

    kind: str
    seq: int
    boot_ns: int
    id: str
    sender: str
    #: The published subject, which may be a wildcard.
    said_to: str
    #: The subject of the endpoint.
    subject: str
    #: The mailbox; None if no endpoint matched.
    place: str | None
    #: True if the rate limit counted it.
    rated: bool
    #: The recorded refusal's code; None if the bus accepted it.
    was: str | None
    was_times: int
    minute: int
    created_ms: int
    budget: str | None
    #: True if it answers a message and so costs no budget.
    is_return: bool
    #: The seq of the record.
    record: int
    #: The code with which the proposal refuses it; None if it accepts.
    would: str | None = None
    would_times: int = 0
    text: str | None = None

    @property
    def order(self) -> tuple[int, int, int, str, int]:
        """The order of decisions.

        Within one moment no capacity becomes free. So accepted attempts come first, then those that counted for the
        rate limit and were refused later, and last those that the rate limit refused: each then sees at least the load
        that it saw originally.
        """
        rank = 0 if self.kind != "refused" else 2 if self.was == RATE_LIMITED else 1
        return self.seq, self.boot_ns, rank, self.id, self.record

    def refused(self, code: str, times: int, text: str | None) -> Attempt:
        """Return the attempt with a refusal by the proposal."""
        return replace(self, would=code, would_times=times, text=text)


def simulate_sender(rows: Sequence[Attempt], boots: Sequence[int], config: RateLimit) -> Iterator[Attempt]:
    """Yield every attempt with the decision of the proposed rate limit."""
    log: list[int] = []
    former: Attempt | None = None
    next_boots = sorted(boots)
    for row in sorted(rows, key=lambda row: row.order):
        while next_boots and next_boots[0] <= row.seq:  # boot times of different boots are not comparable
            next_boots.pop(0)
            log.clear()
        if not row.rated:
            yield row
        elif former is not None and row.id and former.id == row.id:
            yield row if former.would is None else row.refused(former.would, 0, former.text)
        else:
            for decided in _apply_rate_limit(row, log, config):
                former = decided
                yield decided


def _apply_rate_limit(row: Attempt, log: list[int], config: RateLimit) -> Iterator[Attempt]:
    """Decide on a row that may stand for several publishes; yield one row for those accepted, one for those refused."""
    passed, text = 0, None
    times = max(1, row.was_times)
    while passed < times:
        verdict = check_rate_log(log, row.sender, row.boot_ns, config)
        if not verdict.allowed:
            text = verdict.text
            break
        log.append(row.boot_ns)
        passed += 1
    _trim(log, row.boot_ns, config)
    if row.was is None:
        yield row if text is None else row.refused(RATE_LIMITED, 1, text)
        return
    if passed:
        yield replace(row, was_times=passed)
    if passed < times:
        yield replace(row, was_times=times - passed).refused(RATE_LIMITED, times - passed, text)


def _trim(log: list[int], now_ns: int, config: RateLimit) -> None:
    """Drop times outside the window once the log is long: a fold over years must not keep them all."""
    if len(log) > 4096 and log[0] <= (horizon := window_start_ns(now_ns, config)):
        log[:] = [at_ns for at_ns in log if at_ns > horizon]


def attempt_of(values: dict[str, Any]) -> Attempt:
    """Return the attempt that a row of ATTEMPTS describes."""
    return Attempt(**{name: values[name] for name in Attempt.__slots__})


ACCESS_DENIED, BACKPRESSURE = "access_denied", "backpressure"
CIRCUIT_OPEN, BUDGET_EXCEEDED = "circuit_open", "budget_exceeded"
#: the text of a recorded refusal that a proposal does not change: its rules do not affect the number of dead letters
FULL_OF_LETTERS = "backpressure: dead letters full"
_decode_budget = msgspec.json.Decoder(Budget).decode


@dataclass(frozen=True, slots=True)
class Change:
    """A record that changed a mailbox without a decision of the rules."""

    kind: str
    seq: int
    boot_ns: int
    id: str


@dataclass(slots=True)
class Mailbox:
    """The state of a mailbox under the proposal."""

    proposal: Proposal
    #: Ids of the messages in it.
    present: set[str] = field(default_factory=set)
    #: The number of messages that the bus refused, which therefore have no recorded end.
    without_end: int = 0
    breaker: BreakerState = field(default_factory=BreakerState)
    is_served: bool = False
    boots: int = 0

    @property
    def depth(self) -> int:
        return len(self.present) + self.without_end

    @property
    def boot_id(self) -> str:
        return str(self.boots)


def simulate_mailbox(rows: Sequence[Attempt], changes: Sequence[Change], proposal: Proposal) -> Iterator[Attempt]:
    """Yield every attempt with the decision of the proposed rules."""
    mailbox = Mailbox(proposal)
    ordered = sorted(changes, key=lambda change: (change.seq, change.kind == BOOTED))
    index = 0
    for row in sorted(rows, key=lambda row: row.order):
        while index < len(ordered) and ordered[index].seq <= row.seq:
            _apply(mailbox, ordered[index])
            index += 1
        yield from _apply_mailbox_rules(mailbox, row)


def _apply_mailbox_rules(mailbox: Mailbox, row: Attempt) -> Iterator[Attempt]:
    """Decide on a row that may stand for several publishes; yield one row per decision."""
    times = max(1, row.was_times)
    refusals: dict[tuple[str, str] | None, int] = {}
    for _ in range(times):
        refusal = _refusal(mailbox, row)
        refusals[refusal] = refusals.get(refusal, 0) + 1
        if refusal is None:
            _enter(mailbox, row)
    for refusal, count in refusals.items():
        part = row if row.was is None else replace(row, was_times=count)
        yield part if refusal is None else part.refused(refusal[0], count, refusal[1])


def _refusal(mailbox: Mailbox, row: Attempt) -> tuple[str, str] | None:
    """Return code and text of the first rule that refuses, in the order of the bus; None if all accept."""
    denied = _denial(mailbox.proposal, row)
    if denied is not None:
        return ACCESS_DENIED, denied
    config = mailbox.proposal.reliability
    pressure = check_pressure(mailbox.depth, config.backpressure)
    if pressure.text is not None:
        return BACKPRESSURE, pressure.text
    if row.text == FULL_OF_LETTERS and config.dead_letters.enabled:
        return BACKPRESSURE, FULL_OF_LETTERS
    if mailbox.breaker.circuit is not Circuit.CLOSED:
        mailbox.breaker, may_pass = breaker.admit(mailbox.breaker, config.circuit_breaker, row.boot_ns, mailbox.boot_id)
        if not may_pass:
            return CIRCUIT_OPEN, breaker.refusal_text(row.place or "")
    spent = _overspent(mailbox.proposal, row)
    if spent is not None:
        if mailbox.breaker.circuit is Circuit.HALF_OPEN:
            mailbox.breaker = breaker.withdraw(mailbox.breaker)
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
    if row.budget is None:  # refused before the budget was checked: assume a fresh one
        return None
    budget = effective_budget(proposal.budget.ceiling, row.created_ms, _decode_budget(row.budget))
    rule = proposal.budget.cycle_rule
    return check_budget(budget, row.subject, row.created_ms, rule, is_return=row.is_return)


def _enter(mailbox: Mailbox, row: Attempt) -> None:
    if row.was is None:
        mailbox.present.add(row.id)
    elif mailbox.present:
        mailbox.without_end += 1


def _apply(mailbox: Mailbox, change: Change) -> None:
    """Apply one record to the state of a mailbox."""
    kind, config = change.kind, mailbox.proposal.reliability.circuit_breaker
    if kind == BOOTED:
        mailbox.boots += 1
    elif kind == "unregistered":
        mailbox.present, mailbox.without_end, mailbox.breaker, mailbox.is_served = set(), 0, BreakerState(), False
    elif kind in ("served", "reset"):
        mailbox.breaker, mailbox.is_served = (
            BreakerState(boot_id=mailbox.boot_id),
            mailbox.is_served or kind == "served",
        )
    elif kind == "left":
        mailbox.is_served = False
    elif kind == "adopted":
        mailbox.present.add(change.id)
    elif change.id in mailbox.present:
        if kind == "closed":
            if not mailbox.is_served:
                mailbox.breaker = breaker.record_success(mailbox.breaker, config, mailbox.boot_id)
            return
        mailbox.present.discard(change.id)
        mailbox.without_end = 0
        if kind == "handled":
            mailbox.breaker = breaker.record_success(mailbox.breaker, config, mailbox.boot_id)
        elif kind in ("failed", "withdrawn"):
            mailbox.breaker = breaker.record_failure(mailbox.breaker, config, change.boot_ns, mailbox.boot_id)
