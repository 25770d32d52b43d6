"""A unit of work on SQLite: what the relay may do inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posthouse.journal.append import JournalTransaction
from posthouse.model.clock import Clock
from posthouse.model.lease import RequestRecord
from posthouse.relay.deliver.sqlite import SqliteDeliveries
from posthouse.relay.locks import table as locks
from posthouse.relay.locks.rows import LockEntry, LockRun
from posthouse.relay.meshes.rows import AccessRow, InviteRow, MemberRow, MeshRow
from posthouse.relay.pinch.sqlite import SqlitePinch
from posthouse.relay.store.interface import EventRow, Pruned, Released
from posthouse.relay.store.sqlite.events import add_events, known_ids
from posthouse.relay.store.sqlite.mesh_rows import MESHES, invite_of
from posthouse.relay.store.sqlite.prune import prune, release_kept, snapshot_journal
from posthouse.relay.store.sqlite.reindex import reindex
from posthouse.relay.store.sqlite.sweep import sweep_expired


class SqliteUnit:
    """Implements posthouse.relay.store.interface.Unit over one transaction."""

    def __init__(self, tx: JournalTransaction, clock: Clock) -> None:
        self._tx = tx
        self._db = tx.db
        self._clock = clock

    @property
    def now_ns(self) -> int:
        return self._tx.now_ns

    @property
    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    @property
    def deliveries(self) -> SqliteDeliveries:
        return SqliteDeliveries(self._tx)

    @property
    def pinch(self) -> SqlitePinch:
        return SqlitePinch(self._db)

    def append(
        self,
        type: str,  # noqa: A002 - the journal's word
        *,
        mesh: str | None = None,
        actor: str | None = None,
        ref: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> int:
        return self._tx.append(type, mesh=mesh, actor=actor, ref=ref, body=body)

    def known(self, ids: Sequence[str]) -> dict[str, int]:
        return known_ids(self._db, ids)

    def add_events(self, rows: Sequence[EventRow]) -> list[int]:
        return add_events(self._tx, rows)

    def save_mesh(self, row: MeshRow) -> None:
        self._db.execute(MESHES.save_mesh, (row.mesh, row.is_open, row.creator, row.created_at_ns))

    def save_member(self, row: MemberRow) -> None:
        self._db.execute(MESHES.save_member, (row.mesh, row.node, row.name, row.role.value))

    def remove_member(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES.remove_member, (mesh, node))

    def save_access(self, row: AccessRow) -> None:
        verdicts = (row.read.value, row.write.value, row.lock.value)
        self._db.execute(MESHES.save_access, (row.mesh, row.node, *verdicts))

    def remove_access(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES.remove_access, (mesh, node))

    def save_topic(self, mesh: str, topic: str, creator: str) -> None:
        self._db.execute(MESHES.save_topic, (mesh, topic, creator))

    def remove_topic(self, mesh: str, topic: str) -> None:
        self._db.execute(MESHES.remove_topic, (mesh, topic))

    def save_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.execute(MESHES.save_subscription, (mesh, node, pattern))

    def remove_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.execute(MESHES.remove_subscription, (mesh, node, pattern))

    def save_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.execute(MESHES.save_block, (mesh, node, blocked))

    def remove_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.execute(MESHES.remove_block, (mesh, node, blocked))

    def save_invite(self, row: InviteRow) -> None:
        ends = (row.uses_left, row.expires_at_ns, row.creator)
        self._db.execute(MESHES.save_invite, (row.invite_id, row.code_hash, row.mesh, row.role.value, *ends))

    def find_invite(self, code_hash: bytes) -> InviteRow | None:
        return invite_of(self._db.execute(MESHES.find_invite, (code_hash,)).fetchone())

    def use_invite(self, invite_id: str, node: str) -> None:
        self._db.execute(MESHES.take_use, (invite_id,))
        self._db.execute(MESHES.note_use, (invite_id, node))

    def has_used_invite(self, invite_id: str, node: str) -> bool:
        return bool(self._db.execute(MESHES.has_used, (invite_id, node)).get)

    def find_lock(self, mesh: str, resource: str) -> LockEntry | None:
        return locks.find_lock(self._db, mesh, resource)

    def save_lock(self, entry: LockEntry) -> None:
        locks.save_lock(self._db, entry)

    def find_lock_request(self, mesh: str, resource: str, owner: str, request_id: str) -> RequestRecord | None:
        return locks.find_request(self._db, mesh, resource, owner, request_id)

    def save_lock_request(self, mesh: str, resource: str, owner: str, record: RequestRecord) -> None:
        locks.save_request(self._db, mesh, resource, owner, record, self._tx.now_ns)

    def find_lock_run(self) -> LockRun | None:
        return locks.find_run(self._db)

    def begin_lock_run(self, run: LockRun, token_leap: int) -> int:
        return locks.begin_run(self._db, run, token_leap)

    def find_fence_write(self, mesh: str, resource: str, address: bytes) -> int | None:
        return locks.find_fence_write(self._db, mesh, resource, address)

    def save_fence_write(self, mesh: str, resource: str, address: bytes, token: int) -> None:
        locks.save_fence_write(self._db, mesh, resource, address, token)

    def sweep_expired(self, limit: int) -> int:
        return sweep_expired(self._tx, limit)

    def snapshot_journal(self, through_seq: int) -> int:
        return snapshot_journal(self._tx, through_seq)

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        return prune(self._tx, through_seq, snapshot_seq, horizon_ns)

    def release_kept(self, after_seq: int, horizon_ns: int, limit: int) -> Released:
        return release_kept(self._tx, after_seq, horizon_ns, limit)

    def reindex(self) -> None:
        reindex(self._db)
