"""Meshes over HTTP: create them, manage members, access, rules, topics, subscriptions, blocks and invites.

Reading members pins their names: a name that suddenly has another key is refused until a person trusts the change;
other names keep working. If the pinned key itself signed the other one as its successor, the pin follows, and
`on_rotated` informs the user. The relay decides which rights a role has.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from posthouse.client.key_chains import Keys, is_proven
from posthouse.client.relay_url import Invite, parse_invite
from posthouse.client.transport import Requests
from posthouse.client.trust.pins import Pins, member_key_changed
from posthouse.client.trust.signing import Signer
from posthouse.model.api import ActiveInvite, InviteList, MeshLimitSets, MeshList, MeshUsage
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.fence_rules import FenceRule
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.node import PINCH_MESH, is_key_digits, is_node_id, node_from_hex, validate_mesh_name
from posthouse.model.pinch import SCHEME, parse_address

log = logging.getLogger(__name__)
Role = Literal["reader", "member", "admin"]
Verdict = Literal["allow", "deny"]


class Member(msgspec.Struct, frozen=True):
    """A node that belongs to a mesh."""

    node: str
    name: str | None
    role: Role
    #: the key that this user trusts for the name, if the relay now reports another one
    pinned: str | None = None


class RotatedMember(msgspec.Struct, frozen=True):
    """A member whose pinned key signed another one as its successor."""

    mesh: str
    name: str
    before: str
    node: str

    def __str__(self) -> str:
        return f"{self.name} in the mesh {self.mesh} has a new key, {self.node}; the old one, {self.before}, signed it"


class Access(msgspec.Struct, frozen=True):
    """The rights of a node, or of every node without its own row (`*`)."""

    node: str
    read: Verdict = "allow"
    write: Verdict = "allow"
    lock: Verdict = "allow"


class _MemberList(msgspec.Struct):
    members: list[Member]


class _AccessList(msgspec.Struct):
    access: list[Access]


class _FenceRuleList(msgspec.Struct):
    rules: list[FenceRule]


class _Topic(msgspec.Struct):
    name: str


class _TopicList(msgspec.Struct):
    topics: list[_Topic]


class _Pattern(msgspec.Struct):
    pattern: str


class _PatternList(msgspec.Struct):
    subscriptions: list[_Pattern]


class _Block(msgspec.Struct):
    node: str


class _BlockList(msgspec.Struct):
    blocks: list[_Block]


class _InviteText(msgspec.Struct):
    invite: str


class Meshes:
    """The meshes of a relay, as this node may see and change them."""

    def __init__(
        self, requests: Requests, signer: Signer, pins: Pins, keys: Keys, relay: Callable[[], str | None]
    ) -> None:
        self._requests = requests
        self._signer = signer
        self._pins = pins
        self._keys = keys
        #: callback(member) after a pin has followed a rotation; a program shows it to its user
        self.on_rotated: Callable[[RotatedMember], None] = lambda member: log.warning("%s", member)
        self._relay = relay

    async def readable(self) -> list[dict[str, Any]]:
        """Return the meshes this node may read: name, open, and its role and member name in each."""
        return (await self._requests.get_as(MeshList, "/v1/meshes")).meshes

    async def create(self, mesh: str, *, is_open: bool = False, name: str | None = None) -> dict[str, Any]:
        """Create a mesh with this node as its administrator, under the member name `name`."""
        body = {"name": validate_mesh_name(mesh), "open": is_open} | ({} if name is None else {"member_name": name})
        return await self._requests.post_as(dict[str, Any], "/v1/meshes", body)

    async def limits(self, mesh: str) -> MeshLimitSets:
        """Return the limits of a mesh: those in force, its own, and those that admins of the relay allow."""
        return await self._requests.get_as(MeshLimitSets, _path(mesh, "limits"))

    async def set_limits(self, mesh: str, limits: MeshLimits, *, is_allowed: bool = False) -> MeshLimitSets:
        """Replace the mesh's own limits, or those that it may have at most; return all of them."""
        body = {"limits": limits, "source": "relay" if is_allowed else "mesh"}
        return await self._requests.post_as(MeshLimitSets, _path(mesh, "limits"), body)

    async def usage(self, mesh: str) -> MeshUsage:
        """Return what a mesh has stored."""
        return await self._requests.get_as(MeshUsage, _path(mesh, "usage"))

    async def suspend(self, mesh: str) -> None:
        """Suspend a mesh for all nodes; only for admins of the relay."""
        await self._requests.post_as(dict[str, Any], _path(mesh, "state"), {"state": "suspended"})

    async def resume(self, mesh: str) -> None:
        """Let the members of a suspended mesh use it again; only for admins of the relay."""
        await self._requests.post_as(dict[str, Any], _path(mesh, "state"), {"state": "active"})

    async def delete(self, mesh: str) -> None:
        """Delete a mesh permanently; only for admins of the relay."""
        await self._requests.delete(f"/v1/meshes/{validate_mesh_name(mesh)}")

    async def set_open(self, mesh: str, is_open: bool) -> dict[str, Any]:
        """Open a mesh to every key that authenticates, or close it to all but its members."""
        path = f"/v1/meshes/{validate_mesh_name(mesh)}"
        return await self._requests.post_as(dict[str, Any], path, {"open": is_open})

    async def members(self, mesh: str) -> list[Member]:
        """Return the members of a mesh and pin new names; `pinned` marks each member whose key has changed."""
        members = await self.unpinned_members(mesh)
        named = {member.name: member.node for member in members if member.name is not None}
        changed = self._pins.pin_members(self._known_relay(), mesh, named)
        for name, pinned in list(changed.items()):
            if await self._follow(mesh, name, pinned, named[name]):
                del changed[name]
        return [replace(member, pinned=changed.get(member.name or "")) for member in members]

    async def _follow(self, mesh: str, name: str, pinned: str, found: str) -> bool:
        """Pin the current key of a member if the pinned one leads to it by signatures; return False if not."""
        try:
            chain = await self._keys.chain(pinned)
        except Transient:
            raise
        except PosthouseError:  # an older relay has no chains
            return False
        if not is_proven(chain, pinned, found):
            return False
        self._pins.trust_member(self._known_relay(), mesh, name, found)
        self.on_rotated(RotatedMember(mesh, name, pinned, found))
        return True

    async def unpinned_members(self, mesh: str) -> list[Member]:
        """Return the members of a mesh without pinning them, to inspect a changed key before trusting it."""
        return (await self._requests.get_as(_MemberList, _path(mesh, "members"))).members

    async def resolve(self, name: str, mesh: str) -> str:
        """Return the node id of a member name or of 64 digits; raises member_key_changed if the name's key changed.

        Node ids, and Pinch addresses in the Pinch mesh, stay as they are.
        """
        if is_node_id(name):
            return name
        if is_key_digits(name):
            return node_from_hex(name)
        if mesh == PINCH_MESH and name.startswith(SCHEME):
            parse_address(name)
            return name
        for member in await self.members(mesh):
            if member.name == name:
                if member.pinned is not None:
                    raise member_key_changed(mesh, name, member.pinned, member.node)
                return member.node
        hint = f"`posthouse mesh members {mesh}` lists the hosts. Mail for agents needs the daemon: `posthouse up`."
        raise error("member_name_unknown", name=name, mesh=mesh, hint=hint)

    async def trust_member(self, mesh: str, name: str) -> tuple[str | None, str]:
        """Pin the current key of a member name; return the key pinned before, if any, and the new one."""
        for member in await self.unpinned_members(mesh):
            if member.name == name:
                return self._pins.trust_member(self._known_relay(), mesh, name, member.node), member.node
        raise error("member_name_unknown", name=name, mesh=mesh)

    async def add_member(self, mesh: str, node: str, name: str, role: Role = "member") -> dict[str, Any]:
        """Add a node under a name, or change its name or role."""
        return await self._post(mesh, "members", {"node": node, "name": name, "role": role})

    async def remove_member(self, mesh: str, node: str) -> None:
        """Remove a node from the members."""
        await self._requests.delete(_path(mesh, "members"), {"node": node})

    async def access(self, mesh: str) -> list[Access]:
        """Return the rights that differ from the default."""
        return (await self._requests.get_as(_AccessList, _path(mesh, "access"))).access

    async def set_access(
        self, mesh: str, node: str, *, read: Verdict = "allow", write: Verdict = "allow", lock: Verdict = "allow"
    ) -> dict[str, Any]:
        """Set the rights of a node, or of every node without its own row (`*`)."""
        return await self._post(mesh, "access", {"node": node, "read": read, "write": write, "lock": lock})

    async def clear_access(self, mesh: str, node: str) -> None:
        """Reset the rights of a node, or of `*`, to the default."""
        await self._requests.delete(_path(mesh, "access"), {"node": node})

    async def fence_rules(self, mesh: str) -> list[FenceRule]:
        """Return the fence rules of a mesh: which events need the fence of which resource."""
        return (await self._requests.get_as(_FenceRuleList, _path(mesh, "fence-rules"))).rules

    async def set_fence_rule(self, mesh: str, kind: int, resource: str, *, d_prefix: str = "") -> dict[str, Any]:
        """Refuse events of a kind, whose d begins with a prefix, unless they name the fence of a resource.

        The resource may contain {d}, which is replaced by the d tag of the event.
        """
        return await self._post(mesh, "fence-rules", {"kind": kind, "d_prefix": d_prefix, "resource": resource})

    async def remove_fence_rule(self, mesh: str, kind: int, *, d_prefix: str = "") -> None:
        """Remove the rule of a kind and prefix."""
        await self._requests.delete(_path(mesh, "fence-rules"), {"kind": kind, "d_prefix": d_prefix})

    async def topics(self, mesh: str) -> list[str]:
        """Return the topics of a mesh."""
        answer = await self._requests.get_as(_TopicList, _path(mesh, "topics"))
        return [row.name for row in answer.topics]

    async def create_topic(self, mesh: str, topic: str) -> dict[str, Any]:
        """Create a topic."""
        return await self._post(mesh, "topics", {"name": topic})

    async def remove_topic(self, mesh: str, topic: str) -> None:
        """Remove a topic."""
        await self._requests.delete(_path(mesh, "topics"), {"name": topic})

    async def subscriptions(self, mesh: str) -> list[str]:
        """Return the topic patterns this node is subscribed to."""
        answer = await self._requests.get_as(_PatternList, _path(mesh, "subscriptions"))
        return [row.pattern for row in answer.subscriptions]

    async def subscribe(self, mesh: str, pattern: str) -> dict[str, Any]:
        """Subscribe this node to the topics that match a pattern."""
        return await self._post(mesh, "subscriptions", {"pattern": pattern})

    async def unsubscribe(self, mesh: str, pattern: str) -> None:
        """End a subscription of this node."""
        await self._requests.delete(_path(mesh, "subscriptions"), {"pattern": pattern})

    async def blocks(self, mesh: str) -> list[str]:
        """Return the nodes that this node blocks."""
        answer = await self._requests.get_as(_BlockList, _path(mesh, "blocks"))
        return [row.node for row in answer.blocks]

    async def block(self, mesh: str, node: str) -> dict[str, Any]:
        """Drop the messages of a node: those that wait, and all later ones."""
        return await self._post(mesh, "blocks", {"node": node})

    async def unblock(self, mesh: str, node: str) -> None:
        """Accept the messages of a node again."""
        await self._requests.delete(_path(mesh, "blocks"), {"node": node})

    async def invite(self, mesh: str, *, uses: int = 1, expires_s: int = 86_400, role: Role = "member") -> Invite:
        """Create an invite to a mesh; it has all addresses of this client, or the one that the relay has for itself."""
        body = {"uses": uses, "expires_s": expires_s, "role": role}
        made = parse_invite((await self._requests.post_as(_InviteText, _path(mesh, "invites"), body)).invite)
        url = self._requests.url
        return dataclasses.replace(made, url=url) if url.others else made

    async def invites(self, mesh: str) -> list[ActiveInvite]:
        """Return the invites to a mesh that can be used now; its admins may see them."""
        return (await self._requests.get_as(InviteList, _path(mesh, "invites"))).invites

    async def revoke_invite(self, mesh: str, invite_id: str) -> None:
        """End an invite; nodes that joined with it stay members."""
        await self._requests.delete(_path(mesh, "invites"), {"id": invite_id})

    async def redeem(self, invite: Invite, name: str) -> dict[str, Any]:
        """Send the code of an invite to the relay; use Client.join, which first checks that the relay issued it."""
        proof = self._signer.prove(invite.relay, ("invite", invite.code), ("name", name))
        body = {"invite": str(dataclasses.replace(invite, tls=None)), "event": proof}
        return await self._requests.send_anonymous(dict[str, Any], "POST", "/v1/join", body)

    async def _post(self, mesh: str, part: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._requests.post_as(dict[str, Any], _path(mesh, part), body)

    def _known_relay(self) -> str:
        relay = self._relay()
        if relay is None:  # cannot happen after a request as this node: authenticating reveals the relay's key
            raise error("answer_invalid", relay=self._requests.origin, reason="it did not give its node id")
        return relay


def _path(mesh: str, part: str) -> str:
    return f"/v1/meshes/{validate_mesh_name(mesh)}/{part}"
