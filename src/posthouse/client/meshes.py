"""Meshes over HTTP: create them, manage members, access, topics, subscriptions, blocks and invites.

Reading members pins their names: a name that suddenly has another key is refused until a person trusts the change.
The relay decides what a role may do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from posthouse.client.relay_url import Invite, parse_invite
from posthouse.client.transport import Requests
from posthouse.client.trust.pins import Pins
from posthouse.client.trust.signing import Signer
from posthouse.model.errors import error
from posthouse.model.node import PINCH_MESH, is_node_id, validate_mesh_name
from posthouse.model.pinch import SCHEME, parse_address

Role = Literal["reader", "member", "admin"]
Verdict = Literal["allow", "deny"]
R = TypeVar("R")


class Member(msgspec.Struct, frozen=True):
    """A node that belongs to a mesh."""

    node: str
    name: str | None
    role: Role


class Access(msgspec.Struct, frozen=True):
    """What is taken from a node, or from everybody (`*`) without a row of its own."""

    node: str
    read: Verdict = "allow"
    write: Verdict = "allow"
    lock: Verdict = "allow"


class Meshes:
    """The meshes of a relay, as this node may see and change them."""

    def __init__(self, requests: Requests, signer: Signer, pins: Pins, relay: Callable[[], str | None]) -> None:
        self._requests = requests
        self._signer = signer
        self._pins = pins
        self._relay = relay

    async def readable(self) -> list[dict[str, Any]]:
        """Return the meshes this node may read: name, open, and its role and member name there."""
        return self._rows(self._object(await self._requests.get("/v1/meshes")), "meshes", dict[str, Any])

    async def create(self, mesh: str, *, is_open: bool = False, name: str | None = None) -> dict[str, Any]:
        """Make a mesh; this node administers it, under a member name."""
        body = {"name": validate_mesh_name(mesh), "open": is_open} | ({} if name is None else {"member_name": name})
        return self._object(await self._requests.post("/v1/meshes", body))

    async def members(self, mesh: str) -> list[Member]:
        """Return who is listed in a mesh; raises member_key_changed when a name has another key than before."""
        members = await self.unpinned_members(mesh)
        named = {member.name: member.node for member in members if member.name is not None}
        self._pins.check_members(self._known_relay(), mesh, named)
        return members

    async def unpinned_members(self, mesh: str) -> list[Member]:
        """Return who is listed in a mesh, whatever is pinned: for looking at a change before trusting it."""
        return self._rows(await self._get(mesh, "members"), "members", Member)

    async def resolve(self, name: str, mesh: str) -> str:
        """Return the node id of a member, given its name or the node id itself; a Pinch address is one too."""
        if is_node_id(name):
            return name
        if mesh == PINCH_MESH and name.startswith(SCHEME):
            parse_address(name)
            return name
        for member in await self.members(mesh):
            if member.name == name:
                return member.node
        raise error("member_name_unknown", name=name, mesh=mesh)

    async def trust_member(self, mesh: str, name: str) -> tuple[str | None, str]:
        """Pin the key a name has now, whatever it had before; return both."""
        for member in await self.unpinned_members(mesh):
            if member.name == name:
                return self._pins.trust_member(self._known_relay(), mesh, name, member.node), member.node
        raise error("member_name_unknown", name=name, mesh=mesh)

    async def add_member(self, mesh: str, node: str, name: str, role: Role = "member") -> dict[str, Any]:
        """List a node under a name, or change its name or role."""
        return await self._post(mesh, "members", {"node": node, "name": name, "role": role})

    async def remove_member(self, mesh: str, node: str) -> None:
        """Take a node off the list."""
        await self._delete(mesh, "members", node=node)

    async def access(self, mesh: str) -> list[Access]:
        """Return what is taken from whom."""
        return self._rows(await self._get(mesh, "access"), "access", Access)

    async def set_access(
        self, mesh: str, node: str, *, read: Verdict = "allow", write: Verdict = "allow", lock: Verdict = "allow"
    ) -> dict[str, Any]:
        """Narrow what a node, or everybody (`*`), may do."""
        return await self._post(mesh, "access", {"node": node, "read": read, "write": write, "lock": lock})

    async def clear_access(self, mesh: str, node: str) -> None:
        """Give back what was taken from a node, or from everybody."""
        await self._delete(mesh, "access", node=node)

    async def topics(self, mesh: str) -> list[str]:
        """Return the topics of a mesh."""
        return self._names(await self._get(mesh, "topics"), "topics", "name")

    async def create_topic(self, mesh: str, topic: str) -> dict[str, Any]:
        """Make a topic."""
        return await self._post(mesh, "topics", {"name": topic})

    async def remove_topic(self, mesh: str, topic: str) -> None:
        """Remove a topic."""
        await self._delete(mesh, "topics", name=topic)

    async def subscriptions(self, mesh: str) -> list[str]:
        """Return the patterns this node is subscribed to."""
        return self._names(await self._get(mesh, "subscriptions"), "subscriptions", "pattern")

    async def subscribe(self, mesh: str, pattern: str) -> dict[str, Any]:
        """Subscribe this node to the topics that match a pattern."""
        return await self._post(mesh, "subscriptions", {"pattern": pattern})

    async def unsubscribe(self, mesh: str, pattern: str) -> None:
        """End a subscription of this node."""
        await self._delete(mesh, "subscriptions", pattern=pattern)

    async def blocks(self, mesh: str) -> list[str]:
        """Return the nodes this node blocks."""
        return self._names(await self._get(mesh, "blocks"), "blocks", "node")

    async def block(self, mesh: str, node: str) -> dict[str, Any]:
        """Drop the messages of a node from now on, and those that wait."""
        return await self._post(mesh, "blocks", {"node": node})

    async def unblock(self, mesh: str, node: str) -> None:
        """Take the messages of a node again."""
        await self._delete(mesh, "blocks", node=node)

    async def invite(self, mesh: str, *, uses: int = 1, expires_s: int = 86_400, role: Role = "member") -> Invite:
        """Make an invite to a mesh; it names the relay by the address the relay knows of itself."""
        answer = await self._post(mesh, "invites", {"uses": uses, "expires_s": expires_s, "role": role})
        text = answer.get("invite")
        if not isinstance(text, str):
            raise error("answer_invalid", relay=self._requests.origin, reason="it lacks invite")
        return parse_invite(text)

    async def redeem(self, invite: Invite, name: str) -> dict[str, Any]:
        """Show the code of an invite to the relay; Client.join makes sure first that it is the one that made it."""
        proof = self._signer.prove(invite.relay, ("invite", invite.code), ("name", name))
        body = {"invite": str(invite), "event": proof}
        return self._object(await self._requests.send_anonymous("POST", "/v1/join", body))

    async def _get(self, mesh: str, part: str) -> Any:
        return self._object(await self._requests.get(_path(mesh, part)))

    async def _post(self, mesh: str, part: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._object(await self._requests.post(_path(mesh, part), body))

    async def _delete(self, mesh: str, part: str, **parameters: str) -> None:
        await self._requests.delete(_path(mesh, part), parameters)

    def _known_relay(self) -> str:
        relay = self._relay()
        if relay is None:  # every answer comes after the authentication, which tells it
            raise error("answer_invalid", relay=self._requests.origin, reason="it did not say who it is")
        return relay

    def _object(self, data: bytes) -> dict[str, Any]:
        value = self._requests.decode(data) if data else {}
        if not isinstance(value, dict):
            raise error("answer_invalid", relay=self._requests.origin, reason="it is not an object")
        return value

    def _rows(self, answer: dict[str, Any], part: str, kind: type[R]) -> list[R]:
        try:
            rows: list[R] = msgspec.convert(answer.get(part), list[kind])  # type: ignore[valid-type]
            return rows
        except msgspec.ValidationError as fault:
            raise error("answer_invalid", relay=self._requests.origin, reason=f"{part}: {fault}") from fault

    def _names(self, answer: dict[str, Any], part: str, field: str) -> list[str]:
        rows: list[dict[str, Any]] = self._rows(answer, part, dict[str, Any])
        return [str(row.get(field)) for row in rows]


def _path(mesh: str, part: str) -> str:
    return f"/v1/meshes/{validate_mesh_name(mesh)}/{part}"
