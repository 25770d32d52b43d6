"""Announcing mail: which messages wait for an agent, and the claim that announces each message once.

Every hook, waiter and command of an agent claims messages before it announces them. The claim is a transaction of the
inbox, so of two callers at the same time only one announces a message. A claim is settled once its caller has
announced. A claim that is never settled has no effect, whether its caller failed, was killed, or went down with the
daemon: the next claim of the agent includes its messages again. Announcing is not reading, and it does not move the
mark of `wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple

import apsw

from posthouse.daemon.agents.pauses import Pauses
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.wake.programs import Waiting
from posthouse.journal.append import JournalTransaction
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.daemon.wake", "announcements.sql")
#: returns the name of a node, None if it has none
NameOf = Callable[[str], str | None]
_DIGITS_SHOWN = 8
_SCHEME = "ed25519:"


class Claim(NamedTuple):
    """Messages that one caller announces."""

    id: str
    waiting: Sequence[Waiting]
    inboxes: Sequence[Inbox]


NO_CLAIM = Claim("", (), ())


class Announcer:
    """Announces the mail of every inbox of a home."""

    def __init__(self, inboxes: Callable[[], Iterable[Inbox]], name_of: NameOf, pauses: Pauses) -> None:
        self._inboxes = inboxes
        self._pauses = pauses
        self._name_of = name_of
        #: ids of the claims whose callers have not finished; those of an earlier daemon are not among them
        self._open: set[str] = set()

    def is_releasing(self, agent: str) -> bool:
        """Return True while mail from an ended pause is announced one message at a time."""
        return self._pauses.is_releasing(agent)

    async def claim_new(self, agent: str) -> Claim:
        """Return the unread messages that no hook has announced; no other caller gets them."""
        await self._release_abandoned(agent)
        return await self._claim(agent, SQL.unannounced)

    async def claim_wake(self, agent: str) -> Claim:
        """Return the unread messages that may wake an agent now; no other caller gets them.

        Reports of failures and mail that cannot be opened wake no agent by themselves. Of the mail that waited during a
        pause, one message is announced at a time. If a pause begins or ends meanwhile, none is returned: the change
        causes the next call.
        """
        pause = self._pauses.latest(agent)
        if self._pauses.held_s(agent):
            return NO_CLAIM
        await self._release_abandoned(agent)
        for inbox in self._inboxes():
            if await inbox.store.pool.run(lambda db: _has_rows(db, SQL.wakeful, agent)):
                break
        else:
            await self._pauses.finish(agent, pause)
            return NO_CLAIM
        if not self._pauses.is_releasing(agent):
            return await self._claim(agent, SQL.unannounced, may_wake=partial(self._pauses.is_latest, agent, pause))
        await self._pauses.note_release(agent)
        may_wake = partial(self._pauses.is_latest, agent, self._pauses.latest(agent))
        return await self._claim(agent, SQL.next_wakeful, SQL.announce_next, may_wake=may_wake, is_single=True)

    async def claim_all(self, agent: str) -> Claim:
        """Return all unread messages; those that no hook has announced go to no other caller."""
        await self._release_abandoned(agent)
        return await self._claim(agent, SQL.unread)

    async def settle(self, claim: Claim) -> None:
        """Note that the messages of a claim were announced to the agent's program."""
        await self._end(claim, SQL.settle)

    async def release(self, claim: Claim) -> None:
        """Undo a claim whose announcement did not reach the agent's program."""
        await self._end(claim, SQL.release)

    def abandon(self, claim: Claim) -> None:
        """Leave a claim to be undone by the agent's next claim: for callers that can no longer write."""
        self._open.discard(claim.id)

    async def _end(self, claim: Claim, statement: str) -> None:
        try:
            for inbox in claim.inboxes:
                await inbox.store.writer.run(_run_for([claim.id], statement))
        finally:
            self._open.discard(claim.id)

    async def _release_abandoned(self, agent: str) -> None:
        """Undo the claims of an agent that no caller holds any longer."""
        for inbox in self._inboxes():
            found = await inbox.store.pool.run(lambda db: [str(row[0]) for row in db.execute(SQL.claims, (agent,))])
            abandoned = [claim for claim in found if claim not in self._open]
            if abandoned:
                await inbox.store.writer.run(_run_for(abandoned, SQL.release))

    async def _claim(
        self,
        agent: str,
        statement: str,
        announce: str = SQL.announce,
        *,
        may_wake: Callable[[], bool] = lambda: True,
        is_single: bool = False,
    ) -> Claim:
        waiting: list[Waiting] = []
        claimed: list[Inbox] = []
        claim = token_hex(8)
        self._open.add(claim)  # before the commit, after which another caller may look for abandoned claims
        try:
            for inbox in self._inboxes():
                if not await inbox.store.pool.run(lambda db: _has_rows(db, statement, agent)):
                    continue  # a hook runs after every tool call: without mail it writes nothing
                if not may_wake():
                    break  # a pause began or ended while the inbox was read
                rows = await inbox.store.writer.run(lambda tx: _claim(tx, statement, announce, agent, claim))
                waiting += [self._waiting(*row) for row in rows]
                claimed.append(inbox)
                if is_single and rows:
                    break
        except BaseException:
            self._open.discard(claim)
            raise
        if not waiting:
            self._open.discard(claim)
        return Claim(claim, waiting, claimed)

    def _waiting(self, sender: str, sender_name: str | None, from_agent: str, topic: str | None, count: int) -> Waiting:
        host = self._name_of(sender) or sender_name or sender.removeprefix(_SCHEME)[:_DIGITS_SHOWN]
        return Waiting(f"{from_agent}@{host}" if from_agent else host, topic, count)


def _has_rows(db: apsw.Connection, statement: str, agent: str) -> bool:
    return db.execute(statement, (agent,)).fetchone() is not None


def _claim(tx: JournalTransaction, statement: str, announce: str, agent: str, claim: str) -> Sequence[Any]:
    rows = tx.db.execute(statement, (agent,)).fetchall()
    claimed = tx.db.execute(announce, (tx.now_ns, agent, claim)).fetchall()
    if claimed:
        tx.append("inbox.announced", ref=agent, body={"count": len(claimed)})
    return rows


def _run_for(claims: Sequence[str], statement: str) -> Callable[[JournalTransaction], None]:
    def run(tx: JournalTransaction) -> None:
        tx.db.executemany(statement, [(claim,) for claim in claims])

    return run
