"""The tables of meshes and locks on SQLite: rows in, rows out; nothing is decided here.

MeshTables and LockTables implement their part of posthouse.relay.store.protocol.Unit. `locks` has a row for every
lease that was not released; a free name keeps its last row. Request ids have a module of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.model.fence_rules import FenceRule
from posthouse.model.lease import LockRow, RequestRecord
from posthouse.model.lock_scope import Claim, range_below, trees_above
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.node import Role
from posthouse.model.rotation import KeyEnd
from posthouse.relay.store.sqlite.lock_requests import LOCKS_SQL, LockRequests, RequestKey
from posthouse.relay.wire.delivery_rows import UnfinishedDelivery
from posthouse.relay.wire.lock_operations import OVERLAPS_MAX, LockEntry, LockPosition, LockRun
from posthouse.relay.wire.mesh_rows import (
    AccessRow,
    HeldKey,
    InviteRow,
    LimitSource,
    LimitsRow,
    MemberRow,
    MeshRow,
    MeshRows,
    MeshState,
    RetiredKey,
    TopicRow,
    Verdict,
)
from posthouse.storage.sql_files import Statements

MESHES_SQL = Statements("posthouse.relay.store.sqlite.schema.events", "meshes.sql")
_NAME, _REPLACE, _END = LOCKS_SQL.leases_of_name, LOCKS_SQL.replace_last_lease, LOCKS_SQL.end_lease
_encode_limits = msgspec.json.Encoder().encode
_decode_limits = msgspec.json.Decoder(MeshLimits).decode
TOKENS_RESERVED = 64  # by one write of the counter, whose page would be one more in the commit of every grant


class MeshTables:
    """Meshes with their members, access and topics, invites and retired keys, inside a transaction."""

    _db: apsw.Connection

    def save_mesh(self, row: MeshRow) -> None:
        values = (row.mesh, row.is_open, row.creator, row.created_at_ns, row.state.value, row.approves_keys)
        self._db.execute(MESHES_SQL.save_mesh, values)

    def save_limits(self, row: LimitsRow) -> None:
        self._db.execute(MESHES_SQL.save_limits, (row.mesh, row.source.value, _encode_limits(row.limits).decode()))

    def clear_mesh(self, mesh: str) -> None:
        for statement in MESHES_SQL.clear_mesh.split(";"):
            self._db.execute(statement, (mesh,))

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

    def save_retired_key(self, row: RetiredKey) -> None:
        self._db.execute(MESHES_SQL.save_retired_key, msgspec.structs.astuple(row))

    def move_node(self, node: str, successor: str) -> None:
        for statement in MESHES_SQL.move_node.split(";"):
            self._db.execute(statement, (node, successor))

    def save_held_key(self, row: HeldKey) -> None:
        self._db.execute(MESHES_SQL.save_held_key, msgspec.structs.astuple(row))

    def remove_held_key(self, mesh: str, node: str) -> None:
        self._db.execute(MESHES_SQL.remove_held_key, (mesh, node))

    def mailbox_meshes(self, node: str) -> list[str]:
        return [mesh for (mesh,) in self._db.execute(MESHES_SQL.mailbox_meshes, (node,))]

    def unfinished_deliveries(self, node: str) -> list[UnfinishedDelivery]:
        return [UnfinishedDelivery(*row) for row in self._db.execute(MESHES_SQL.unfinished_deliveries, (node,))]

    def last_seq_before(self, at_ns: int) -> int:
        seq: int = self._db.execute(MESHES_SQL.last_seq_before, (at_ns,)).get
        return seq


def _invite(invite_id: str, code_hash: bytes, mesh: str, role: str, *ends: Any) -> InviteRow:
    return InviteRow(invite_id, code_hash, mesh, Role(role), *ends)


class LockTables:
    """Locks, their requests and their fenced writes, inside a transaction."""

    _db: apsw.Connection
    _tx: JournalTransaction
    _requests: LockRequests
    #: the last token that was granted, and the last one that the stored counter covers
    _token = 0
    _reserved_through = 0

    def find_overlaps(self, mesh: str, claim: Claim, now_ns: int) -> list[LockRow]:
        name, is_tree = claim.resource, claim.is_tree
        values = (mesh, name, claim.owner, claim.session, claim.is_shared, now_ns)
        if "/" not in name and not is_tree:
            leases = self.find_leases(mesh, name)  # the usual case, and the cheapest statement: there are few
            if len(leases) < OVERLAPS_MAX:
                return [row for row in leases if not row.is_released]
            return [_lock_row(row) for row in self._db.execute(LOCKS_SQL.overlaps_of_name, values)]
        names = _encode_names([*trees_above(name), name])
        rows = self._db.execute(LOCKS_SQL.overlaps_of_path, (*values, None, names)).fetchall()
        if is_tree and len(rows) < OVERLAPS_MAX:
            rows += self._db.execute(LOCKS_SQL.overlaps_below, (*values, None, None, *range_below(name))).fetchall()
        return [_lock_row(row) for row in rows[:OVERLAPS_MAX]]

    def find_own_overlap(self, mesh: str, claim: Claim, now_ns: int) -> LockRow | None:
        name = claim.resource
        names = _encode_names([*trees_above(name), name])
        below = range_below(name) if claim.is_tree else ("", "")
        values = (mesh, name, claim.owner, claim.session, names, now_ns, *below)
        found = self._db.execute(LOCKS_SQL.own_overlap, values).fetchone()
        return None if found is None else _lock_row(found)

    def find_leases(
        self, mesh: str, resource: str, owner: str | None = None, token: int | None = None
    ) -> list[LockRow]:
        if owner is not None:
            found = self._db.execute(LOCKS_SQL.leases_of_owner, (mesh, resource, owner))
        elif token is not None:
            found = self._db.execute(LOCKS_SQL.leases_of_token, (mesh, resource, token))
        else:
            found = self._db.execute(_NAME, (mesh, resource))
        return [_lock_row(row) for row in found]

    def find_covering(self, mesh: str, resource: str, *, only_exclusive: bool = False) -> list[LockRow]:
        names = _encode_names([*trees_above(resource), resource])
        values = (mesh, resource, names, only_exclusive)
        return [_lock_row(row) for row in self._db.execute(LOCKS_SQL.covering_leases, values)]

    def add_lease(self, mesh: str, row: LockRow) -> None:
        timing, kind = (row.token, row.lease_ms, row.deadline_boot_ns), (row.session, row.is_tree, row.is_shared)
        values = (row.owner, *timing, *kind, mesh, row.resource)
        self._db.execute(_REPLACE, values)
        if not self._db.changes():
            self._db.execute(LOCKS_SQL.add_lease, values)

    def extend_lease(self, mesh: str, row: LockRow) -> None:
        key = (mesh, row.resource, row.owner, row.session)
        self._db.execute(LOCKS_SQL.extend_lease, (row.lease_ms, row.deadline_boot_ns, *key))

    def end_lease(self, mesh: str, row: LockRow) -> None:
        key = (mesh, row.resource, row.owner, row.session)
        if row.is_shared:
            self._db.execute(LOCKS_SQL.drop_shared_lease, key)
            if self._db.changes():
                return
        self._db.execute(_END, key)

    def find_lock_request(
        self, mesh: str, resource: str, owner: str, session: str, request_id: str
    ) -> RequestRecord | None:
        return self._requests.find(RequestKey(request_id, owner, session, mesh, resource))

    def save_lock_request(self, mesh: str, resource: str, owner: str, session: str, record: RequestRecord) -> None:
        self._requests.add(RequestKey(record.request_id, owner, session, mesh, resource), record)

    def find_lock_run(self) -> LockRun | None:
        found = self._db.execute(LOCKS_SQL.find_run).fetchone()
        return None if found is None else LockRun(*found)

    def begin_lock_run(self, run: LockRun, over_before_ns: int, void_token: int) -> int:
        self._db.execute(LOCKS_SQL.save_run, run)
        if void_token:
            self._db.execute(LOCKS_SQL.void_tokens, (void_token,))
        reopened: int = self._db.execute(LOCKS_SQL.count_reopened, (over_before_ns,)).get
        self._db.execute(LOCKS_SQL.reopen, (run.boot_ns, over_before_ns))
        return reopened

    def last_token(self) -> int:
        return last_token(self._db)

    def next_token(self) -> int:
        if self._token >= self._reserved_through:
            self._tx.undo.append(self._forget_reserved)
            self._token = last_token(self._db)
            self._reserved_through = self._token + TOKENS_RESERVED
            self._db.execute(LOCKS_SQL.raise_counter, (self._reserved_through,))
        self._token += 1
        return self._token

    def raise_token_counter(self, token: int) -> None:
        self._db.execute(LOCKS_SQL.raise_counter, (token,))
        self._forget_reserved()

    def _forget_reserved(self) -> None:
        """Begin above the stored counter again; the rest of the reserved tokens is never granted."""
        self._token = self._reserved_through = 0

    def find_fence_write(self, mesh: str, resource: str, address: bytes) -> int | None:
        token: int | None = self._db.execute(LOCKS_SQL.find_fence_write, (address, mesh, resource)).get
        return token

    def save_fence_write(self, mesh: str, resource: str, address: bytes, token: int) -> None:
        self._db.execute(LOCKS_SQL.save_fence_write, (address, mesh, resource, token))


def read_mesh_rows(db: apsw.Connection, mesh: str | None = None) -> MeshRows:
    """Return one mesh, or all, with everything that belongs to them, as one snapshot sees them."""
    key = (mesh,)
    return MeshRows(
        meshes=[
            MeshRow(name, bool(is_open), creator, at_ns, MeshState(state), bool(approves_keys))
            for name, is_open, creator, at_ns, state, approves_keys in db.execute(MESHES_SQL.meshes, key)
        ],
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
        limits=[
            LimitsRow(mesh, LimitSource(source), _decode_limits(limits))
            for mesh, source, limits in db.execute(MESHES_SQL.limits, key)
        ],
        retired_keys=[
            RetiredKey(node, KeyEnd(reason), *rest) for node, reason, *rest in db.execute(MESHES_SQL.retired_keys)
        ],
        held_keys=[HeldKey(*row) for row in db.execute(MESHES_SQL.held_keys, key)],
    )


def last_token(db: apsw.Connection) -> int:
    """Return the counter of fencing tokens: no token above it was granted."""
    token: int = db.execute(LOCKS_SQL.last_token).get
    return token


def all_locks(db: apsw.Connection) -> list[LockEntry]:
    """Return every lease and every free name, ordered by mesh, resource and holder."""
    return [LockEntry(mesh, _lock_row(row)) for mesh, *row in db.execute(LOCKS_SQL.all_locks)]


def read_locks(db: apsw.Connection, meshes: frozenset[str] | None, after: LockPosition, limit: int) -> list[LockEntry]:
    """Return the locks of some meshes (None: of all) that follow `after`."""
    names = None if meshes is None else _encode_names(sorted(meshes))
    found = db.execute(LOCKS_SQL.page_of_locks, (*after, names, limit))
    return [LockEntry(mesh, _lock_row(row)) for mesh, *row in found]


def _lock_row(row: Sequence[Any]) -> LockRow:
    resource, owner, token, lease_ms, deadline_boot_ns, is_released, session, is_tree, is_shared = row
    return LockRow(
        resource,
        owner,
        token,
        lease_ms,
        deadline_boot_ns,
        bool(is_released),
        session,
        bool(is_tree),
        bool(is_shared),
    )


def _encode_names(names: list[str]) -> str:
    return msgspec.json.encode(names).decode()
