"""What each agent has read: its marks on messages, and the receipts that senders of direct messages get.

A message is handed over when the program marks it as read, opens it, or says that it has it. A preview does not count,
and neither does a stale message, whose text is withheld until its reader confirms. Only the first time counts. Mail of
the default inbox has no receipts: a person reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.model.address import DEFAULT_INBOX
from posthouse.storage.sql_files import Statements
from posthouse.tracing import Role, Tracer

SQL = Statements("posthouse.daemon.inbox", "read_state.sql")


class Handed(NamedTuple):
    """A message that was handed to an agent's program and whose receipt is not sent yet."""

    position: int
    agent: str
    message_id: str
    sender: str
    handed_at_ns: int


class ReceivedSpan(NamedTuple):
    """A message that its sender traces."""

    message_id: str
    received_at_ns: int
    traceparent: str


def mark_seen(tx: JournalTransaction, ids: Sequence[str], agent: str, read_by: str | None, mesh: str) -> int:
    """Mark messages of an agent's inbox as read by a process; return how many were unread."""
    seen: list[str] = []
    for key in dict.fromkeys(ids):
        unread: list[Any] = tx.db.execute(SQL.unread, {"key": key, "agent": agent}).fetchall()
        for item_id, position in unread:
            tx.db.execute(SQL.mark_seen, (tx.now_ns, read_by, agent, position))
            seen.append(item_id)
    note_handed(tx, ids, agent)
    if seen:
        body: dict[str, Any] = {"ids": seen} | ({"agent": agent} if agent else {})
        tx.append("inbox.seen", mesh=mesh, ref=seen[-1], body=body)
    return len(seen)


def note_handed(tx: JournalTransaction, keys: Iterable[str], agent: str, *, is_confirmed: bool = False) -> None:
    """Note that an agent's program has the full text of messages; `is_confirmed` includes stale ones."""
    if agent != DEFAULT_INBOX:
        for key in keys:
            given = {"key": key, "agent": agent, "at_ns": tx.now_ns, "is_confirmed": is_confirmed}
            tx.db.execute(SQL.note_handed, given)


def unread_spans(db: apsw.Connection, keys: Iterable[str], agent: str) -> list[ReceivedSpan]:
    """Return the spans of messages that an agent has not read and that their senders trace."""
    given = ({"key": key, "agent": agent} for key in dict.fromkeys(keys))
    return [ReceivedSpan(*row) for values in given for row in db.execute(SQL.unread_span, values)]


def trace_read(tracer: Tracer, spans: Sequence[ReceivedSpan], agent: str, mesh: str) -> None:
    """Record for how long messages waited for their agent."""
    for each in spans:
        attributes = {"posthouse.mesh": mesh, "posthouse.agent": agent, "messaging.message.id": each.message_id}
        tracer.record("read", Role.RECEIVER, each.traceparent, each.received_at_ns, attributes)


def traceparent_of(db: apsw.Connection, message_id: str) -> str | None:
    """Return the span that sent a received message; None if it is unknown or not traced."""
    found: Any = db.execute(SQL.traceparent_of, (message_id,)).get
    return found if isinstance(found, str) else None


def waiting_receipts(db: apsw.Connection, after: int, limit: int) -> list[Handed]:
    """Return messages whose receipts are not sent yet, in the order of the inbox."""
    return [Handed(*row) for row in db.execute(SQL.waiting, (after, limit))]


def mark_sent(tx: JournalTransaction, receipts: Sequence[Handed]) -> None:
    """Record that receipts were sent."""
    tx.db.executemany(SQL.mark_sent, [(each.position, each.agent) for each in receipts]).fetchall()


def answered_at_ns(db: apsw.Connection, message_id: str) -> int | None:
    """Return the time of the first answer to a message, or None if there is none."""
    found: Any = db.execute(SQL.answered_at, (message_id,)).get
    return found if isinstance(found, int) else None
