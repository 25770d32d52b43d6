"""A store on PostgreSQL that several relays share: commits, the relays and their leader, sessions, challenges.

SharedTransaction reads what other relays have committed before each of its groups, inside the group's transaction and
under the write lock, and between groups when a notification arrives. Both happen on the writer's thread, so the commits
of all relays reach the event loop in one order; no record arrives twice, and none of the relay's own as a foreign one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, copy_error, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import node_from_key
from posthouse.postgresql.notifications import Notifications
from posthouse.postgresql.server_connection import ServerConnection, open_writer_session, translate
from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.postgresql.store_url import shown_url
from posthouse.relay.store.high_water import ServerTimeline
from posthouse.relay.store.postgresql.pg_journal import JOURNAL_SQL, SCHEMA, PgTransaction, unpack
from posthouse.relay.store.postgresql.pg_meshes import read_mesh_rows
from posthouse.relay.store.shared_store import (
    KEY_RETIRED,
    MESH_RECORDS,
    ClusterView,
    ForeignCommits,
    ForeignRecord,
    LeaderRow,
    RelayRow,
)
from posthouse.storage.batch import Item
from posthouse.storage.sql_files import Statements
from posthouse.storage.writer import Writer

R = TypeVar("R")
SHARED_SQL = Statements(SCHEMA, "shared.sql")
CHANNEL = "posthouse"
_PAGE = 1_000  # foreign records read at once
_MOST_IN_GROUP = 5_000  # foreign records that a group reads under the write lock; beyond that it must catch up first
_CONFIRM_EVERY_S = 0.5  # how often an idle relay reads the head
_CURRENT_NS = 2 * SECOND_NS  # a relay that has not seen the head for this long serves no reads
_FORGOTTEN_PER_LOGIN = 4  # more than one, so that a backlog of expired challenges shrinks


def catch_up(_tx: Any) -> None:
    """A unit of work that only reads the commits of other relays; by itself it takes no lock."""


class SharedTransaction(PgTransaction):
    """The write session of a relay that shares its store."""

    take_relay_lock = "SELECT pg_advisory_lock_shared($1)"

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock = clock
        self._foreign = ForeignCommits([], {})
        #: boot time at which the head was last known
        self.confirmed_ns = clock.boot_ns()
        super().__init__(url)

    def commit_items(self, items: Sequence[Item[Any]], clock: Clock, path: str) -> Fatal | None:
        if any(item.work is not catch_up for item in items):
            return super().commit_items(items, clock, path)
        try:
            self._catch_up()
        except psycopg.Error as exc:
            failure = translate(exc, self.url)
        except PosthouseError as exc:
            failure = exc
        else:
            return None
        for item in items:
            item.error = copy_error(failure)
        return failure if isinstance(failure, Fatal) else None

    def check_head(self, head: int) -> None:
        """Read the commits of other relays since this relay last knew the head."""
        began_ns = self._clock.boot_ns()
        if self.known_head is None:
            self.known_head = head  # what was committed before the start is read by the engine
        if head - self.known_head > _MOST_IN_GROUP:
            raise error("relay_behind")
        while self.known_head < head:
            self._read_page()
        self.confirmed_ns = began_ns

    def before_commit(self) -> None:
        super().before_commit()
        if self.head != self._head_at_begin:
            self.db.queue(JOURNAL_SQL.notify_head, str(self.head))

    def take_news(self) -> ForeignCommits | None:
        news, self._foreign = self._foreign, ForeignCommits([], {})
        return news if news.records else None

    def _catch_up(self) -> None:
        if self.db.is_lost:
            self.db = self.open_session()
        began_ns = self._clock.boot_ns()
        while self._read_page() == _PAGE:
            pass
        self.confirmed_ns = began_ns

    def _read_page(self) -> int:
        """Read the next foreign records, and the meshes that they change; return how many there were."""
        rows = self.db.rows(SHARED_SQL.foreign_records, self.known_head, _PAGE)
        records = [_foreign_record(*row) for row in rows]
        if records and records[0].seq != (self.known_head or 0) + 1:
            raise error("store_failed", path=shown_url(self.url), reason="it was pruned before this relay read it")
        changes = [each for each in records if each.type.startswith(MESH_RECORDS)]
        changed = {each.mesh for each in changes if each.mesh is not None}
        if any(each.type == KEY_RETIRED for each in changes):
            changed = {row.mesh for row in read_mesh_rows(self.db).meshes}
        for mesh in changed:
            self._foreign.meshes[mesh] = read_mesh_rows(self.db, mesh)
        self.meshes_changed_at = max([each.seq for each in changes], default=self.meshes_changed_at)
        self._foreign.records.extend(records)
        if records:
            self.known_head = records[-1].seq
        return len(records)


def _foreign_record(
    seq: int, type_: str, mesh: str | None, actor: str | None, ref: bytes | None, body: str, raw: bytes | None,
    recipient: bytes | None,
) -> ForeignRecord:  # fmt: skip
    node = None if recipient is None else node_from_key(recipient)
    return ForeignRecord(seq, type_, mesh, actor, unpack(ref), body, raw, node)


class PgShared:
    """Implements posthouse.relay.store.shared_store.SharedStore."""

    def __init__(
        self, url: str, clock: Clock, tx: PgTransaction, writer: Writer[PgTransaction], reads: SnapshotReads
    ) -> None:
        self._url = url
        self._reads = reads
        self._clock = clock
        self._tx = tx
        self._writer = writer
        self._notifications: Notifications | None = None
        self._control_lock = threading.Lock()
        self._control_session: ServerConnection | None = None

    def follow(self, on_commits: Callable[[ForeignCommits], None]) -> None:
        self._writer.listen(lambda news, _failure: on_commits(news))
        self._notifications = Notifications(self._url, (CHANNEL,), self._look, _CONFIRM_EVERY_S)

    @property
    def server(self) -> ServerTimeline:
        server = self._tx.server
        return ServerTimeline(server.system, server.timeline)

    @property
    def is_current(self) -> bool:
        tx = self._tx
        return not isinstance(tx, SharedTransaction) or self._clock.boot_ns() - tx.confirmed_ns < _CURRENT_NS

    async def claim(self, relay: str) -> None:
        claim = SHARED_SQL.claim_store if isinstance(self._tx, SharedTransaction) else SHARED_SQL.replace_owner
        owner = await self._writer.run(lambda tx: tx.db.value(claim, relay))
        if owner != relay:
            raise error("relay_key_differs", url=shown_url(self._url), relay=owner, given=relay)

    async def open_deliveries(self, mesh: str, node: str, seqs: Sequence[int]) -> set[int]:
        rows = await self._reads.run(lambda db: db.rows(SHARED_SQL.open_deliveries, mesh, node, list(seqs)))
        return {seq for (seq,) in rows}

    def beat(self, relay_id: str, url: str, term: int | None, boot_ns: int) -> ClusterView:
        def beat(db: ServerConnection) -> ClusterView:
            with db.pipeline():
                db.queue(SHARED_SQL.beat, relay_id, url)
                if term is not None:
                    db.queue(SHARED_SQL.beat_term, term, boot_ns)
                relays, leader = db.queue(SHARED_SQL.relays), db.queue(SHARED_SQL.leader)
                found = leader.fetchone()
                return ClusterView(
                    [RelayRow(*row) for row in relays.fetchall()], None if found is None else LeaderRow(*found)
                )

        return self._control(beat)

    def begin_term(self, former: int, relay_id: str, boot_id: str, boot_ns: int) -> bool:
        if not former:
            given = (relay_id, boot_id, boot_ns)
            return self._control(lambda db: db.value(SHARED_SQL.begin_first_term, *given)) is not None
        return self._control(lambda db: db.value(SHARED_SQL.begin_term, former, relay_id, boot_id, boot_ns)) is not None

    def leave(self, relay_id: str) -> None:
        self.forget_relays([relay_id])
        self._control(lambda db: db.queue(SHARED_SQL.resign, relay_id))

    def forget_relays(self, relay_ids: Sequence[str]) -> None:
        self._control(lambda db: db.queue(SHARED_SQL.leave, list(relay_ids)))

    def check_term(self, term: int) -> None:
        if self._tx.db.value(SHARED_SQL.check_term, term) is None:
            raise error("leader_lost")

    async def next_session(self, mesh: str, node: str) -> int:
        number: int = await self._writer.run(lambda tx: tx.db.value(SHARED_SQL.next_session, mesh, node))
        return number

    def session_numbers(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
        meshes, nodes = map(list, zip(*names, strict=True))
        rows = self._tx.db.rows(SHARED_SQL.session_numbers, meshes, nodes)
        return {(mesh, node): number for mesh, node, number in rows}

    async def spend_challenge(self, challenge: bytes, now_ms: int, until_ms: int) -> bool:
        def spend(tx: PgTransaction) -> bool:
            tx.db.queue(SHARED_SQL.forget_challenges, now_ms, _FORGOTTEN_PER_LOGIN)
            return tx.db.value(SHARED_SQL.spend_challenge, challenge, until_ms) is not None

        return await self._writer.run(spend)

    def close(self) -> None:
        """End the thread that waits for notifications, and the session of beats."""
        if self._notifications is not None:
            self._notifications.close()
        if self._control_session is not None:
            self._control_session.close()

    def _control(self, work: Callable[[ServerConnection], R]) -> R:
        """Run statements that wait for no group; blocks."""
        with self._control_lock:
            try:
                if self._control_session is None or self._control_session.is_lost:
                    self._control_session = open_writer_session(self._url)
                    self._tx.watch.check(self._control_session)
                return work(self._control_session)
            except psycopg.Error as exc:
                raise translate(exc, self._url) from exc

    def _look(self, found: Sequence[tuple[str, str]]) -> None:
        """Read the commits of other relays, unless a group of this relay has already read them."""
        if found and all(int(head) <= (self._tx.known_head or 0) for _channel, head in found):
            return
        try:
            self._writer.run_blocking(catch_up)
        except PosthouseError:  # the next poll tries again; until then `is_current` is False
            return
