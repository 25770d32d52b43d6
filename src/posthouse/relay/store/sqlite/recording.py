"""Record the changes of a store for its followers: one changeset of SQLite's session extension for each transaction.

The changeset is written in the transaction that it describes, so after a kill both exist or neither. Only the newest
changesets are kept, within a bound of bytes. A recording survives restarts of the relay; it ends when its row no longer
matches the store, because a restore, a migration or another program has written without it. Without a recording there
is no session and a transaction does nothing for it. Changes of the two tables of the recording are not recorded.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.journal.read import read_extent
from posthouse.journal.store import Store
from posthouse.log import get_log
from posthouse.model.errors import error
from posthouse.relay.store.copies import KeptGroup
from posthouse.relay.wire.change_groups import FIRST_DIGEST, ChangeGroup, ChangesPage, StreamPosition, next_digest
from posthouse.sqlite.backup import copy_database
from posthouse.sqlite.connection import open_reader
from posthouse.storage.sql_files import Component, Statements

log = get_log(__name__)
FOLLOW = Component("follow", "posthouse.relay.store.sqlite.schema.follow")
FOLLOW_SQL = Statements("posthouse.relay.store.sqlite.schema.follow", "follow.sql")
#: tables of the recording itself, which are not recorded
RECORDING_TABLES = ("change_stream", "changesets")
MAX_BYTES = 64 * 1024 * 1024  # a busy minute of a relay, or a quiet day


class _Recorded(NamedTuple):
    """The group of the open transaction."""

    group: KeptGroup
    digest: bytes
    #: the last group that has to make room for it; 0: none
    dropped_through: int


class ChangeRecording:
    """Records on the thread that writes; one object for the life of a store."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tx: JournalTransaction | None = None
        self._session: apsw.Session | None = None
        self._is_ending = False
        self._position: StreamPosition | None = None
        self._recorded: _Recorded | None = None
        self._kept_bytes = 0
        #: groups that can be read, oldest first
        self.kept: deque[KeptGroup] = deque()
        #: called on the writing thread after each commit that recorded a group, and after the recording has ended
        self.on_recorded: Callable[[], None] = lambda: None

    @property
    def is_on(self) -> bool:
        """Whether transactions are recorded."""
        return self._position is not None

    def resume(self, tx: JournalTransaction, epoch: str) -> None:
        """Continue the recording of the last run, or delete it if it does not match the store."""
        found: Any = tx.db.execute(FOLLOW_SQL.position).fetchone()
        if found is None:
            return
        stream, its_epoch, schema, head, number, digest = found
        if (its_epoch, schema, head) != (epoch, schema_of(tx.db), tx.head):
            _clear(tx.db)
            return
        self.kept.extend(KeptGroup(*row) for row in tx.db.execute(FOLLOW_SQL.sizes))
        self._kept_bytes = sum([group.size for group in self.kept])
        self._begin(tx, StreamPosition(stream, number, digest))

    def start(self, tx: JournalTransaction, epoch: str) -> None:
        """Begin a new recording, unless there is one."""
        if self.is_on:
            return
        _clear(tx.db)
        position = StreamPosition(secrets.token_hex(16), 0, FIRST_DIGEST)
        tx.db.execute(FOLLOW_SQL.begin_stream, (position.stream, epoch, schema_of(tx.db), tx.head, 0, position.digest))
        tx.undo.append(self._end)
        self._begin(tx, position)

    def stop(self, tx: JournalTransaction) -> None:
        """End the recording with this transaction: followers have to take a new copy."""
        _clear(tx.db)
        self._is_ending = self.is_on
        tx.undo.append(self._go_on)

    def before_commit(self, at_ns: int, head: int) -> None:
        """Write the changeset of the transaction that is about to commit."""
        self._recorded = None
        tx, session, position = self._tx, self._session, self._position
        if tx is None or session is None or position is None or self._is_ending or session.is_empty:
            return
        try:
            changeset: bytes = session.changeset()
        except apsw.Error as failure:  # a write must not fail because of a follower
            log.error("recording_ended", reason=str(failure))
            self.stop(tx)
            return
        if not changeset:
            return
        db, number = tx.db, position.number + 1
        digest = next_digest(position.digest, number, changeset)
        group = KeptGroup(number, at_ns, head, len(changeset))
        db.execute(FOLLOW_SQL.add_changeset, (number, at_ns, head, digest, changeset))
        db.execute(FOLLOW_SQL.advance, (head, number, digest))
        dropped_through = self._find_excess(group.size)
        if dropped_through:
            db.execute(FOLLOW_SQL.drop_through, (dropped_through,))
        self._recorded = _Recorded(group, digest, dropped_through)

    def committed(self) -> None:
        """Take what `before_commit` wrote as the state of the recording."""
        recorded, position = self._recorded, self._position
        if self._is_ending:
            self._end()
            self.on_recorded()  # for requests that wait for a change
        if recorded is None or position is None:
            return
        self._recorded = None
        self._position = StreamPosition(position.stream, recorded.group.number, recorded.digest)
        self.kept.append(recorded.group)
        self._kept_bytes += recorded.group.size
        while self.kept[0].number <= recorded.dropped_through:
            self._kept_bytes -= self.kept.popleft().size
        assert self._tx is not None
        self._open_session(self._tx)
        self.on_recorded()

    def _find_excess(self, size: int) -> int:
        """Return the last of the groups that must go to make room for a new one."""
        excess = self._kept_bytes + size - self._max_bytes
        through = 0
        for group in self.kept:
            if excess <= 0:
                break
            excess -= group.size
            through = group.number
        return through

    def _begin(self, tx: JournalTransaction, position: StreamPosition) -> None:
        self._tx, self._position = tx, position
        self._open_session(tx)
        tx.observer = self

    def _go_on(self) -> None:
        self._is_ending = False

    def _end(self) -> None:
        self._close_session()
        if self._tx is not None:
            self._tx.observer = None
        self._tx = self._position = self._recorded = None
        self._is_ending = False
        self.kept.clear()
        self._kept_bytes = 0

    def _open_session(self, tx: JournalTransaction) -> None:
        self._close_session()
        session = apsw.Session(tx.db, "main")
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, 1)  # tables without a primary key
        session.table_filter(lambda name: name not in RECORDING_TABLES)
        session.attach()
        self._session = session

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class SqliteChangeLog:
    """The recorded changes of an open store, as the relay uses them."""

    def __init__(self, store: Store, max_bytes: int = MAX_BYTES) -> None:
        self._store = store
        self._recording = ChangeRecording(max_bytes)
        store.writer.run_blocking(lambda tx: self._recording.resume(tx, store.epoch))

    @property
    def is_on(self) -> bool:
        return self._recording.is_on

    def kept(self) -> list[KeptGroup]:
        return list(self._recording.kept)

    def listen(self, on_recorded: Callable[[], None]) -> None:
        self._recording.on_recorded = on_recorded

    async def start(self) -> None:
        await self._store.writer.run(lambda tx: self._recording.start(tx, self._store.epoch))

    async def stop(self) -> None:
        await self._store.writer.run(self._recording.stop)

    async def read(self, after: StreamPosition, max_bytes: int) -> ChangesPage:
        return await self._store.pool.run(lambda db: read_changes(db, after, max_bytes))

    def copy(self, target: Path) -> None:
        db = open_reader(self._store.path)
        try:
            copy_database(db, target)
        finally:
            db.close()


def read_position(db: apsw.Connection) -> StreamPosition | None:
    """Return how far a recording, or a copy, has come; None: there is no recording, or the copy was promoted."""
    found: Any = db.execute(FOLLOW_SQL.position).fetchone()
    return None if found is None else StreamPosition(found[0], found[4], found[5])


def read_changes(db: apsw.Connection, after: StreamPosition, max_bytes: int) -> ChangesPage:
    """Return the groups after a position; raise follow_restart if the recording does not continue from there."""
    now = read_position(db)
    head = read_extent(db).head
    if now is None or now.stream != after.stream:
        raise error("follow_restart", reason="the leader has begun a new recording")
    if after == now:
        return ChangesPage([], head, True)
    groups: list[ChangeGroup] = []
    size = 0
    for number, at_ns, group_head, digest, changeset in db.execute(FOLLOW_SQL.changesets_after, (after.number,)):
        if groups and size + len(changeset) > max_bytes:
            return ChangesPage(groups, head, False)
        groups.append(ChangeGroup(number, at_ns, group_head, digest, changeset))
        size += len(changeset)
        if len(groups) == 1:
            _check_continues(after, groups[0])
    if not groups:
        raise error("follow_restart", reason="the copy is ahead of the leader, whose store was rolled back")
    return ChangesPage(groups, head, True)


def schema_of(db: apsw.Connection) -> str:
    """Return the versions of all components of a store as one text."""
    return ", ".join([text for (text,) in db.execute(FOLLOW_SQL.schema_versions)])


def _check_continues(after: StreamPosition, first: ChangeGroup) -> None:
    if first.number != after.number + 1:
        raise error("follow_restart", reason="the leader does not keep changes that old")
    if first.digest != next_digest(after.digest, first.number, first.changeset):
        raise error("follow_restart", reason="the copy and the leader have different histories")


def _clear(db: apsw.Connection) -> None:
    db.execute(FOLLOW_SQL.end_stream)
    db.execute(FOLLOW_SQL.clear_changesets)
