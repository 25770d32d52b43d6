"""The inbox: messages for this node, stored once each before they are confirmed to the relay.

Every agent of the host has its own inbox and read state; the default inbox has the agent "". A message is stored once,
with a row for each agent whose inbox it is in, and is always in at least one. It is new if its combination of sender,
sender's agent and client_message_id was not seen before; only then are the `on_new` callbacks called, after the commit.
The relay refuses a second message under one client_message_id, but a relay restored from a backup may have forgotten
the first: the inbox keeps a different message as a new one that `conflicts_with` the first, so it is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.daemon.inbox import selection
from posthouse.daemon.inbox.inbox_items import InboxItem, NewItem
from posthouse.daemon.inbox.read_state import mark_seen, note_handed, trace_read, unread_spans
from posthouse.daemon.inbox.received_requests import ReceivedRequests, close_request
from posthouse.daemon.inbox.replacing import StoredMessage, replace_messages
from posthouse.daemon.inbox.selection import InboxFilter, index_messages, newest_position, select_rows
from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store, exit_process
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.budget import Cause, MeshBudget, decode_mesh_budget
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, error
from posthouse.model.event import is_short_event_id
from posthouse.model.freshness import read_freshness
from posthouse.model.limits import SAFE_INTEGER_MAX
from posthouse.model.request import read_request
from posthouse.model.ulid import UlidGenerator
from posthouse.storage.sql_files import Component, Statements
from posthouse.tracing import Tracer

_PACKAGE = "posthouse.daemon.inbox"
INBOX = Component("inbox", _PACKAGE)
SQL = Statements(_PACKAGE, "inbox.sql")


_SWEEP_ROWS = 500  # per transaction
_MAX_ANSWERS = 100  # of one page


def sender_ref(node: str, agent: str) -> str:
    """Return the text that identifies an agent of a node: a reply among them is a return only to the right one."""
    return f"{node}/{agent}" if agent else node


class Inbox:
    """One open inbox."""

    def __init__(
        self,
        path: Path,
        mesh: str,
        clock: Clock,
        *,
        is_bridged: bool = False,
        on_fatal: Callable[[Fatal], None] = exit_process,
    ) -> None:
        self.store = Store(path, (INBOX,), clock, on_fatal=on_fatal, readers=2)
        self.minter = UlidGenerator(clock)
        self.mesh = mesh
        self._is_bridged = is_bridged
        self.requests = ReceivedRequests(self.store)
        #: callback() after messages were handed to an agent's program
        self.on_handed: Callable[[], None] = lambda: None
        #: returns the process that an agent reads with, None if it has none
        self.reader_of: Callable[[str], str | None] = lambda _agent: None
        #: None: messages are not traced
        self.tracer: Tracer | None = None
        #: callbacks(new messages of a commit)
        self.on_new: list[Callable[[Sequence[InboxItem]], None]] = []

    def close(self) -> None:
        """Commit the waiting writes and close."""
        self.store.close()

    async def put(self, items: Sequence[NewItem]) -> list[InboxItem]:
        """Store messages; return the new ones once they are durable, one item for each agent that got it."""
        is_bridged = self._is_bridged
        size = sum(len(item.body or "") for item in items)
        fresh = await self.store.writer.run(
            lambda tx: _put(tx, items, is_bridged=is_bridged), size=size, is_short=len(items) == 1
        )
        if fresh:
            self.requests.note_new(item.valid_until_ns for item in fresh if item.request is not None)
            for callback in self.on_new:
                callback(fresh)
        return fresh

    async def probe(self) -> None:
        """Write to the store; raises an error if it cannot be written."""
        await self.store.probe()

    async def find(self, key: str, agent: str = DEFAULT_INBOX) -> InboxItem:
        """Return a message of an agent's inbox by its id there or its message id; raises inbox_item_unknown."""
        found = await self.store.pool.run(lambda db: find_item(db, key, agent))
        if found is None:
            raise error("inbox_item_unknown", id=key[:80])
        return found

    async def items(self, wanted: InboxFilter) -> list[InboxItem]:
        """Return the messages that a filter selects."""
        if wanted.search is not None:
            await self.index()
        if wanted.is_unread:
            await self.requests.close_late()
        return await self.store.pool.run(lambda db: [InboxItem(*row) for row in select_rows(db, SQL.columns, wanted)])

    async def between(self, node: str, agent: str, peer: str, before: int | None, limit: int) -> list[InboxItem]:
        """Return direct messages of this node to itself between two agents, newest first; "" means any agent."""
        bound = SAFE_INTEGER_MAX if before is None else before
        given = {"node": node, "agent": agent, "peer": peer, "before": bound, "limit": limit}
        return await self.store.pool.run(lambda db: [InboxItem(*row) for row in db.execute(SQL.between_agents, given)])

    async def known_messages(self, message_ids: Sequence[str]) -> set[str]:
        """Return which of these messages the inbox has."""
        wanted = msgspec.json.encode(message_ids).decode()
        return await self.store.pool.run(lambda db: {found for (found,) in db.execute(SQL.known_messages, (wanted,))})

    async def newest_position(self) -> int:
        """Return the position of the newest message, zero if there is none."""
        return await self.store.pool.run(newest_position)

    async def mark_seen(self, ids: Sequence[str], agent: str = DEFAULT_INBOX) -> int:
        """Mark messages of an agent's inbox as read; return how many were unread."""
        read_by = self.reader_of(agent)
        traced = [] if self.tracer is None else await self.store.pool.run(lambda db: unread_spans(db, ids, agent))
        count = await self.store.writer.run(lambda tx: mark_seen(tx, ids, agent, read_by, self.mesh))
        self.on_handed()
        if self.tracer is not None:
            trace_read(self.tracer, traced, agent, self.mesh)
        return count

    async def note_handed(self, ids: Sequence[str], agent: str, *, is_confirmed: bool = False) -> None:
        """Note that the program of an agent has the full text of messages; `is_confirmed` includes stale ones."""
        if agent:
            await self.store.writer.run(lambda tx: note_handed(tx, ids, agent, is_confirmed=is_confirmed))
            self.on_handed()

    async def resolve(self, keys: Sequence[str], agent: str) -> dict[str, str]:
        """Return the inbox ids of messages by the ids, message ids or beginnings of them that an agent gave."""

        def look(db: apsw.Connection) -> dict[str, str]:
            found = {key: find_item(db, key, agent) for key in keys}
            return {key: item.id for key, item in found.items() if item is not None}

        return await self.store.pool.run(look)

    async def unread_counts(self) -> dict[str, int]:
        """Return how many messages are unread, by agent; agents without unread mail are absent."""
        await self.requests.close_late()
        return await self.store.pool.run(lambda db: dict(db.execute(SQL.unread_counts)))

    async def oldest_unread_ns(self) -> dict[str, int]:
        """Return when the oldest unread message arrived, by agent; agents without unread mail are absent."""
        await self.requests.close_late()
        return await self.store.pool.run(lambda db: dict(db.execute(SQL.oldest_unread)))

    async def unread_count(self, agent: str) -> int:
        """Return how many messages of an agent are unread."""
        await self.requests.close_late()
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.unread_count, (agent,)).get)
        return int(found)

    async def rename_agent(self, name: str, to: str) -> None:
        """Move the mail of an agent to its new name; a second call does nothing."""
        await self.store.writer.run(lambda tx: tx.db.execute(SQL.rename_agent, (to, name)).fetchall())

    async def mark_all_seen(self, wanted: InboxFilter) -> int:
        """Mark as read every message that a filter selects in the inbox now; return how many were unread."""
        newest = await self.newest_position()
        before = newest + 1 if wanted.before is None else min(wanted.before, newest + 1)
        wanted = wanted._replace(before=before, is_unread=True, is_newest_first=False, limit=_SWEEP_ROWS)
        count = 0
        while items := await self.items(wanted):
            count += await self.mark_seen([item.id for item in items], wanted.agent)
            wanted = wanted._replace(after=items[-1].position)
        return count

    async def index(self) -> None:
        """Complete the full-text index."""
        while await self.store.writer.run(index_messages):
            pass

    async def find_cause(self, message_id: str) -> tuple[Cause, MeshBudget | None] | None:
        """Return a received message as the cause of another one, with its budget if it has one; None if unknown.

        The sender of the cause is written as `sender_ref` writes it.
        """
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.cause, (message_id,)).fetchone())
        if found is None:
            return None
        sender, from_agent, topic, text = found
        budget = None if text is None else decode_mesh_budget(text)
        is_return = budget is not None and budget.is_return
        return Cause(
            message_id, sender_ref(sender, from_agent), None if topic is None else f"#{topic}", is_return
        ), budget

    async def answers(self, message_id: str, agent: str, after: int) -> list[InboxItem]:
        """Return messages to an agent that name a message as the one they answer, after a position."""
        query, values = f"{SQL.columns} {SQL.answers}", (message_id, agent, after, _MAX_ANSWERS)
        return await self.store.pool.run(lambda db: [InboxItem(*row) for row in db.execute(query, values)])

    async def delete_before(self, before_ns: int) -> int:
        """Delete messages that were read before a time; return how many, zero once there are none left."""
        return await self.store.writer.run(lambda tx: _delete(tx, before_ns, self.mesh))

    # for the bridge

    async def unbridged(self, after: int, limit: int) -> list[InboxItem]:
        """Return the messages that the bridge still has to publish, oldest first."""
        return await self.store.pool.run(
            lambda db: [InboxItem(*row) for row in db.execute(SQL.unbridged, (after, limit))]
        )

    async def set_bridge_states(self, outcomes: Sequence[tuple[str, int]]) -> None:
        """Store the bridge state of messages: pairs of state and position."""
        await self.store.writer.run(lambda tx: tx.db.executemany(SQL.set_bridge_states, outcomes).fetchall())


def _put(tx: JournalTransaction, items: Sequence[NewItem], *, is_bridged: bool) -> list[InboxItem]:
    fresh: list[InboxItem] = []
    for item in items:
        known = [
            _Known(*row)
            for row in tx.db.execute(SQL.same_client_message_id, (item.sender, item.client_message_id, item.from_agent))
        ]
        if not any(each.is_same_as(item) for each in known):
            fresh.extend(_insert(tx, item, known[0].id if known else None, is_bridged=is_bridged))
    return fresh


class _Known(NamedTuple):
    """What identifies a stored message besides its sender, the sender's agent and its client_message_id."""

    id: str
    message_id: str
    topic: str | None
    reply_to_id: str | None
    priority: str
    meta: str
    body: str | None
    to_agent: str

    def is_same_as(self, item: NewItem) -> bool:
        """Return True for the same event, or for another event with equal content, such as one sealed again."""
        if self.message_id == item.message_id:
            return True
        content = (item.topic, item.reply_to_id, item.priority, item.meta, item.body, item.to_agent)
        mine = (self.topic, self.reply_to_id, self.priority, self.meta, self.body, self.to_agent)
        return item.body is not None and content == mine


def _insert(tx: JournalTransaction, item: NewItem, conflicts_with: str | None, *, is_bridged: bool) -> list[InboxItem]:
    meta = msgspec.json.decode(item.meta) if item.meta else None
    said, request = read_freshness(meta), read_request(meta)
    is_late = request is not None and tx.wall_ns >= request.deadline_ns
    fields = {**item._asdict(), "received_at_ns": tx.now_ns, "conflicts_with": conflicts_with}
    fields |= {"valid_until_ns": said.valid_until_ns, "is_failure": int(said.is_failure)}
    fields["request"] = None if request is None else request.mode.value
    agents = fields.pop("agents")
    is_published = is_bridged and item.undecryptable is None and said.withdraws is None and not is_late
    bridge = "waiting" if is_published else "off"
    replaces = {"replaces": said.withdraws or said.supersedes, "withdraws": said.withdraws is not None}
    tx.db.execute(SQL.insert_row, {**fields, **replaces, "bridge": bridge})
    position = tx.db.last_insert_rowid()
    body: dict[str, Any] = {
        "client_message_id": item.client_message_id,
        "message_id": item.message_id,
        "size": len((item.body or "").encode()),
    }
    tx.db.executemany(SQL.insert_agent, [(agent, position) for agent in agents])
    if item.topic is not None:
        body["topic"] = item.topic
    if item.from_agent:
        body["from_agent"] = item.from_agent
    if agents != (DEFAULT_INBOX,):
        body["agents"] = list(agents)
    if item.undecryptable is not None:
        body["undecryptable"] = True
    if conflicts_with is not None:
        body["conflicts_with"] = conflicts_with
    tx.append("inbox.received", mesh=item.mesh, actor=item.sender, ref=item.id, body=body)
    stored = StoredMessage(position, item.id, item.message_id, item.sender, item.from_agent, agents)
    shown_to = replace_messages(tx, stored, said)
    if is_late:
        close_request(tx, position)
        shown_to = ()
    return [InboxItem(position=position, seen_at_ns=None, agent=agent, **fields) for agent in shown_to]


def _delete(tx: JournalTransaction, before_ns: int, mesh: str) -> int:
    deleted: list[Any] = list(tx.db.execute(SQL.delete_old, (before_ns, _SWEEP_ROWS)))
    if deleted:
        tx.db.executemany(selection.SQL.unindex_row, [(position,) for position, _id in deleted])
        tx.append("inbox.deleted", mesh=mesh, ref=deleted[-1][1], body={"count": len(deleted)})
    return len(deleted)


def find_item(db: apsw.Connection, key: str, agent: str) -> InboxItem | None:
    """Return a message of an agent's inbox by its id there or the beginning of its message id."""
    for column in ("id", "message_id"):
        found: Any = db.execute(f"{SQL.columns} WHERE {column} = ? AND agent = ?", (key, agent)).fetchone()
        if found is not None:
            return InboxItem(*found)
    if not is_short_event_id(key):
        return None
    condition = "message_id BETWEEN ? AND ? AND agent = ?"
    rows: Any = db.execute(f"{SQL.columns} WHERE {condition} LIMIT 2", (key, key + "g", agent)).fetchall()
    if len(rows) > 1:
        raise error("id_ambiguous", id=key)
    return InboxItem(*rows[0]) if rows else None
