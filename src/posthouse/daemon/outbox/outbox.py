"""The outbox: a durable queue of messages that this daemon has accepted and the relay has not acknowledged yet.

Every change goes through the group-commit writer and is durable when the call returns. `on_queued` is called after
the commit, never before. `transitions` has the rules of each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from posthouse.daemon.outbox import transitions
from posthouse.daemon.outbox.outbox_rows import (
    Claimed,
    Depth,
    NewRow,
    OutboxRow,
    Outcome,
    OwnPost,
    SendOutcome,
    SentBefore,
)
from posthouse.daemon.outbox.transitions import OUTBOX, SQL, accept_row
from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store, exit_process
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, error
from posthouse.model.event import is_short_event_id
from posthouse.model.limits import SAFE_INTEGER_MAX
from posthouse.model.outbox_rules import AcceptAction, AcceptOutcome

CHAIN_MAX = 1_000  # rows shown of one chain of requeues
_HAS_ID = f"position IN ({SQL.position_of_id})"


class OutboxFilter(NamedTuple):
    """Which rows of an outbox to select; all conditions must hold."""

    #: only rows after this position
    after: int = 0
    #: only rows before this position
    before: int | None = None
    #: only rows queued at or after this wall time
    since_ns: int = 0
    #: only rows queued before this wall time
    until_ns: int | None = None
    status: str | None = None
    #: node id, or #topic; a row forgets it when its event is removed
    destination: str | None = None
    #: agent of the recipient; None: any
    to_agent: str | None = None
    #: agent of this host that sent it; None: any
    from_agent: str | None = None
    is_newest_first: bool = True
    limit: int = 50


class Outbox:
    """One open outbox."""

    def __init__(self, path: Path, mesh: str, clock: Clock, on_fatal: Callable[[Fatal], None] = exit_process) -> None:
        self.store = Store(path, (OUTBOX,), clock, on_fatal=on_fatal, readers=2)
        self._mesh = mesh
        #: number of messages that this process has accepted
        self.accepted = 0
        #: callback(destination) after a row of it was committed
        self.on_queued: Callable[[str], None] = lambda _destination: None

    def close(self) -> None:
        """Commit the waiting writes and close."""
        self.store.close()

    # accepting

    def accept(self, row: NewRow, capacity_bytes: int, via: str | None = None) -> asyncio.Future[AcceptOutcome]:
        """Accept a message or answer its retry, by the accept table; the outcome is durable.

        `via` is the program through which a person sends it, for the journal; likewise in the operator's changes.
        """
        mesh = self._mesh
        future = self.store.writer.submit(
            lambda tx: accept_row(tx, row, mesh, capacity_bytes, via), size=len(row.event), is_short=True
        )
        future.add_done_callback(lambda done: self._on_accepted(done, row.destination))
        return future

    def _on_accepted(self, done: asyncio.Future[AcceptOutcome], destination: str) -> None:
        # a caller that has disconnected cancelled its wait, not its message
        if done.cancelled() or (done.exception() is None and done.result().action is AcceptAction.INSERT):
            self.accepted += 1
            self.on_queued(destination)

    # sending

    async def recover(self) -> int:
        """Make rows pending again that were in flight when the last process ended; return how many."""
        return await self.store.writer.run(transitions.reopen_inflight_rows)

    async def open_destinations(self) -> list[str]:
        """Return the destinations that have rows to send."""
        return await self.store.pool.run(lambda db: [str(name) for (name,) in db.execute(SQL.open_destinations)])

    async def note_relay_epoch(self, epoch: str, since_ns: int) -> list[str]:
        """Note the relay's epoch; if it is another one, return the destinations of rows that the relay gets again."""
        return await self.store.writer.run(lambda tx: transitions.reopen_answered_rows(tx, epoch, since_ns, self._mesh))

    async def claim(self, destination: str, limit: int) -> list[Claimed]:
        """Claim the oldest pending rows of a destination for sending."""
        # usually one row, whose sender and reader wait for it; of a backlog, few claims are not part of `settle`
        return await self.store.writer.run(
            lambda tx: transitions.claim_rows(tx, destination, limit, self._mesh), is_short=True
        )

    async def settle(self, outcomes: Sequence[SendOutcome], destination: str, limit: int) -> list[Claimed]:
        """Write the outcomes of claimed rows, and claim the next rows of their destination in the same commit."""

        def work(tx: JournalTransaction) -> list[Claimed]:
            transitions.settle_rows(tx, outcomes, self._mesh)
            return transitions.claim_rows(tx, destination, limit, self._mesh) if limit else []

        return await self.store.writer.run(work, is_short=len(outcomes) == 1)

    async def expire(self, before_ns: int) -> list[tuple[str, str]]:
        """Give up some pending rows queued before a time; return their ids, an empty list once none are left."""
        return await self.store.writer.run(lambda tx: transitions.expire_rows(tx, before_ns, self._mesh))

    async def strip_done(self, before_ns: int) -> int:
        """Remove the events of some rows done before a time; return how many, zero once there are none left."""
        return await self.store.writer.run(lambda tx: transitions.strip_done_rows(tx, before_ns))

    async def append_pressure(self, used: int, capacity: int) -> None:
        """Record that the outbox is nearly full."""
        body = {"bytes": used, "max_bytes": capacity}
        await self.store.writer.run(
            lambda tx: tx.append("outbox.pressure", mesh=self._mesh, ref=str(self.store.path), body=body)
        )

    async def own_posts(self, before_seq: int | None, limit: int) -> list[OwnPost]:
        """Return topic posts that the host's other agents have not received, by their seq at the relay."""
        bound = SAFE_INTEGER_MAX if before_seq is None else before_seq
        return await self.store.pool.run(
            lambda db: [OwnPost(*row) for row in db.execute(SQL.own_posts, (bound, limit))]
        )

    async def mark_given(self, posts: Sequence[OwnPost]) -> None:
        """Record that the host's other agents have topic posts."""
        positions = [(post.position,) for post in posts]
        await self.store.writer.run(lambda tx: tx.db.executemany(SQL.mark_given, positions).fetchall())

    async def rename_agent(self, name: str, to: str) -> None:
        """Move the rows of an agent to its new name; a second call does nothing.

        The events keep the name under which they were signed.
        """
        await self.store.writer.run(lambda tx: tx.db.execute(SQL.rename_agent, (to, name)).fetchall())

    async def add_sent(self, sent: Sequence[SentBefore]) -> int:
        """Add rows for messages that the relay has and this outbox lost; return how many were missing."""
        return await self.store.writer.run(lambda tx: transitions.add_sent_rows(tx, sent, self._mesh))

    async def without_outcome(self, limit: int) -> list[str]:
        """Return the newest direct messages at the relay that no recipient is known to have read or rejected."""
        rows: Any = await self.store.pool.run(lambda db: db.execute(SQL.without_outcome, (limit,)).fetchall())
        return [message_id for (message_id,) in rows]

    async def note_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Store the outcomes of messages at their recipients."""
        await self.store.writer.run(lambda tx: transitions.note_outcomes(tx, outcomes, self._mesh))

    # operator actions

    async def note_accepted(self, row: OutboxRow, message_id: str, history_id: int) -> None:
        """Settle a dead or pending row as done: the relay turned out to have its message."""
        await self.store.writer.run(
            lambda tx: transitions.note_accepted_row(tx, row.position, message_id, history_id, self._mesh)
        )

    async def requeue(self, row: OutboxRow, successor: NewRow, capacity_bytes: int, via: str | None = None) -> None:
        """Abort a row and queue its successor."""
        await self.store.writer.run(
            lambda tx: transitions.requeue_row(tx, row.position, successor, self._mesh, capacity_bytes, via)
        )
        self.on_queued(successor.destination)

    async def drop(self, row: OutboxRow, via: str | None = None) -> None:
        """Abort a row without a successor."""
        await self.store.writer.run(lambda tx: transitions.drop_row(tx, row.position, self._mesh, via))

    async def abort_open(self) -> int:
        """Abort every row that was not sent; return how many."""
        return await self.store.writer.run(lambda tx: transitions.abort_open_rows(tx, self._mesh))

    # reading

    async def find(self, key: str, agent: str = DEFAULT_INBOX) -> OutboxRow:
        """Return a row by its id, its client_message_id or its message id; raises outbox_row_unknown.

        Of several agents with one client_message_id the row of `agent` is meant, else the newest.
        """
        row = await self.store.pool.run(lambda db: find_row(db, key, agent))
        if row is None:
            raise error("outbox_row_unknown", id=key)
        return row

    async def has(self, client_message_id: str, agent: str) -> bool:
        """Return True if an agent has used a client_message_id."""
        found: Any = await self.store.pool.run(
            lambda db: db.execute(SQL.by_client_id, (client_message_id, agent)).fetchone()
        )
        return found is not None

    async def event_of(self, row: OutboxRow) -> bytes | None:
        """Return the signed event of a row, or None if it was removed after the retention time."""
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.event_of, (row.position,)).get)
        return found if isinstance(found, bytes) else None

    async def rows(self, wanted: OutboxFilter) -> list[OutboxRow]:
        """Return the rows that a filter selects."""
        return await self.store.pool.run(lambda db: list_rows(db, wanted))

    async def newest_position(self) -> int:
        """Return the position of the newest row, zero if there is none."""
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.newest_position).get)
        return int(found)

    async def chain(self, row: OutboxRow) -> list[OutboxRow]:
        """Return the chain of requeues that a row belongs to, oldest first."""
        return await self.store.pool.run(lambda db: chain_of(db, row))

    async def depth(self) -> Depth:
        """Return the counters."""
        return await self.store.pool.run(read_depth)

    async def oldest_pending_ns(self) -> int | None:
        """Return when the oldest pending row was queued, or None if there is none."""
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.oldest_pending).get)
        return found if isinstance(found, int) else None


def read_depth(db: apsw.Connection) -> Depth:
    """Return the counters of an outbox."""
    found: Any = db.execute(SQL.read_state).fetchone()
    return Depth(*found)


def find_row(db: apsw.Connection, key: str, agent: str = DEFAULT_INBOX) -> OutboxRow | None:
    """Return a row by its id, client_message_id or (part of the) message id; the agent's own, else the newest."""
    of_client = "client_message_id = :id ORDER BY from_agent = :agent DESC, position DESC LIMIT 1"
    for condition in (_HAS_ID, of_client, f"position IN ({SQL.position_of_message})"):
        given = {"id": key, "agent": agent, "message_id": key}
        found: Any = db.execute(f"{SQL.columns} WHERE {condition}", given).fetchone()
        if found is not None:
            return OutboxRow(*found)
    if not is_short_event_id(key):
        return None
    condition = f"position IN ({SQL.positions_of_short_id})"
    rows: Any = db.execute(f"{SQL.columns} WHERE {condition}", {"first": key, "last": key + "g"}).fetchall()
    if len(rows) > 1:
        raise error("id_ambiguous", id=key)
    return OutboxRow(*rows[0]) if rows else None


def list_rows(db: apsw.Connection, wanted: OutboxFilter) -> list[OutboxRow]:
    """Return the rows of a page."""
    given: tuple[tuple[str, int | str | None], ...] = (
        ("position > ?", wanted.after),
        ("position < ?", wanted.before),
        ("enqueued_at_ns >= ?", wanted.since_ns or None),
        ("enqueued_at_ns < ?", wanted.until_ns),
        ("status = ?" if wanted.status == "pending" else "status = ? AND status <> 'pending'", wanted.status),
        ("destination = ?", wanted.destination),
        ("to_agent = ?", wanted.to_agent),
        ("from_agent = ?", wanted.from_agent),
    )
    where = " AND ".join(text for text, value in given if value is not None)
    values = [value for _text, value in given if value is not None]
    order = "DESC" if wanted.is_newest_first else "ASC"
    query = f"{SQL.columns} WHERE {where} ORDER BY position {order} LIMIT ?"
    return [OutboxRow(*found) for found in db.execute(query, (*values, wanted.limit))]


def chain_of(db: apsw.Connection, row: OutboxRow) -> list[OutboxRow]:
    """Return a row with its predecessors and successors, oldest first."""
    chain = [row]
    while len(chain) < CHAIN_MAX:
        found: Any = db.execute(f"{SQL.columns} WHERE superseded_by = ?", (chain[0].id,)).fetchone()
        if found is None:
            break
        chain.insert(0, OutboxRow(*found))
    while len(chain) < CHAIN_MAX and chain[-1].superseded_by is not None:
        found = db.execute(f"{SQL.columns} WHERE {_HAS_ID}", {"id": chain[-1].superseded_by}).fetchone()
        if found is None:
            break
        chain.append(OutboxRow(*found))
    return chain
