"""The reservation: every safety rule decided inside one transaction, so that it is exact across processes.

Per publish the rate limit; then per resolved endpoint access, back-pressure, breaker and budget, in that order.
What passes gets a row in `mail` and counts in the mailbox's depth before its file exists; what access or budget
refuses gets a row for its dead letter. No file is touched here.
"""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.bus.draft import Copy, Draft, Refusal
from posthouse.bus.page import EndpointCounters, Page
from posthouse.bus.results import Endpoint, Reason
from posthouse.bus.rules_file import RulesFile
from posthouse.bus.statements import SQL
from posthouse.model import breaker
from posthouse.model.budget import Budget, BudgetCeiling, CycleRule, charge_budget, check_budget, effective_budget
from posthouse.model.envelope import Envelope, encode_envelope
from posthouse.model.pressure import PressureState, judge_pressure
from posthouse.model.rate import judge_rate, limit_for, window_start_ns
from posthouse.model.reliability import Reliability
from posthouse.model.subjects import is_pattern
from posthouse.model.timestamps import format_utc

RESERVED, STORED, REFUSED = 0, 1, 2
NO_ENDPOINT = "no endpoint matches the subject"
_ADD_MAIL = SQL.add_mail


@dataclass(slots=True)
class Policy:
    """What the operator has set; `reliability` changes when config.json does."""

    ceiling: BudgetCeiling
    cycle_rule: CycleRule
    reliability: Reliability
    rules: RulesFile


def reserve(page: Page, draft: Draft, policy: Policy, instance: int) -> None:
    """Decide one publish and reserve what passes."""
    if draft.message_id:  # decided before, in a transaction that came to nothing
        draft.reset()
    draft.message_id = page.mint()
    draft.created_ms = page.now_ms
    endpoints = page.book.resolve(draft.subject)
    is_rated = draft.requeued_from is None and draft.ceiling is None
    draft.reserved = f"[{page.tx.head},{page.boot_ns},{is_rated:d}]"
    if is_rated and not _pass_rate(page, draft, policy.reliability):
        return
    budget = effective_budget(draft.ceiling or policy.ceiling, page.now_ms, draft.inherited, draft.given)
    created_at = format_utc(page.now_ns)
    if not endpoints:
        _refuse(page, draft, None, budget, created_at, NO_ENDPOINT, instance, None)
    for endpoint in endpoints:
        _reserve_one(page, draft, endpoint, budget, created_at, policy, instance)


def _pass_rate(page: Page, draft: Draft, config: Reliability) -> bool:
    rate = config.rate_limit
    if not rate.enabled:
        return True
    counter = page.sender(draft.from_)
    if counter.total - counter.base >= limit_for(draft.from_, rate):
        count = page.count_rates(draft.from_, counter, window_start_ns(page.boot_ns, rate))
        verdict = judge_rate(count, draft.from_, page.boot_ns, rate)
        if verdict.text is not None:
            draft.reject("*", draft.subject, Reason.RATE_LIMITED, verdict.text)
            return False
    counter.total += 1
    counter.added += 1
    return True


def _reserve_one(
    page: Page, draft: Draft, endpoint: Endpoint, budget: Budget, created_at: str, policy: Policy, instance: int
) -> None:
    counters = page.endpoint(endpoint.number)
    if counters is None:
        return
    subject = draft.subject if is_pattern(endpoint.subject) else endpoint.subject
    denied = policy.rules.denial(draft.from_, subject)
    if denied is not None:
        draft.reject(endpoint.hash, subject, Reason.ACCESS_DENIED, denied)
        _refuse(page, draft, endpoint, budget, created_at, denied, instance, Reason.ACCESS_DENIED)
        return
    if not _pass_counters(page, draft, endpoint, subject, counters, policy.reliability):
        return
    text = check_budget(budget, subject, page.now_ms, policy.cycle_rule)
    if text is not None:
        if counters.breaker.circuit is breaker.Circuit.HALF_OPEN:
            counters.set_breaker(breaker.withdraw(counters.breaker))
        draft.reject(endpoint.hash, subject, Reason.BUDGET_EXCEEDED, text)
        _refuse(page, draft, endpoint, budget, created_at, text, instance, Reason.BUDGET_EXCEEDED)
        return
    data = _envelope(draft, subject, charge_budget(budget, subject), created_at)
    copy = Copy(draft, endpoint, draft.message_id, subject, data, budget.ttl, previous_id=counters.last_id)
    page.db.execute(_ADD_MAIL, (endpoint.number, draft.message_id, RESERVED, instance, draft.reserved))
    counters.depth += 1
    counters.last_id = draft.message_id
    counters.is_changed = True
    draft.copies.append(copy)


def _pass_counters(
    page: Page, draft: Draft, endpoint: Endpoint, subject: str, counters: EndpointCounters, config: Reliability
) -> bool:
    """Judge back-pressure, then the breaker."""
    pressure = judge_pressure(counters.depth, config.backpressure)
    draft.pressure[endpoint.hash] = pressure.level
    if pressure.state is not PressureState.OK:
        draft.warnings.append((subject, pressure))
    if pressure.text is not None:
        draft.reject(endpoint.hash, subject, Reason.BACKPRESSURE, pressure.text)
        return False
    if counters.breaker.circuit is breaker.Circuit.CLOSED:  # of whichever boot
        return True
    state, may_pass = breaker.admit(counters.breaker, config.circuit_breaker, page.boot_ns, page.boot_id)
    counters.set_breaker(state)
    if not may_pass:
        draft.reject(endpoint.hash, subject, Reason.CIRCUIT_OPEN, breaker.refusal_text(endpoint.hash))
    return may_pass


def _refuse(
    page: Page,
    draft: Draft,
    endpoint: Endpoint | None,
    budget: Budget,
    created_at: str,
    text: str,
    instance: int,
    code: Reason | None,
) -> None:
    """Reserve the dead letter of a refused message; a requeued letter stays where it is instead."""
    if draft.requeued_from is not None:
        return
    subject = draft.subject if endpoint is None or is_pattern(endpoint.subject) else endpoint.subject
    data = _envelope(draft, subject, budget, created_at)
    refusal = None if code is None else Refusal(code, budget)
    copy = Copy(draft, endpoint, draft.message_id, subject, data, budget.ttl, reason=text, refusal=refusal)
    page.db.execute(_ADD_MAIL, (copy.number, draft.message_id, REFUSED, instance, draft.reserved))
    draft.letters.append(copy)


class _Checked(Envelope, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An envelope of parts that publish has checked or that were made here; whoever reads it checks it again."""

    def __post_init__(self) -> None:
        """Check nothing twice: this runs once for every copy of a message."""


def _envelope(draft: Draft, subject: str, budget: Budget, created_at: str) -> bytes:
    envelope = _Checked(
        id=draft.message_id,
        subject=subject,
        from_=draft.from_,
        budget=budget,
        created_at=created_at,
        payload=draft.payload,
        reply_to=draft.reply_to,
        published_to=draft.subject if draft.subject != subject or is_pattern(subject) else None,
    )
    return encode_envelope(envelope)
