"""The tables of meshes and locks on SQLite: rows in, rows out; nothing is decided here.

MeshTables and LockTables implement their part of posthouse.relay.store.protocol.Unit. `locks` keeps one row per mesh
and resource for ever; each insert into `lock_requests` deletes a few old rows, so it never needs a sweep of its own.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.model.fence_rules import FenceRule
from posthouse.model.lease import LockRow, RequestRecord
from posthouse.model.limits import REQUEST_RECORD_S, SECOND_NS
from posthouse.relay.wire.lock_operations import LockEntry, LockRun
from posthouse.relay.wire.mesh_rows import AccessRow, InviteRow, MemberRow, MeshRow, MeshRows, Role, TopicRow, Verdict
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

MESHES_SQL = Statements("posthouse.relay.store.sqlite.schema.events", "meshes.sql")
LOCKS = Component("locks", "posthouse.relay.store.sqlite.schema.locks")
LOCKS_SQL = Statements("posthouse.relay.store.sqlite.schema.locks", "locks.sql")
_FIND, _CHANGE, _ADD = LOCKS_SQL.find_lock, LOCKS_SQL.change_lock, LOCKS_SQL.add_lock
_DELETED_PER_INSERT = 2  # more than one, so that a backlog of old rows shrinks


class MeshTables:
    """Meshes, members, access and fence rules, topics, subscriptions, blocks and invites, inside a transaction."""

    _db: apsw.Connection

    def save_mesh(self, row: MeshRow) -> None:
        self._db.execute(MESHES_SQL.save_mesh, (row.mesh, row.is_open, row.creator, row.created_at_ns))

    def save_member(self, row: MemberRow) -> None:
        self._db.execute(MESHES_SQL.save_member, (row.mesh, row.node, row.name, row.role.value))

    def remove_member(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES_SQL.remove_member, (mesh, node))

    def save_access(self, row: AccessRow) -> None:
        verdicts = (row.read.value, row.write.value, row.lock.value)
        self._db.execute(MESHES_SQL.save_access, (row.mesh, row.node, *verdicts))

    def remove_access(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES_SQL.remove_access, (mesh, node))

    def save_fence_rule(self, mesh: str, rule: FenceRule) -> None:
        self._db.execute(MESHES_SQL.save_fence_rule, (mesh, rule.kind, rule.d_prefix, rule.resource))

    def remove_fence_rule(self, mesh: str, kind: int, d_prefix: str) -> None:
        self._db.execute(MESHES_SQL.remove_fence_rule, (mesh, kind, d_prefix))

    def save_topic(self, mesh: str, topic: str, creator: str) -> None:
        self._db.execute(MESHES_SQL.save_topic, (mesh, topic, creator))

    def remove_topic(self, mesh: str, topic: str) -> None:
        self._db.execute(MESHES_SQL.remove_topic, (mesh, topic))

    def save_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.execute(MESHES_SQL.save_subscription, (mesh, node, pattern))

    def remove_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.execute(MESHES_SQL.remove_subscription, (mesh, node, pattern))

    def save_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.execute(MESHES_SQL.save_block, (mesh, node, blocked))

    def remove_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.execute(MESHES_SQL.remove_block, (mesh, node, blocked))

    def save_invite(self, row: InviteRow) -> None:
        ends = (row.uses_left, row.expires_at_ns, row.creator)
        self._db.execute(MESHES_SQL.save_invite, (row.invite_id, row.code_hash, row.mesh, row.role.value, *ends))

    def find_invite(self, code_hash: bytes) -> InviteRow | None:
        found: Any = self._db.execute(MESHES_SQL.find_invite, (code_hash,)).fetchone()
        return None if found is None else _invite(*found)

    def list_invites(self, mesh: str, now_ns: int) -> list[InviteRow]:
        found: Any = self._db.execute(MESHES_SQL.list_invites, (mesh, now_ns))
        return [_invite(*row) for row in found]

    def revoke_invite(self, invite_id: str) -> None:
        self._db.execute(MESHES_SQL.revoke_invite, (invite_id,))

    def use_invite(self, invite_id: str, node: str) -> None:
        self._db.execute(MESHES_SQL.take_use, (invite_id,))
        self._db.execute(MESHES_SQL.note_use, (invite_id, node))

    def has_used_invite(self, invite_id: str, node: str) -> bool:
        return bool(self._db.execute(MESHES_SQL.has_used, (invite_id, node)).get)


def _invite(invite_id: str, code_hash: bytes, mesh: str, role: str, *ends: Any) -> InviteRow:
    return InviteRow(invite_id, code_hash, mesh, Role(role), *ends)


class LockTables:
    """Locks, their requests and their fenced writes, inside a transaction."""

    _db: apsw.Connection
    _tx: JournalTransaction

    def find_lock(self, mesh: str, resource: str) -> LockEntry | None:
        found: Any = self._db.execute(_FIND, (mesh, resource)).fetchone()
        return None if found is None else _lock_entry((mesh, resource, *found))

    def save_lock(self, entry: LockEntry) -> None:
        row = entry.row
        values = (row.owner, row.token, row.lease_ms, row.deadline_boot_ns, int(row.is_released), entry.last_ticket)
        self._db.execute(_CHANGE, (*values, entry.mesh, row.resource))
        if not self._db.changes():
            self._db.execute(_ADD, (*values, entry.mesh, row.resource))

    def find_lock_request(self, mesh: str, resource: str, owner: str, request_id: str) -> RequestRecord | None:
        found = self._db.execute(LOCKS_SQL.find_request, (request_id, owner, mesh, resource)).fetchone()
        return None if found is None else RequestRecord(*found)

    def save_lock_request(self, mesh: str, resource: str, owner: str, record: RequestRecord) -> None:
        values = (record.lease_ms, record.token, record.expires_at_ns, record.granted_at_ns)
        self._db.execute(LOCKS_SQL.save_request, (record.request_id, owner, mesh, resource, *values))
        before_ns = self._tx.now_ns - REQUEST_RECORD_S * SECOND_NS
        self._db.execute(LOCKS_SQL.forget_requests, (before_ns, _DELETED_PER_INSERT))

    def find_lock_run(self) -> LockRun | None:
        found = self._db.execute(LOCKS_SQL.find_run).fetchone()
        return None if found is None else LockRun(*found)

    def begin_lock_run(self, run: LockRun, over_before_ns: int, void_token: int) -> int:
        self._db.execute(LOCKS_SQL.save_run, run)
        self._db.execute(LOCKS_SQL.begin_turns)
        if void_token:
            self._db.execute(LOCKS_SQL.void_tokens, (void_token,))
        reopened: int = self._db.execute(LOCKS_SQL.count_reopened, (over_before_ns,)).get
        self._db.execute(LOCKS_SQL.reopen, (run.boot_ns, over_before_ns))
        return reopened

    def last_token(self) -> int:
        return last_token(self._db)

    def next_token(self) -> int:
        token: int = self._db.execute(LOCKS_SQL.next_token).get
        return token

    def raise_token_counter(self, token: int) -> None:
        self._db.execute(LOCKS_SQL.raise_counter, (token,))

    def find_fence_write(self, mesh: str, resource: str, address: bytes) -> int | None:
        token: int | None = self._db.execute(LOCKS_SQL.find_fence_write, (address, mesh, resource)).get
        return token

    def save_fence_write(self, mesh: str, resource: str, address: bytes, token: int) -> None:
        self._db.execute(LOCKS_SQL.save_fence_write, (address, mesh, resource, token))


def read_mesh_rows(db: apsw.Connection, mesh: str | None = None) -> MeshRows:
    """Return one mesh, or all, with everything that belongs to them, as one snapshot sees them."""
    key = (mesh,)
    return MeshRows(
        meshes=[MeshRow(name, bool(is_open), *rest) for name, is_open, *rest in db.execute(MESHES_SQL.meshes, key)],
        members=[
            MemberRow(mesh, node, name, Role(role)) for mesh, node, name, role in db.execute(MESHES_SQL.members, key)
        ],
        access=[
            AccessRow(mesh, node, *map(Verdict, verdicts))
            for mesh, node, *verdicts in db.execute(MESHES_SQL.access, key)
        ],
        topics=[TopicRow(*row) for row in db.execute(MESHES_SQL.topics, key)],
        subscriptions=[(mesh, node, pattern) for mesh, node, pattern in db.execute(MESHES_SQL.subscriptions, key)],
        blocks=[(mesh, node, blocked) for mesh, node, blocked in db.execute(MESHES_SQL.blocks, key)],
        fence_rules=[(mesh, FenceRule(*rule)) for mesh, *rule in db.execute(MESHES_SQL.fence_rules, key)],
    )


def last_token(db: apsw.Connection) -> int:
    """Return the counter of fencing tokens: no token above it was granted."""
    token: int = db.execute(LOCKS_SQL.last_token).get
    return token


def all_locks(db: apsw.Connection) -> list[LockEntry]:
    """Return every lock, ordered by mesh and resource."""
    return [_lock_entry(row) for row in db.execute(LOCKS_SQL.all_locks)]


def read_locks(
    db: apsw.Connection, meshes: frozenset[str] | None, after: tuple[str, str], limit: int
) -> list[LockEntry]:
    """Return the locks of some meshes (None: of all) that follow `after`, a mesh and a resource."""
    names = None if meshes is None else msgspec.json.encode(sorted(meshes)).decode()
    return [_lock_entry(row) for row in db.execute(LOCKS_SQL.page_of_locks, (*after, names, limit))]


def _lock_entry(row: tuple[Any, ...]) -> LockEntry:
    mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, last_ticket = row
    lock = LockRow(resource, owner, token, lease_ms, deadline_boot_ns, bool(is_released))
    return LockEntry(mesh, lock, last_ticket)
