"""Budgets that follow the cause: by context variable inside a handler and its tasks, by look-up for pollers.

What a handler publishes is charged to the message it handles, also from tasks and threads it starts. An agent that
polls names the message it answers; its budget is read from the journal, or from the mailbox while the record is on
its way.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from posthouse.bus.directory import endpoint_hash
from posthouse.bus.statements import SQL
from posthouse.model.budget import Budget, BudgetCeiling, effective_budget
from posthouse.model.envelope import Envelope, decode_envelope
from posthouse.model.errors import error
from posthouse.model.ids import validate_ulid
from posthouse.model.limits import INT64_MAX

if TYPE_CHECKING:
    from posthouse.bus.session import Session

#: the budget of the message that the current handler works on
INHERITED: ContextVar[Budget | None] = ContextVar("posthouse_bus_budget", default=None)
_WIDEST = BudgetCeiling(max_hops=INT64_MAX, ttl_ms=INT64_MAX, call_budget=INT64_MAX)


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


async def budget_of(session: Session, message_id: str, replier: str, inherited: Budget | None = None) -> Budget:
    """Return the budget of a stored message, as the replier got it, narrowed by one that is inherited besides."""
    validate_ulid(message_id)
    session.ledger.flush()
    copies = _in_mailbox(session, message_id, replier)
    if not copies:
        copies = await session.store.pool.run(lambda db: _in_journal(db, message_id))
    own = [envelope for envelope in copies if envelope.subject == replier]
    if not copies:
        raise error("message_unknown", id=message_id)
    budget = inherited
    for envelope in own or copies:  # not its own copy: the narrowest of all, so that nobody gains by lying
        budget = effective_budget(_WIDEST, 0, budget, envelope.budget)
    assert budget is not None
    return budget


def _in_journal(db: apsw.Connection, message_id: str) -> list[Envelope]:
    rows: Any = db.execute(SQL.published, (message_id,))
    return [_decode_published(body.encode()).envelope for (body,) in rows]


def _in_mailbox(session: Session, message_id: str, replier: str) -> list[Envelope]:
    mailbox = session.find_mailbox(endpoint_hash(replier))
    if mailbox is None:
        return []
    for box in ("new", "cur"):
        try:
            return [decode_envelope(mailbox.read(f"{box}/{message_id}"))]
        except FileNotFoundError:
            continue
    return []
