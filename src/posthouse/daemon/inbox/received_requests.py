"""Requests in an inbox: messages whose senders wait for an answer until a deadline.

A request that is unread at its deadline is no longer work: its row is closed like that of a replaced message, so no
list of unread mail, count or hook shows it. The message itself stays readable. Rows are closed when unread mail is next
read; there is no timer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.inbox", "received_requests.sql")


class ReceivedRequest(NamedTuple):
    """The agent and node that sent a request, and the agent of this host that it is for."""

    sender: str
    from_agent: str
    to_agent: str


class ReceivedRequests:
    """The requests of one inbox."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: requests with a deadline up to this time are closed
        self._closed_through_ns = 0
        #: None: no request is open
        self._next_deadline_ns: int | None = 0

    async def find(self, message_id: str) -> ReceivedRequest | None:
        """Return the request with a message id."""
        found: Any = await self._store.pool.run(lambda db: db.execute(SQL.find, (message_id,)).fetchone())
        return None if found is None else ReceivedRequest(*found)

    def note_new(self, deadlines_ns: Iterable[int | None]) -> None:
        """Note the deadlines of requests that have arrived."""
        known = [each for each in (self._next_deadline_ns, *deadlines_ns) if each is not None]
        self._next_deadline_ns = min(known, default=None)

    async def close_late(self) -> None:
        """Close unread requests whose deadline has passed."""
        now_ns = self._store.clock.wall_ns()
        after_ns = self._closed_through_ns if self._closed_through_ns <= now_ns else 0  # the clock was set back
        if self._next_deadline_ns is None or now_ns < self._next_deadline_ns:
            return
        self._next_deadline_ns = None  # a request that arrives during this notes its own deadline
        self.note_new([await self._store.writer.run(lambda tx: _close_late(tx, after_ns, now_ns))])
        self._closed_through_ns = now_ns


def close_request(tx: JournalTransaction, position: int) -> None:
    """Close a request that arrived after its deadline."""
    tx.db.execute(SQL.close, {"now_ns": tx.now_ns, "position": position})


def _close_late(tx: JournalTransaction, closed_through_ns: int, now_ns: int) -> int | None:
    """Close requests with a deadline between two times; return the next deadline."""
    tx.db.execute(SQL.close_late, {"now_ns": now_ns, "closed_through_ns": closed_through_ns})
    found: Any = tx.db.execute(SQL.next_deadline, (now_ns,)).get
    return None if found is None else int(found)
