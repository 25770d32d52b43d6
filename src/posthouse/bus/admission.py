"""Admission: decide inside one transaction what becomes of a publish, exactly, across processes.

Once per publish the rate limit; then, for each endpoint that the subject resolves to: access, back-pressure, breaker
and budget, in this order. An admitted message gets a row in `mail` and counts in the mailbox's depth before its file
exists; a message that access or budget refuses gets a row for its dead letter. The budget starts from the message
that caused the publish: by context variable inside a handler, by look-up for agents that poll. No file is written
here.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import msgspec

from posthouse.bus.data_directory import endpoint_hash
from posthouse.bus.operator_files import Policy
from posthouse.bus.results import Endpoint, PublishResult, Reason, Rejection
from posthouse.bus.transaction import SQL, BusTransaction, EndpointCounters
from posthouse.model import breaker
from posthouse.model.budget import Budget, BudgetCeiling, GivenBudget, charge_budget, check_budget, effective_budget
from posthouse.model.clock import format_utc
from posthouse.model.envelope import Envelope, decode_envelope, encode_envelope
from posthouse.model.errors import error
from posthouse.model.limits import INT64_MAX
from posthouse.model.rate import check_rate, limit_for, window_start_ns
from posthouse.model.reliability import Pressure, PressureState, Reliability, check_pressure
from posthouse.model.subjects import is_pattern
from posthouse.model.ulid import validate_ulid

if TYPE_CHECKING:
    from posthouse.bus.session import Session


class Refusal(NamedTuple):
    """A rule that kept a message from its mailbox."""

    code: Reason
    budget: Budget


class MailboxCopy:
    """A message for one mailbox, or the dead letter it became instead."""

    __slots__ = ("data", "draft", "endpoint", "expires_ms", "id", "previous_id", "reason", "refusal", "subject")

    def __init__(
        self,
        draft: Draft,
        endpoint: Endpoint | None,
        id_: str,
        subject: str,
        data: bytes,
        expires_ms: int,
        *,
        reason: str | None = None,
        refusal: Refusal | None = None,
        previous_id: str | None = None,
    ) -> None:
        self.draft = draft
        #: None: unrouted
        self.endpoint = endpoint
        self.id = id_
        self.subject = subject
        #: the envelope as it is stored
        self.data = data
        self.expires_ms = expires_ms
        #: why it is a dead letter, or None
        self.reason = reason
        #: which rule made it one, and the budget it had
        self.refusal = refusal
        #: the id reserved for the endpoint before this one
        self.previous_id = previous_id

    @property
    def number(self) -> int:
        return 0 if self.endpoint is None else self.endpoint.number

    @property
    def hash(self) -> str:
        return "unrouted" if self.endpoint is None else self.endpoint.hash


class Draft:
    """One call of publish."""

    __slots__ = (
        "ceiling",
        "copies",
        "created_ms",
        "failure",
        "from_",
        "future",
        "given",
        "inherited",
        "letters",
        "message_id",
        "payload",
        "pressure",
        "rejected",
        "reply_to",
        "requeued_from",
        "reserved",
        "stored",
        "subject",
        "warnings",
    )

    def __init__(
        self,
        subject: str,
        payload: msgspec.Raw,
        from_: str,
        future: asyncio.Future[PublishResult],
        *,
        reply_to: str | None = None,
        inherited: Budget | None = None,
        given: GivenBudget | Budget | None = None,
        requeued_from: str | None = None,
        ceiling: BudgetCeiling | None = None,
    ) -> None:
        self.subject = subject
        self.payload = payload
        self.from_ = from_
        self.future = future
        self.reply_to = reply_to
        self.inherited = inherited
        self.given = given
        #: the dead letter this is made from: then no new letter is written and no rate is charged
        self.requeued_from = requeued_from
        #: of mail that comes over the mesh: its own bounds instead of the bus's, and no rate
        self.ceiling = ceiling
        self.reset()

    def reset(self) -> None:
        """Forget what was decided, before it is decided again."""
        self.message_id = ""
        #: [seq of the journal, boot time in ns, 1 if it counts for the rate] when the rules decided, as JSON
        self.reserved = ""
        self.created_ms = 0
        self.copies: list[MailboxCopy] = []
        self.letters: list[MailboxCopy] = []
        self.stored = 0
        self.rejected: list[Rejection] = []
        self.pressure: dict[str, float] = {}
        self.warnings: list[tuple[str, Pressure]] = []
        self.failure: OSError | None = None

    def reject(self, endpoint_hash: str, subject: str, reason: Reason, text: str) -> None:
        self.rejected.append(Rejection(endpoint_hash, subject, reason, text))

    def result(self) -> PublishResult:
        return PublishResult(self.message_id, self.stored, tuple(self.rejected), self.pressure)


#: the budget of the message that the current handler works on
INHERITED: ContextVar[Budget | None] = ContextVar("posthouse_bus_budget", default=None)
_UNLIMITED = BudgetCeiling(max_hops=INT64_MAX, ttl_ms=INT64_MAX, call_budget=INT64_MAX)


class _Published(msgspec.Struct):
    envelope: Envelope


_decode_published = msgspec.json.Decoder(_Published).decode


def clean_context() -> Context:
    """Return a copy of the current context in which no budget is inherited."""
    context = copy_context()
    context.run(INHERITED.set, None)
    return context


def handler_context(clean: Context, envelope: Envelope) -> Context:
    """Return the context a handler of the message runs in."""
    context = clean.copy()
    context.run(INHERITED.set, envelope.budget)
    return context


async def budget_of_message(session: Session, message_id: str, replier: str, inherited: Budget | None = None) -> Budget:
    """Return the budget of a stored message, as the replier got it, narrowed by one that is inherited besides."""
    validate_ulid(message_id)
    session.ledger.flush()
    copies = _copies_in_mailbox(session, message_id, replier)
    if not copies:
        copies = await session.store.pool.run(lambda db: _copies_in_journal(db, message_id))
    own = [envelope for envelope in copies if envelope.subject == replier]
    if not copies:
        raise error("message_unknown", id=message_id)
    budget = inherited
    for envelope in own or copies:  # not its own copy: the narrowest of all, so that nobody gains by lying
        budget = effective_budget(_UNLIMITED, 0, budget, envelope.budget)
    assert budget is not None
    return budget


def _copies_in_journal(db: apsw.Connection, message_id: str) -> list[Envelope]:
    rows: Any = db.execute(SQL.published, (message_id,))
    return [_decode_published(body.encode()).envelope for (body,) in rows]


def _copies_in_mailbox(session: Session, message_id: str, replier: str) -> list[Envelope]:
    mailbox = session.find_mailbox(endpoint_hash(replier))
    if mailbox is None:
        return []
    for box in ("new", "cur"):
        try:
            return [decode_envelope(mailbox.read(f"{box}/{message_id}"))]
        except FileNotFoundError:
            continue
    return []


RESERVED, STORED, REFUSED = 0, 1, 2
NO_ENDPOINT = "no endpoint matches the subject"
_ADD_MAIL = SQL.add_mail


def reserve(page: BusTransaction, draft: Draft, policy: Policy, instance: int) -> None:
    """Decide one publish and reserve what passes."""
    if draft.message_id:  # decided before, in a transaction that came to nothing
        draft.reset()
    draft.message_id = page.mint()
    draft.created_ms = page.now_ms
    endpoints = page.book.resolve(draft.subject)
    is_rated = draft.requeued_from is None and draft.ceiling is None
    draft.reserved = f"[{page.tx.head},{page.boot_ns},{is_rated:d}]"
    if is_rated and not _admit_by_rate(page, draft, policy.reliability):
        return
    budget = effective_budget(draft.ceiling or policy.ceiling, page.now_ms, draft.inherited, draft.given)
    created_at = format_utc(page.now_ns)
    if not endpoints:
        _refuse(page, draft, None, budget, created_at, NO_ENDPOINT, instance, None)
    for endpoint in endpoints:
        _reserve_copy(page, draft, endpoint, budget, created_at, policy, instance)


def _admit_by_rate(page: BusTransaction, draft: Draft, config: Reliability) -> bool:
    rate = config.rate_limit
    if not rate.enabled:
        return True
    counter = page.sender(draft.from_)
    if counter.total - counter.base >= limit_for(draft.from_, rate):
        count = page.count_rates(draft.from_, counter, window_start_ns(page.boot_ns, rate))
        verdict = check_rate(count, draft.from_, page.boot_ns, rate)
        if verdict.text is not None:
            draft.reject("*", draft.subject, Reason.RATE_LIMITED, verdict.text)
            return False
    counter.total += 1
    counter.added += 1
    return True


def _reserve_copy(
    page: BusTransaction,
    draft: Draft,
    endpoint: Endpoint,
    budget: Budget,
    created_at: str,
    policy: Policy,
    instance: int,
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
    if not _admit_by_pressure_and_breaker(page, draft, endpoint, subject, counters, policy.reliability):
        return
    text = check_budget(budget, subject, page.now_ms, policy.cycle_rule)
    if text is not None:
        if counters.breaker.circuit is breaker.Circuit.HALF_OPEN:
            counters.set_breaker(breaker.withdraw(counters.breaker))
        draft.reject(endpoint.hash, subject, Reason.BUDGET_EXCEEDED, text)
        _refuse(page, draft, endpoint, budget, created_at, text, instance, Reason.BUDGET_EXCEEDED)
        return
    data = _encode_copy(draft, subject, charge_budget(budget, subject), created_at)
    copy = MailboxCopy(draft, endpoint, draft.message_id, subject, data, budget.ttl, previous_id=counters.last_id)
    page.db.execute(_ADD_MAIL, (endpoint.number, draft.message_id, RESERVED, instance, draft.reserved))
    counters.depth += 1
    counters.last_id = draft.message_id
    counters.is_changed = True
    draft.copies.append(copy)


def _admit_by_pressure_and_breaker(
    page: BusTransaction,
    draft: Draft,
    endpoint: Endpoint,
    subject: str,
    counters: EndpointCounters,
    config: Reliability,
) -> bool:
    """Judge back-pressure, then the breaker."""
    pressure = check_pressure(counters.depth, config.backpressure)
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
    page: BusTransaction,
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
    data = _encode_copy(draft, subject, budget, created_at)
    refusal = None if code is None else Refusal(code, budget)
    copy = MailboxCopy(draft, endpoint, draft.message_id, subject, data, budget.ttl, reason=text, refusal=refusal)
    page.db.execute(_ADD_MAIL, (copy.number, draft.message_id, REFUSED, instance, draft.reserved))
    draft.letters.append(copy)


class _ValidatedEnvelope(Envelope, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An envelope of parts that publish has checked or that were made here; whoever reads it checks it again."""

    def __post_init__(self) -> None:
        """Check nothing twice: this runs once for every copy of a message."""


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
    )
    return encode_envelope(envelope)
