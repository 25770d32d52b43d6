"""Announcing mail: which messages wait for an agent, and the claim that announces each message once.

Every hook, waiter and command of an agent claims before it speaks; the claim is a transaction of the inbox, so of two
that ask at the same time one is told of a message and the other is not. Announcing is not reading, and it does not
move the mark of `wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from posthouse.daemon.agents.pauses import Pauses
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.wake.programs import Waiting
from posthouse.journal.append import JournalTransaction
from posthouse.sqlite.statements import Statements

SQL = Statements("posthouse.daemon.wake", "announcements.sql")
#: returns the name of a node, None if it has none
NameOf = Callable[[str], str | None]
_DIGITS_SHOWN = 8
_SCHEME = "ed25519:"


class Claim(NamedTuple):
    """Messages that one caller announces."""

    waiting: Sequence[Waiting]
    #: when they were claimed, per inbox
    marks: Sequence[tuple[Inbox, int]]


class Announcer:
    """Announces the mail of every inbox of a home."""

    def __init__(self, inboxes: Callable[[], Iterable[Inbox]], name_of: NameOf, pauses: Pauses) -> None:
        self._inboxes = inboxes
        self._pauses = pauses
        self._name_of = name_of

    def is_releasing(self, agent: str) -> bool:
        """Return True while mail from an ended pause is announced one message at a time."""
        return self._pauses.is_releasing(agent)

    async def claim_new(self, agent: str) -> Claim:
        """Return the unread messages that no hook has announced; they count as announced from now on."""
        return await self._claim(agent, SQL.unannounced)

    async def claim_wake(self, agent: str) -> Claim:
        """Return the unread messages that may wake an agent now; they count as announced from now on.

        Reports of failures and mail that cannot be opened wake no agent by themselves. Of the mail that waited during a
        pause, one message is announced at a time.
        """
        if self._pauses.held_s(agent):
            return Claim((), ())
        for inbox in self._inboxes():
            if await inbox.store.pool.run(lambda db: _has_rows(db, SQL.wakeful, agent)):
                break
        else:
            await self._pauses.finish(agent)
            return Claim((), ())
        if not self._pauses.is_releasing(agent):
            return await self.claim_new(agent)
        await self._pauses.note_release(agent)
        return await self._claim(agent, SQL.next_unannounced, SQL.announce_next)

    async def claim_all(self, agent: str) -> Claim:
        """Return all unread messages; they count as announced from now on."""
        return await self._claim(agent, SQL.unread)

    async def release(self, agent: str, claim: Claim) -> None:
        """Undo a claim whose announcement did not reach the agent."""
        for inbox, at_ns in claim.marks:
            await inbox.store.writer.run(_release(agent, at_ns))

    async def _claim(self, agent: str, statement: str, announce: str = SQL.announce) -> Claim:
        waiting: list[Waiting] = []
        marks: list[tuple[Inbox, int]] = []
        for inbox in self._inboxes():
            if not await inbox.store.pool.run(lambda db: _has_rows(db, statement, agent)):
                continue  # a hook runs after every tool call: without mail it writes nothing
            at_ns, rows = await inbox.store.writer.run(lambda tx: _claim(tx, statement, announce, agent))
            waiting += [self._waiting(*row) for row in rows]
            marks.append((inbox, at_ns))
        return Claim(waiting, marks)

    def _waiting(self, sender: str, sender_name: str | None, from_agent: str, topic: str | None, count: int) -> Waiting:
        host = self._name_of(sender) or sender_name or sender.removeprefix(_SCHEME)[:_DIGITS_SHOWN]
        return Waiting(f"{from_agent}@{host}" if from_agent else host, topic, count)


def _has_rows(db: apsw.Connection, statement: str, agent: str) -> bool:
    return db.execute(statement, (agent,)).fetchone() is not None


def _claim(tx: JournalTransaction, statement: str, announce: str, agent: str) -> tuple[int, Sequence[Any]]:
    rows = tx.db.execute(statement, (agent,)).fetchall()
    claimed = tx.db.execute(announce, (tx.now_ns, agent)).fetchall()
    if claimed:
        tx.append("inbox.announced", ref=agent, body={"count": len(claimed)})
    return tx.now_ns, rows


def _release(agent: str, at_ns: int) -> Callable[[JournalTransaction], None]:
    def release(tx: JournalTransaction) -> None:
        tx.db.execute(SQL.release, (agent, at_ns))

    return release
