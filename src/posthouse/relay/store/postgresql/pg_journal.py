"""The journal on PostgreSQL: appending inside the writer's transaction, reading beside it, its epochs.

The transaction reads the head once it holds the write lock; seq follows commit order without gaps because no other
transaction of any relay can append meanwhile. Until several relays can share a store, the write session also holds a
session lock: a second relay is refused, and a relay that lost its session ends if another one has written since.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

import psycopg

from posthouse.journal.append import JournalAppender
from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record
from posthouse.journal.read import ancestors
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.postgresql.group_transaction import GroupTransaction
from posthouse.postgresql.server_connection import ServerConnection, open_writer_session, translate
from posthouse.postgresql.store_url import shown_url
from posthouse.sqlite.statements import Statements

SCHEMA = "posthouse.relay.store.postgresql.schema"
JOURNAL_SQL = Statements(SCHEMA, "journal.sql")
_RELAY_LOCK = 0x706F7374_00000003  # held by the session of the one relay of a store
_SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', $1, false)"
_LOCK_PATIENCE_MS = 2_000  # the server needs a moment to notice that a killed relay is gone


class PgTransaction(JournalAppender, GroupTransaction):
    """A transaction that can append facts to the journal."""

    def __init__(self, url: str) -> None:
        self._committed_head: int | None = None
        self._head_at_begin = 0
        super().__init__(url)

    def open_session(self) -> ServerConnection:
        """Open the write session and take the lock of the store's relay."""
        session = open_writer_session(self.url)
        try:
            former = session.value("SELECT current_setting('lock_timeout')")
            session.queue(_SET_LOCK_TIMEOUT, f"{_LOCK_PATIENCE_MS}ms")
            session.queue("SELECT pg_advisory_lock($1)", _RELAY_LOCK)
            session.queue(_SET_LOCK_TIMEOUT, former)
        except psycopg.Error as exc:
            session.close()
            if isinstance(exc, psycopg.errors.LockNotAvailable) and self._committed_head is None:
                raise error("store_in_use", path=shown_url(self.url)) from exc
            raise translate(exc, self.url) from exc
        return session

    def begin(self, wall_ns: int) -> None:
        head, newest_ns, self.xact_id = self.db.row(JOURNAL_SQL.head) or (0, 0, None)
        if self._committed_head not in (None, head):
            raise error("store_taken_over", url=shown_url(self.url))
        self._head = self._head_at_begin = head
        self.now_ns = max(self.now_ns, wall_ns, newest_ns)

    def flush(self) -> None:
        if self._unwritten:
            rows, self._unwritten = self._unwritten, []
            seqs, times, types, meshes, actors, refs, bodies = map(list, zip(*rows, strict=True))
            packed = [pack(ref) for ref in refs]
            self.db.queue(JOURNAL_SQL.append, seqs, times, types, meshes, actors, packed, bodies)

    def before_commit(self) -> None:
        if self._head != self._head_at_begin:
            self.flush()
            self.db.queue(JOURNAL_SQL.notify_head, str(self._head))

    def committed(self) -> None:
        self._committed_head = self._head

    def rolled_back(self) -> None:
        self._unwritten = []


def pack(name: str | None) -> bytes | None:
    """Return a name that may hold any text as the database keeps it: text refuses NUL."""
    return None if name is None else name.encode()


def unpack(name: bytes | None) -> str | None:
    """Return a name that the database keeps as bytes."""
    return None if name is None else name.decode()


def begin_first_epoch(db: ServerConnection, clock: Clock) -> None:
    """Start the first epoch of a new store."""
    if not db.rows(JOURNAL_SQL.all_epochs):
        db.queue(JOURNAL_SQL.add_epoch, secrets.token_hex(16), clock.wall_ns())


def read_extent(db: ServerConnection) -> Extent:
    """Return epoch, horizon and head of one snapshot."""
    found: list[Any] = db.rows(JOURNAL_SQL.all_epochs)
    pruned_through, head = db.row(JOURNAL_SQL.extent) or (0, 0)
    epoch, _parent, fork_seq = found[-1]
    return Extent(epoch, fork_seq, pruned_through, head, ancestors(found))


def read_after(db: ServerConnection, seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
    """Return up to `limit` records after `seq`, oldest first, of the given types or of all."""
    if types is None:
        rows = db.rows(JOURNAL_SQL.read_after, seq, limit)
    else:
        rows = db.rows(JOURNAL_SQL.read_types_after, seq, sorted(types), limit)
    return [
        Record(seq, at_ns, type_, mesh, actor, unpack(ref), body) for seq, at_ns, type_, mesh, actor, ref, body in rows
    ]
