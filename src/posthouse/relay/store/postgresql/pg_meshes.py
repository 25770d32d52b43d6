"""The tables of meshes on PostgreSQL: rows in, rows out; nothing is decided here.

MeshTables implements its part of posthouse.relay.store.protocol.Unit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.model.fence_rules import FenceRule
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.node import Role
from posthouse.model.rotation import KeyEnd
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.postgresql.pg_journal import SCHEMA
from posthouse.relay.wire.delivery_rows import UnfinishedDelivery
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

SQL = Statements(SCHEMA, "meshes.sql")
_encode_limits = msgspec.json.Encoder().encode
_decode_limits = msgspec.json.Decoder(MeshLimits).decode


class MeshTables:
    """Meshes with their members, access and topics, invites and retired keys, inside a transaction."""

    @property
    def _db(self) -> ServerConnection:
        raise NotImplementedError

    def save_mesh(self, row: MeshRow) -> None:
        values = (row.mesh, row.is_open, row.creator, row.created_at_ns, row.state.value, row.approves_keys)
        self._db.queue(SQL.save_mesh, *values)

    def save_limits(self, row: LimitsRow) -> None:
        self._db.queue(SQL.save_limits, row.mesh, row.source.value, _encode_limits(row.limits).decode())

    def clear_mesh(self, mesh: str) -> None:
        self._db.queue(SQL.clear_mesh, mesh)
        self._db.queue(SQL.clear_invites, mesh)

    def save_member(self, row: MemberRow) -> None:
        self._db.queue(SQL.save_member, row.mesh, row.node, row.name, row.role.value)

    def remove_member(self, mesh: str, node: str) -> None:
        self._db.queue(SQL.remove_member, mesh, node)

    def save_access(self, row: AccessRow) -> None:
        self._db.queue(SQL.save_access, row.mesh, row.node, row.read.value, row.write.value, row.lock.value)

    def remove_access(self, mesh: str, node: str) -> None:
        self._db.queue(SQL.remove_access, mesh, node)

    def save_fence_rule(self, mesh: str, rule: FenceRule) -> None:
        self._db.queue(SQL.save_fence_rule, mesh, rule.kind, rule.d_prefix.encode(), rule.resource.encode())

    def remove_fence_rule(self, mesh: str, kind: int, d_prefix: str) -> None:
        self._db.queue(SQL.remove_fence_rule, mesh, kind, d_prefix.encode())

    def save_topic(self, mesh: str, topic: str, creator: str) -> None:
        self._db.queue(SQL.save_topic, mesh, topic, creator)

    def remove_topic(self, mesh: str, topic: str) -> None:
        self._db.queue(SQL.remove_topic, mesh, topic)

    def save_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.queue(SQL.save_subscription, mesh, node, pattern)

    def remove_subscription(self, mesh: str, node: str, pattern: str) -> None:
        self._db.queue(SQL.remove_subscription, mesh, node, pattern)

    def save_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.queue(SQL.save_block, mesh, node, blocked)

    def remove_block(self, mesh: str, node: str, blocked: str) -> None:
        self._db.queue(SQL.remove_block, mesh, node, blocked)

    def save_invite(self, row: InviteRow) -> None:
        ends = (row.uses_left, row.expires_at_ns, row.creator)
        self._db.queue(SQL.save_invite, row.invite_id, row.code_hash, row.mesh, row.role.value, *ends)

    def find_invite(self, code_hash: bytes) -> InviteRow | None:
        found = self._db.row(SQL.find_invite, code_hash)
        return None if found is None else _invite(*found)

    def list_invites(self, mesh: str, now_ns: int) -> list[InviteRow]:
        return [_invite(*row) for row in self._db.rows(SQL.list_invites, mesh, now_ns)]

    def revoke_invite(self, invite_id: str) -> None:
        self._db.queue(SQL.revoke_invite, invite_id)

    def use_invite(self, invite_id: str, node: str) -> None:
        self._db.queue(SQL.use_invite, invite_id, node)

    def has_used_invite(self, invite_id: str, node: str) -> bool:
        return bool(self._db.value(SQL.has_used, invite_id, node))

    def save_retired_key(self, row: RetiredKey) -> None:
        self._db.queue(SQL.save_retired_key, *msgspec.structs.astuple(row))

    def move_node(self, node: str, successor: str) -> None:
        self._db.queue(SQL.move_node, node, successor)

    def save_held_key(self, row: HeldKey) -> None:
        self._db.queue(SQL.save_held_key, *msgspec.structs.astuple(row))

    def remove_held_key(self, mesh: str, node: str) -> None:
        self._db.queue(SQL.remove_held_key, mesh, node)

    def mailbox_meshes(self, node: str) -> list[str]:
        return [mesh for (mesh,) in self._db.rows(SQL.mailbox_meshes, node)]

    def unfinished_deliveries(self, node: str) -> list[UnfinishedDelivery]:
        return [UnfinishedDelivery(*row) for row in self._db.rows(SQL.unfinished_deliveries, node)]

    def last_seq_before(self, at_ns: int) -> int:
        seq: int = self._db.value(SQL.last_seq_before, at_ns)
        return seq


def _invite(invite_id: str, code_hash: bytes, mesh: str, role: str, *ends: Any) -> InviteRow:
    return InviteRow(invite_id, code_hash, mesh, Role(role), *ends)


def read_mesh_rows(db: ServerConnection, mesh: str | None = None) -> MeshRows:
    """Return one mesh, or all, with everything that belongs to them; all statements share one round trip."""
    tables = ("meshes", "members", "access", "topics", "subscriptions", "blocks", "fence_rules", "limits", "held_keys")
    found: dict[str, Any] = {table: db.queue(getattr(SQL, table), mesh) for table in tables}
    retired = db.queue(SQL.retired_keys)
    return MeshRows(
        meshes=[
            MeshRow(name, is_open, creator, at_ns, MeshState(state), approves_keys)
            for name, is_open, creator, at_ns, state, approves_keys in found["meshes"]
        ],
        members=[MemberRow(name, node, own, Role(role)) for name, node, own, role in found["members"]],
        access=[AccessRow(name, node, *map(Verdict, verdicts)) for name, node, *verdicts in found["access"]],
        topics=[TopicRow(*row) for row in found["topics"]],
        subscriptions=found["subscriptions"].fetchall(),
        blocks=found["blocks"].fetchall(),
        fence_rules=[
            (name, FenceRule(kind, d_prefix.decode(), resource.decode()))
            for name, kind, d_prefix, resource in found["fence_rules"]
        ],
        limits=[
            LimitsRow(name, LimitSource(source), _decode_limits(limits)) for name, source, limits in found["limits"]
        ],
        retired_keys=[RetiredKey(node, KeyEnd(reason), *rest) for node, reason, *rest in retired.fetchall()],
        held_keys=[HeldKey(*row) for row in found["held_keys"]],
    )
