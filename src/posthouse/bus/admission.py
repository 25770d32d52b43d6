"""Admission: decide which mailboxes get a published message, inside one transaction and so exactly, across processes.

The rate limit applies once per publish; then, for each endpoint that the subject resolves to: access, back-pressure,
breaker and budget, in this order. An admitted message counts in the mailbox's depth from then on; a message that
access or budget refuses becomes a dead letter. The budget starts from the messages that caused the publish
(posthouse.bus.running). The publisher adds the rows in `mail` and writes the files.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from posthouse.bus.data_directory import UNROUTED
from posthouse.bus.operator_files import Policy
from posthouse.bus.results import Endpoint, PublishResult, Reason, Rejection
from posthouse.bus.transaction import BusTransaction, EndpointCounters
from posthouse.model import breaker
from posthouse.model.budget import Budget, BudgetCeiling, GivenBudget, charge_budget, check_budget, effective_budget
from posthouse.model.envelope import Envelope, encode_envelope
from posthouse.model.limits import SECOND_NS
from posthouse.model.rate import check_rate, window_start_ns
from posthouse.model.reliability import Pressure, PressureState, Reliability, check_pressure, letters_refusal
from posthouse.model.subjects import is_pattern

NO_ENDPOINT = "no endpoint matches the subject"
#: reasons of refusals that pass with time; all others leave a dead letter
TEMPORARY = frozenset({Reason.RATE_LIMITED, Reason.BACKPRESSURE, Reason.CIRCUIT_OPEN})
_encode = msgspec.json.Encoder().encode


class Reserved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a publish was decided; stored as a JSON array in `mail` and in records, for the pipeline's what-if."""

    #: newest journal record that the decision has seen
    seq: int
    boot_ns: int
    #: 1 if the publish counts for its sender's rate, else 0
    is_rated: int


_UNDECIDED = Reserved(0, 0, 0)


class Refusal(NamedTuple):
    """The rule that refused a message, and the budget the message had."""

    code: Reason
    budget: Budget


class MailboxCopy:
    """A message for one mailbox, or the dead letter that it became instead."""

    __slots__ = (
        "data",
        "draft",
        "endpoint",
        "expires_ms",
        "file_bytes",
        "hash",
        "id",
        "is_reserved",
        "number",
        "previous_id",
        "reason",
        "refusal",
        "subject",
    )

    def __init__(
        self,
        draft: Draft,
        endpoint: Endpoint | None,
        subject: str,
        data: bytes,
        expires_ms: int,
        *,
        reason: str | None = None,
        refusal: Refusal | None = None,
        previous_id: str | None = None,
    ) -> None:
        self.draft = draft
        #: None: no endpoint matched
        self.endpoint = endpoint
        self.number = 0 if endpoint is None else endpoint.number
        self.hash = UNROUTED if endpoint is None else endpoint.hash
        self.id = draft.message_id
        self.subject = subject
        #: the stored envelope
        self.data = data
        self.expires_ms = expires_ms
        #: why it is a dead letter; None for a message
        self.reason = reason
        self.refusal = refusal
        #: size of the dead letter's file, once it is written
        self.file_bytes = 0
        #: newest id that was given out for the endpoint before this one
        self.previous_id = previous_id
        #: its row was committed before its file is written
        self.is_reserved = False


class Draft:
    """One publish on its way through admission, storing and closing."""

    __slots__ = (
        "ceiling",
        "copies",
        "created_ms",
        "dead_letters",
        "failure",
        "from_",
        "full_of_letters",
        "future",
        "given",
        "held_by",
        "in_reply_to",
        "inherited",
        "is_notice",
        "is_waiting",
        "message_id",
        "payload",
        "pressure",
        "rejected",
        "reply_to",
        "requeued_from",
        "reserved",
        "retry_at_ns",
        "stored",
        "subject",
        "ttl_ms",
        "warnings",
    )

    def __init__(
        self,
        subject: str,
        payload: Any,
        from_: str,
        *,
        reply_to: str | None = None,
        inherited: Budget | None = None,
        in_reply_to: str | None = None,
        given: GivenBudget | Budget | None = None,
        ttl_ms: int | None = None,
        requeued_from: str | None = None,
        ceiling: BudgetCeiling | None = None,
    ) -> None:
        self.subject = subject
        self.payload = payload if type(payload) is msgspec.Raw else msgspec.Raw(_encode(payload))
        self.from_ = from_
        #: resolves when the publish is stored or has failed; set by the publisher
        self.future: asyncio.Future[PublishResult] | None = None
        self.reply_to = reply_to
        self.inherited = inherited
        #: the message that this one answers as a return
        self.in_reply_to = in_reply_to
        self.given = given
        #: counted from the decision: clocks of processes may differ, so the publisher's own does not matter
        self.ttl_ms = ttl_ms
        #: id of the dead letter that is published again: no second dead letter is written and no rate is charged
        self.requeued_from = requeued_from
        #: bounds of a message from the mesh, instead of the bus's own; no rate is charged
        self.ceiling = ceiling
        #: sent by the bus itself: no rate is charged, and a refusal is neither recorded nor a dead letter
        self.is_notice = False
        #: if rate, room or breaker refuse it, it is tried again: nothing is charged or recorded
        self.is_waiting = False
        #: the refusal of an earlier publish of the sender, which this one must not overtake
        self.held_by: Rejection | None = None
        self.reset()

    def reset(self) -> None:
        """Discard the decisions of a transaction that was rolled back."""
        self.message_id = ""
        self.reserved = _UNDECIDED
        self.created_ms = 0
        self.copies: list[MailboxCopy] = []
        self.dead_letters: list[MailboxCopy] = []
        self.stored = 0
        self.rejected: list[Rejection] = []
        self.pressure: dict[str, float] = {}
        self.warnings: list[tuple[str, Pressure]] = []
        #: mailboxes that refused it because of their dead letters
        self.full_of_letters: set[str] = set()
        self.failure: OSError | None = None
        #: boot time at which rate limit or breaker may admit it, as far as that is known
        self.retry_at_ns: int | None = None

    def drop_copies(self) -> None:
        """Forget the copies, which refer back to this draft: without the cycle no garbage collector has to free it."""
        self.copies, self.dead_letters = [], []

    @property
    def is_refused_for_now(self) -> bool:
        """True if rate, room or breaker refused it, so that a later attempt may succeed."""
        return bool(self.rejected) and all(rejection.reason in TEMPORARY for rejection in self.rejected)

    def reject(self, endpoint_hash: str, subject: str, reason: Reason, text: str) -> None:
        self.rejected.append(Rejection(endpoint_hash, subject, reason, text))

    def result(self) -> PublishResult:
        return PublishResult(self.message_id, self.stored, tuple(self.rejected), self.pressure)


class Admission:
    """The rules that decide a publish, with the operator's current policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def decide(self, tx: BusTransaction, draft: Draft) -> None:
        """Decide one publish: its admitted copies and its dead letters."""
        if draft.message_id:  # decided before, in a transaction that was rolled back
            draft.reset()
        draft.message_id = tx.next_id()
        draft.created_ms = tx.now_ms
        is_rated = draft.requeued_from is None and draft.ceiling is None and not draft.is_notice
        draft.reserved = Reserved(tx.journal.head, tx.boot_ns, int(is_rated))
        if draft.held_by is not None:
            draft.rejected.append(draft.held_by)
            return
        if is_rated and not _admit_by_rate(tx, draft, self._policy.reliability):
            return
        ceiling, is_return = draft.ceiling or self._policy.ceiling, draft.in_reply_to is not None
        if draft.ttl_ms is not None:
            ceiling = ceiling.with_ttl(draft.ttl_ms)
        budget = effective_budget(ceiling, tx.now_ms, draft.inherited, draft.given, is_return=is_return)
        endpoints = tx.registry.resolve(draft.subject)
        if not endpoints:
            _refuse(draft, None, budget, tx.created_at, NO_ENDPOINT, None)
        for endpoint in endpoints:
            self._decide_copy(tx, draft, endpoint, budget)
        if draft.is_waiting and draft.is_refused_for_now and is_rated and self._policy.reliability.rate_limit.enabled:
            tx.sender(draft.from_).refund()

    def _decide_copy(self, tx: BusTransaction, draft: Draft, endpoint: Endpoint, budget: Budget) -> None:
        counters = tx.endpoint(endpoint.number)
        if counters is None:
            return
        subject = draft.subject if is_pattern(endpoint.subject) else endpoint.subject
        denied = self._policy.rules.denial(draft.from_, subject)
        if denied is not None:
            _refuse(draft, endpoint, budget, tx.created_at, denied, Reason.ACCESS_DENIED)
            return
        if not _admit_by_pressure_and_breaker(tx, draft, endpoint, subject, counters, self._policy.reliability):
            return
        is_return = draft.in_reply_to is not None
        exceeded = check_budget(budget, subject, tx.now_ms, self._policy.cycle_rule, is_return=is_return)
        if exceeded is not None:
            if counters.breaker.circuit is breaker.Circuit.HALF_OPEN:
                counters.set_breaker(breaker.withdraw(counters.breaker))
            _refuse(draft, endpoint, budget, tx.created_at, exceeded, Reason.BUDGET_EXCEEDED)
            return
        charged = charge_budget(budget, subject, is_return=is_return)
        data = _encode_copy(draft, subject, charged, tx.created_at)
        copy = MailboxCopy(draft, endpoint, subject, data, budget.ttl, previous_id=counters.last_id)
        counters.add_message(copy.id)
        draft.copies.append(copy)


def _refuse(
    draft: Draft, endpoint: Endpoint | None, budget: Budget, created_at: str, text: str, code: Reason | None
) -> None:
    """Reject the copy, which becomes a dead letter; a requeued dead letter stays where it is instead."""
    subject = draft.subject if endpoint is None or is_pattern(endpoint.subject) else endpoint.subject
    if endpoint is not None and code is not None:
        draft.reject(endpoint.hash, subject, code, text)
    if draft.requeued_from is not None or draft.is_notice:
        return
    data = _encode_copy(draft, subject, budget, created_at)
    refusal = None if code is None else Refusal(code, budget)
    draft.dead_letters.append(MailboxCopy(draft, endpoint, subject, data, budget.ttl, reason=text, refusal=refusal))


def _admit_by_rate(tx: BusTransaction, draft: Draft, config: Reliability) -> bool:
    rate = config.rate_limit
    if not rate.enabled:
        return True
    counter = tx.sender(draft.from_)
    if counter.total - counter.left_window >= rate.limit_for(draft.from_):
        count = tx.count_in_window(draft.from_, counter, window_start_ns(tx.boot_ns, rate))
        verdict = check_rate(count, draft.from_, tx.boot_ns, rate)
        if verdict.text is not None:
            draft.reject("*", draft.subject, Reason.RATE_LIMITED, verdict.text)
            if verdict.limit:
                blocking = counter.left_window + verdict.count - verdict.limit + 1
                published_ns = tx.publish_time_ns(draft.from_, blocking, verdict.horizon_ns)
                draft.retry_at_ns = published_ns + rate.window_secs * SECOND_NS
            return False
    counter.total += 1
    counter.added += 1
    return True


def _admit_by_pressure_and_breaker(
    tx: BusTransaction,
    draft: Draft,
    endpoint: Endpoint,
    subject: str,
    counters: EndpointCounters,
    config: Reliability,
) -> bool:
    pressure = check_pressure(counters.depth, config.backpressure)
    draft.pressure[endpoint.hash] = pressure.level
    if pressure.state is not PressureState.OK:
        draft.warnings.append((subject, pressure))
    if pressure.text is not None:
        draft.reject(endpoint.hash, subject, Reason.BACKPRESSURE, pressure.text)
        return False
    full = letters_refusal(counters.failed, counters.failed_bytes, config.dead_letters)
    if full is not None and draft.requeued_from is None:  # a requeued letter makes room
        draft.full_of_letters.add(endpoint.hash)
        draft.reject(endpoint.hash, subject, Reason.BACKPRESSURE, full)
        return False
    if counters.breaker.circuit is breaker.Circuit.CLOSED:  # whether stored in this boot or another
        return True
    state, is_admitted = breaker.admit(counters.breaker, config.circuit_breaker, tx.boot_ns, tx.boot_id)
    counters.set_breaker(state)
    if not is_admitted:
        draft.reject(endpoint.hash, subject, Reason.CIRCUIT_OPEN, breaker.refusal_text(endpoint.hash))
        retry_at_ns = breaker.cooled_at_ns(state, config.circuit_breaker)
        draft.retry_at_ns = min(retry_at_ns, draft.retry_at_ns or retry_at_ns)
    return is_admitted


class _ValidatedEnvelope(Envelope, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An envelope whose parts publish has validated or created; every reader validates it again."""

    def __post_init__(self) -> None:
        """Skip the validation of Envelope, which would run once per copy."""


def _encode_copy(draft: Draft, subject: str, budget: Budget, created_at: str) -> bytes:
    envelope = _ValidatedEnvelope(
        id=draft.message_id,
        subject=subject,
        from_=draft.from_,
        budget=budget,
        created_at=created_at,
        payload=draft.payload,
        reply_to=draft.reply_to,
        published_to=draft.subject if draft.subject != subject or is_pattern(subject) else None,
        in_reply_to=draft.in_reply_to,
    )
    return encode_envelope(envelope)
