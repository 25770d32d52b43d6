"""The inbox: messages for this node, stored once each before they are confirmed to the relay.

A message is new when its sender and client_message_id were not seen before; only then are the `on_new` callbacks
called, after the commit. The names in `shown` are a contract of the local interface. If you change one: 1.
DaemonClient, 2. docs/reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import Store, exit_process
from posthouse.model.clock import Clock, format_utc
from posthouse.model.errors import Fatal, error
from posthouse.model.ulid import Minter
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

_PACKAGE = "posthouse.daemon.inbox"
INBOX = Component("inbox", _PACKAGE)
SQL = Statements(_PACKAGE, "inbox.sql")


class NewItem(NamedTuple):
    """A message to be stored."""

    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    #: None when it could not be opened
    body: str | None
    #: JCS text, "" when absent
    meta: str
    reply_to_id: str | None
    priority: str
    #: the text of its budget tag
    budget: str | None
    #: why it could not be opened
    undecryptable: str | None


class InboxItem(NamedTuple):
    """A stored message."""

    position: int
    id: str
    client_message_id: str
    message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_name: str | None
    body: str | None
    meta: str
    received_at_ns: int
    reply_to_id: str | None
    seen_at_ns: int | None
    priority: str
    budget: str | None
    undecryptable: str | None

    def shown(self) -> dict[str, Any]:
        """Return the message as the local interface tells it; one that cannot be opened has no body and says why."""
        return {
            "id": self.id,
            "client_message_id": self.client_message_id,
            "message_id": self.message_id,
            "mesh": self.mesh,
            "topic": self.topic,
            "sender": self.sender,
            "sender_name": self.sender_name,
            "body": self.body,
            "meta": msgspec.json.decode(self.meta) if self.meta else None,
            "received_at": format_utc(self.received_at_ns),
            "reply_to_id": self.reply_to_id,
            "seen_at": None if self.seen_at_ns is None else format_utc(self.seen_at_ns),
            "priority": self.priority,
            "undecryptable": self.undecryptable,
        }


class InboxFilter(NamedTuple):
    """What a reader of the inbox asks for."""

    #: position after which it looks
    after: int = 0
    topic: str | None = None
    sender: str | None = None
    is_unread: bool = False
    limit: int = 100
    #: received at or after, wall time
    since_ns: int = 0

    def matches(self, item: InboxItem) -> bool:
        """Tell whether a message is asked for."""
        return (
            item.position > self.after
            and item.received_at_ns >= self.since_ns
            and self.topic in (None, item.topic)
            and self.sender in (None, item.sender)
            and not (self.is_unread and item.seen_at_ns is not None)
        )


FILE_NAME = "inbox.db"
_SWEEP_ROWS = 500  # per transaction


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
        self.minter = Minter(clock)
        self._mesh = mesh
        self._is_bridged = is_bridged
        #: told the new messages of each commit
        self.on_new: list[Callable[[Sequence[InboxItem]], None]] = []

    def close(self) -> None:
        """Commit what waits and close."""
        self.store.close()

    async def put(self, items: Sequence[NewItem]) -> list[InboxItem]:
        """Store messages; return those that are new, once they are durable."""
        is_bridged = self._is_bridged
        size = sum(len(item.body or "") for item in items)
        fresh = await self.store.writer.run(lambda tx: _put(tx, items, is_bridged=is_bridged), size=size)
        if fresh:
            for tell in self.on_new:
                tell(fresh)
        return fresh

    async def probe(self) -> None:
        """Find out whether the store can be written; raises why not."""
        await self.store.writer.run(lambda tx: tx.db.execute(SQL.probe, (tx.now_ns,)).fetchall())

    async def find(self, key: str) -> InboxItem:
        """Return a message by its id in the inbox or its message id; raises inbox_item_unknown."""
        found = await self.store.pool.run(lambda db: find_item(db, key))
        if found is None:
            raise error("inbox_item_unknown", id=key)
        return found

    async def items(self, wanted: InboxFilter) -> list[InboxItem]:
        """Return messages, newest first."""
        return await self.store.pool.run(lambda db: list_items(db, wanted, "DESC"))

    async def items_after(self, position: int, limit: int) -> list[InboxItem]:
        """Return the messages behind a position, oldest first."""
        return await self.store.pool.run(lambda db: list_items(db, InboxFilter(after=position, limit=limit), "ASC"))

    async def position_of(self, item_id: str) -> int | None:
        """Return the position of a message."""
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.position_of, (item_id,)).get)
        return found if isinstance(found, int) else None

    async def mark_seen(self, ids: Sequence[str]) -> int:
        """Note that messages were read; return how many were not before."""
        return await self.store.writer.run(lambda tx: _mark_seen(tx, ids, self._mesh))

    async def budget_of(self, message_id: str) -> tuple[bool, str | None]:
        """Return whether a message was received, and the text of its budget if it has one."""
        found: Any = await self.store.pool.run(lambda db: db.execute(SQL.budget_of, (message_id,)).fetchone())
        return (False, None) if found is None else (True, found[0])

    async def delete_before(self, before_ns: int) -> int:
        """Delete messages received before a time; return how many, zero when there are none left."""
        return await self.store.writer.run(lambda tx: _delete(tx, before_ns, self._mesh))

    # for the bridge

    async def to_bridge(self, after: int, limit: int) -> list[InboxItem]:
        """Return the messages the bridge has still to publish, oldest first."""
        return await self.store.pool.run(
            lambda db: [InboxItem(*row) for row in db.execute(SQL.to_bridge, (after, limit))]
        )

    async def mark_bridged(self, outcomes: Sequence[tuple[str, int]]) -> None:
        """Note what the bridge did: state and position of each message."""
        await self.store.writer.run(lambda tx: tx.db.executemany(SQL.mark_bridged, outcomes).fetchall())


def _put(tx: JournalTransaction, items: Sequence[NewItem], *, is_bridged: bool) -> list[InboxItem]:
    fresh: list[InboxItem] = []
    for item in items:
        if tx.db.execute(SQL.known, (item.sender, item.client_message_id)).get is None:
            fresh.append(_insert(tx, item, is_bridged=is_bridged))
    return fresh


def _insert(tx: JournalTransaction, item: NewItem, *, is_bridged: bool) -> InboxItem:
    row = (*item[:9], tx.now_ns, *item[9:])
    bridge = "waiting" if is_bridged and item.undecryptable is None else "off"
    position: Any = tx.db.execute(SQL.insert_row, (*row, bridge)).get
    body: dict[str, Any] = {
        "client_message_id": item.client_message_id,
        "message_id": item.message_id,
        "size": len((item.body or "").encode()),
    }
    if item.topic is not None:
        body["topic"] = item.topic
    if item.undecryptable is not None:
        body["undecryptable"] = True
    tx.append("inbox.received", mesh=item.mesh, actor=item.sender, ref=item.id, body=body)
    return InboxItem(position, *row[:11], None, *row[11:])


def _mark_seen(tx: JournalTransaction, ids: Sequence[str], mesh: str) -> int:
    seen: list[str] = []
    for item_id in dict.fromkeys(ids):
        tx.db.execute(SQL.mark_seen, (tx.now_ns, item_id, item_id))
        if tx.db.changes():
            seen.append(item_id)
    if seen:
        tx.append("inbox.seen", mesh=mesh, ref=seen[-1], body={"ids": seen})
    return len(seen)


def _delete(tx: JournalTransaction, before_ns: int, mesh: str) -> int:
    deleted: list[Any] = list(tx.db.execute(SQL.delete_old, (before_ns, _SWEEP_ROWS)))
    if deleted:
        tx.append("inbox.deleted", mesh=mesh, ref=deleted[-1][0], body={"count": len(deleted)})
    return len(deleted)


def newest_position(db: apsw.Connection) -> int:
    """Return the position of the newest message, zero when there is none."""
    found: Any = db.execute(SQL.newest_position).get
    return int(found)


def find_item(db: apsw.Connection, key: str) -> InboxItem | None:
    """Return the message a key names."""
    for column in ("id", "message_id"):
        found: Any = db.execute(f"{SQL.columns} WHERE {column} = ?", (key,)).fetchone()
        if found is not None:
            return InboxItem(*found)
    return None


def list_items(db: apsw.Connection, wanted: InboxFilter, order: str) -> list[InboxItem]:
    """Return the messages that are asked for."""
    terms, given = ["position > ?"], [wanted.after]  # type: list[str], list[int | str]
    for term, value in (("topic = ?", wanted.topic), ("sender = ?", wanted.sender)):
        if value is not None:
            terms.append(term)
            given.append(value)
    if wanted.since_ns:
        terms.append("received_at_ns >= ?")
        given.append(wanted.since_ns)
    if wanted.is_unread:
        terms.append("seen_at_ns IS NULL")
    where = " AND ".join(terms)
    query = f"{SQL.columns} WHERE {where} ORDER BY position {order} LIMIT ?"
    return [InboxItem(*row) for row in db.execute(query, (*given, wanted.limit))]
