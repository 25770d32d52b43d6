"""Mail that a process read and did not answer before it ended: its successor under the same name gets it again.

The messages become unread again, marked as read before, when another process registers under the name; the mark of
`wait` moves back before them. This happens only once to a message, so mail that needs no answer does not return for
ever. Only direct messages count, and only those that this very process has read: mail that was read without a process
was read by a person.
"""

from __future__ import annotations

import apsw
import msgspec
import structlog

from posthouse.daemon.agents.marks import InboxPosition, Marks
from posthouse.daemon.agents.processes import ProcessRef
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.journal.append import JournalTransaction
from posthouse.storage.sql_files import Statements

log = structlog.get_logger(__name__)
SQL = Statements("posthouse.daemon", "successors.sql")
REOPENED_MAX = 200  # the newest; a successor that gets more would read nothing else


class Successors:
    """Gives the unanswered mail of ended processes to their successors, in one mesh."""

    def __init__(self, inbox: Inbox, outbox: Outbox, marks: Marks) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._marks = marks

    async def on_successor(self, agent: str, before: ProcessRef) -> None:
        """Give an agent the mail again that its process `before` has read and not answered."""
        read = await self._inbox.store.pool.run(
            lambda db: list(db.execute(SQL.read_by, (agent, before.key, REOPENED_MAX)))
        )
        if not read:
            return
        ids = [str(message_id) for _position, message_id in read]
        answered = await self._outbox.store.pool.run(lambda db: _answered(db, ids, agent))
        positions = [int(position) for position, message_id in read if message_id not in answered]
        if positions:
            # the mark is in another store and goes first: unread mail behind it would never be shown by a wait
            first = InboxPosition(self._inbox.mesh, self._inbox.store.epoch, min(positions) - 1)
            await self._marks.rewind_wait(agent, first)
            await self._inbox.store.writer.run(lambda tx: _reopen(tx, agent, positions))
            log.info("mail_reopened", agent=agent, messages=len(positions))


def _answered(db: apsw.Connection, ids: list[str], agent: str) -> set[str]:
    return {str(found) for (found,) in db.execute(SQL.answered, (msgspec.json.encode(ids).decode(), agent))}


def _reopen(tx: JournalTransaction, agent: str, positions: list[int]) -> None:
    tx.db.executemany(SQL.reopen, [(agent, position) for position in positions])
    tx.append("inbox.reopened", ref=agent, body={"count": len(positions)})
