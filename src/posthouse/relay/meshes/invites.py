"""Invites: secret codes that make their holders members, a limited number of times until they expire or are revoked.

The store keeps a hash over the code and the relay's key, so neither a stolen store nor another relay can use an
invite. An invite ends when its creator stops being an admin. A node that joined but lost the answer gets it again with
the same invite; that costs no further use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from posthouse.keys.identity import new_token, same_token
from posthouse.model.errors import error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.node import Role, validate_member_name
from posthouse.model.ulid import UlidGenerator
from posthouse.relay.accept.mesh_registry import Right
from posthouse.relay.meshes.administration import MeshChanges, check_member, revoke_invite
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.mesh_rows import InviteRow, MemberRow

MAX_INVITES = 1_000  # of one mesh that can be used: the removal of their creator ends them in one transaction
MAX_USES = 10_000
MAX_EXPIRES_S = 365 * DAY_S


@dataclass(frozen=True, slots=True)
class Invite:
    """A new invite; afterwards the relay knows only the hash of its code."""

    invite_id: str
    mesh: str
    code: str
    expires_at_ns: int


class Invites:
    """Creates, lists, revokes and redeems invites."""

    def __init__(self, changes: MeshChanges, relay: str, minter: UlidGenerator) -> None:
        self._changes = changes
        self._meshes = changes.meshes
        self._relay = relay
        self._minter = minter

    async def create(self, actor: str, mesh: str, *, uses: int, expires_s: int, role: Role) -> Invite:
        """Create an invite to a mesh; its admins may."""
        if not 1 <= uses <= MAX_USES:
            raise error("value_invalid", name="uses", reason=f"it is not 1 to {MAX_USES}")
        if not 1 <= expires_s <= MAX_EXPIRES_S:
            raise error("value_invalid", name="expires_s", reason=f"it is not 1 to {MAX_EXPIRES_S}")
        code, invite_id = new_token(), self._minter.mint()

        def prepare() -> tuple[Callable[[Unit], int], Callable[[int], None]]:
            self._meshes.require(actor, mesh, Right.ADMINISTER)

            def write(unit: Unit) -> int:
                count = len(unit.list_invites(mesh, unit.now_ns))
                if count >= MAX_INVITES:
                    raise error("mesh_row_limit", mesh=mesh, count=count, what="invites")
                expires_at_ns = unit.now_ns + expires_s * SECOND_NS
                key = hash_code(self._relay, code)
                unit.save_invite(InviteRow(invite_id, key, mesh, role, uses, expires_at_ns, actor))
                body = {"role": role.value, "uses": uses, "expires_at_ns": expires_at_ns}
                unit.append("mesh.invited", mesh=mesh, actor=actor, ref=invite_id, body=body)
                return expires_at_ns

            return write, lambda _: None

        return Invite(invite_id, mesh, code, await self._changes.make(prepare))

    async def active(self, actor: str, mesh: str) -> list[InviteRow]:
        """Return the invites to a mesh that can be used now; its admins may see them."""

        def prepare() -> tuple[Callable[[Unit], list[InviteRow]], Callable[[list[InviteRow]], None]]:
            self._meshes.require(actor, mesh, Right.ADMINISTER)
            return lambda unit: unit.list_invites(mesh, unit.now_ns), lambda _: None

        return await self._changes.make(prepare)

    async def revoke(self, actor: str, mesh: str, invite_id: str) -> None:
        """End an invite, or raise invite_unknown; nodes that joined with it stay members."""

        def prepare() -> tuple[Callable[[Unit], None], Callable[[None], None]]:
            self._meshes.require(actor, mesh, Right.ADMINISTER)

            def write(unit: Unit) -> None:
                found = [row for row in unit.list_invites(mesh, unit.now_ns) if row.invite_id == invite_id]
                if not found:
                    raise error("invite_unknown", id=invite_id[:64], mesh=mesh)
                revoke_invite(unit, found[0], actor, "revoked")

            return write, lambda _: None

        await self._changes.make(prepare)

    async def redeem(self, node: str, code: str, name: str) -> MemberRow:
        """Add a node as a member under a name, by the code of an invite."""
        validate_member_name(name)
        key = hash_code(self._relay, code)

        def prepare() -> tuple[Callable[[Unit], MemberRow], Callable[[MemberRow], None]]:
            return lambda unit: self._redeem(unit, key, node, name), self._apply

        return await self._changes.make(prepare)

    def _redeem(self, unit: Unit, key: bytes, node: str, name: str) -> MemberRow:
        invite = unit.find_invite(key)
        if invite is None or not same_token(invite.code_hash, key):
            raise error("invite_invalid", reason="its code is not known here")
        # only MeshChanges alters a mesh, one change at a time, so memory is current in this transaction
        mesh = self._meshes.find(invite.mesh)
        present = mesh.members.get(node)
        if unit.has_used_invite(invite.invite_id, node):
            if present is None:
                raise error("invite_invalid", reason="this node used it before and has been removed since")
            return present
        if not invite.expires_at_ns or Right.ADMINISTER not in mesh.rights(invite.creator):
            raise error("invite_invalid", reason="it was revoked")
        if invite.expires_at_ns <= unit.now_ns:
            raise error("invite_invalid", reason="it has expired")
        if not invite.uses_left:
            raise error("invite_invalid", reason="it has been used up")
        row = MemberRow(invite.mesh, node, name, _higher(invite.role, present))
        check_member(mesh, row)
        unit.use_invite(invite.invite_id, node)
        unit.save_member(row)
        body = {"name": name, "role": row.role.value, "invite": invite.invite_id}
        unit.append("member.joined", mesh=row.mesh, actor=node, ref=node, body=body)
        return row

    def _apply(self, row: MemberRow) -> None:
        self._meshes.find(row.mesh).put_member(row)


def hash_code(relay: str, code: str) -> bytes:
    """Return the hash that the store keeps of a code; it differs for every relay."""
    return blake3(f"{relay}\0{code}".encode("utf-8", "surrogatepass")).digest()


def _higher(role: Role, present: MemberRow | None) -> Role:
    """Return the higher of two roles: an invite never lowers the role of a member."""
    if present is None:
        return role
    order = list(Role)
    return max(role, present.role, key=order.index)
