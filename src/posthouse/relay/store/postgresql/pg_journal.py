"""The journal on PostgreSQL: appending inside the writer's transaction, reading beside it, its epochs.

The transaction reads the head once it holds the write lock; seq follows commit order without gaps because no other
transaction of any relay can append meanwhile. The write session of a relay that is alone also holds a session lock: a
second relay is refused, and a relay that lost its session ends if another one has written since.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import Any

import psycopg

from posthouse.journal.append import JournalAppender
from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record
from posthouse.journal.read import ancestors
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, error
from posthouse.postgresql.group_transaction import GroupTransaction
from posthouse.postgresql.server_connection import ServerConnection, open_reader_session, open_writer_session, translate
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.store.high_water import MovedTo, ServerTimeline, StoredState
from posthouse.relay.store.postgresql.pg_failover import (
    FAILOVER_SQL,
    EpochRow,
    ServerChange,
    ServerIdentity,
    ServerWatch,
    change_of,
    read_epoch_row,
    read_server,
)
from posthouse.storage.sql_files import Statements

log = get_log(__name__)

SCHEMA = "posthouse.relay.store.postgresql.schema"
JOURNAL_SQL = Statements(SCHEMA, "journal.sql")
MOVING_SQL = Statements(SCHEMA, "moving.sql")
RELAY_LOCK = 0x706F7374_00000003  # held by the write session of each relay of a store
_SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', $1, false)"
_LOCK_PATIENCE_MS = 2_000  # the server needs a moment to notice that a killed relay is gone


_SHARE_HINT = "Stop the relay that uses it, or give each relay of a database the same key and its own relay.advertise."


class PgTransaction(JournalAppender, GroupTransaction):
    """A transaction that can append facts to the journal."""

    #: seq of the last record of another relay that changed a mesh
    meshes_changed_at = 0
    #: how the session lock of the store's relays is taken
    take_relay_lock = "SELECT pg_advisory_lock($1)"

    def __init__(self, url: str) -> None:
        #: the head that this relay knows; None before its first transaction
        self.known_head: int | None = None
        self._head_at_begin = 0
        #: the epoch that this relay writes in, and the one of the open transaction
        self.epoch = self._epoch = ""
        self.watch = ServerWatch(url)
        #: the server that this relay last committed on, and that of the open session
        self._known_server: ServerIdentity | None = None
        self.server: ServerIdentity
        #: whether deletions block anything: if not, no group has to check
        self.has_tombstones = False
        super().__init__(url)

    def open_session(self) -> ServerConnection:
        """Open the write session and take the lock of the store's relay."""
        session = open_writer_session(self.url)
        try:
            former = session.value("SELECT current_setting('lock_timeout')")
            session.queue(_SET_LOCK_TIMEOUT, f"{_LOCK_PATIENCE_MS}ms")
            session.queue(self.take_relay_lock, RELAY_LOCK)
            session.queue(_SET_LOCK_TIMEOUT, former)
            self.server = self.watch.check(session)
        except PosthouseError:
            session.close()
            raise
        except psycopg.Error as exc:
            session.close()
            if isinstance(exc, psycopg.errors.LockNotAvailable) and self.known_head is None:
                raise error("store_in_use", path=shown_url(self.url), hint=_SHARE_HINT) from exc
            raise translate(exc, self.url) from exc
        return session

    def begin(self, wall_ns: int) -> None:
        row = self.db.row(JOURNAL_SQL.head)
        assert row is not None
        head, newest_ns, self.xact_id, self.has_tombstones, *epoch, is_waiting = row
        self._check_server(EpochRow(*epoch), head)
        self.check_head(head)
        self._note_replication(EpochRow(*epoch), head, wall_ns, is_waiting=is_waiting)
        self.head = self._head_at_begin = head
        self.wall_ns = wall_ns
        self.now_ns = max(self.now_ns, wall_ns, newest_ns)

    def _check_server(self, row: EpochRow, head: int) -> None:
        """Continue after a failover that lost nothing; after any other this relay has to restart."""
        if self.known_head is None:
            return  # its start has just decided
        change = change_of(row, self.server)
        has_other_epoch = self.server != self._known_server and row.epoch != self.epoch
        if change is ServerChange.LOSSY or has_other_epoch or head < self.known_head:
            raise error("store_failed_over", url=shown_url(self.url), server=str(self.server))
        if change is ServerChange.COMPLETE:
            log.info("server_changed", store=shown_url(self.url), server=str(self.server), epoch=row.epoch)
            self.db.queue(FAILOVER_SQL.set_server, row.epoch, *self.server)

    def _note_replication(self, row: EpochRow, head: int, wall_ns: int, *, is_waiting: bool) -> None:
        """Note in the epoch's row that a synchronous standby has all of it; begin another epoch when that ends."""
        self._epoch = row.epoch
        if is_waiting and not row.is_replicated:
            self.db.queue(FAILOVER_SQL.set_replicated, row.epoch)
        elif row.is_replicated and not is_waiting:
            self._epoch = secrets.token_hex(16)
            log.warning("epoch_begun", store=shown_url(self.url), epoch=self._epoch, reason="no synchronous standby")
            self.db.queue(JOURNAL_SQL.add_epoch, self._epoch, row.epoch, head, wall_ns)
            self.db.queue(FAILOVER_SQL.set_server, self._epoch, *self.server)

    def ask_outcome(self) -> str | None:
        """Return the outcome of a transaction; on another server its number may belong to another transaction."""
        if self.server == self._known_server or self._known_server is None:
            return super().ask_outcome()
        has_records = self.head != self._head_at_begin
        is_there = has_records and self.db.value(FAILOVER_SQL.record_time, self.head) == self.now_ns
        return "committed" if is_there else "aborted"

    def check_head(self, head: int) -> None:
        """Refuse a head that another relay has moved."""
        if self.known_head not in (None, head):
            raise error("store_taken_over", url=shown_url(self.url))

    def flush(self) -> None:
        if self._unwritten:
            rows, self._unwritten = self._unwritten, []
            seqs, times, types, meshes, actors, refs, bodies = map(list, zip(*rows, strict=True))
            packed = [pack(ref) for ref in refs]
            self.db.queue(JOURNAL_SQL.append, seqs, times, types, meshes, actors, packed, bodies)

    def before_commit(self) -> None:
        self.flush()

    def committed(self) -> None:
        self.known_head = self.head
        self.epoch = self._epoch
        self._known_server = self.server

    def rolled_back(self) -> None:
        self._unwritten = []


def pack(name: str | None) -> bytes | None:
    """Return a name that may hold any text as the database keeps it: text refuses NUL."""
    return None if name is None else name.encode()


def unpack(name: bytes | None) -> str | None:
    """Return a name that the database keeps as bytes."""
    return None if name is None else name.decode()


def find_stored(url: str) -> StoredState:
    """Return the state of the store in a database."""
    session = open_reader_session(url)
    try:
        return read_stored(session)
    except psycopg.Error as exc:
        raise translate(exc, url) from exc
    finally:
        session.close()


def read_stored(db: ServerConnection) -> StoredState:
    """Return the state of the store that a session sees; older schemas know of no moves and no servers."""
    has_journal, has_mark, has_servers = db.row(MOVING_SQL.has_tables) or (False, False, False)
    if not has_journal or not db.rows(JOURNAL_SQL.all_epochs):
        return StoredState()
    moved = db.row(MOVING_SQL.moved_to) if has_mark else None
    row, server = read_epoch_row(db) if has_servers else None, read_server(db)
    is_elsewhere = row is not None and change_of(row, server) is not ServerChange.NONE
    return StoredState(
        read_extent(db),
        None if moved is None else MovedTo(*moved),
        ServerTimeline(server.system, server.timeline),
        is_elsewhere,
    )


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
    return _records(rows)


def read_newest(
    db: ServerConnection, after_seq: int, through_seq: int, limit: int, types: Collection[str] | None = None
) -> list[Record]:
    """Return up to `limit` records of a range, newest first, of the given types or of all."""
    names = None if types is None else sorted(types)
    return _records(db.rows(JOURNAL_SQL.read_newest, after_seq, through_seq, names, limit))


def _records(rows: Iterable[Any]) -> list[Record]:
    return [
        Record(seq, at_ns, type_, mesh, actor, unpack(ref), body) for seq, at_ns, type_, mesh, actor, ref, body in rows
    ]
