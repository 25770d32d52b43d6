"""`who`: the members of the mesh with their presence, the topics, and which member this agent is.

A member chooses its status freely, so only the known values are shown; any other text would be untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.mcp.tool import ToolCall, ToolSpec

MAX_MEMBERS = 200
#: the values of a status that are shown
Presence = Literal["idle", "working", "dnd"]


_PRESENCES: dict[str, Presence] = {word: word for word in get_args(Presence)}


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Member(msgspec.Struct, omit_defaults=True):
    node: str
    online: bool
    name: str | UnsetType = UNSET
    status: Presence | UnsetType = UNSET
    #: True for this agent
    me: bool | UnsetType = UNSET


class Answer(msgspec.Struct, omit_defaults=True):
    mesh: str
    #: to the relay; without a connection the answer is cached
    connected: bool
    members: list[Member]
    topics: list[str]
    #: True: there are more members
    more: bool | UnsetType = UNSET


async def run(call: ToolCall, arguments: Arguments) -> Answer:
    peers = await call.daemon.peers()
    topics = await call.daemon.topics()
    members = sorted((show_member(peer) for peer in peers["peers"]), key=_order)
    return Answer(
        mesh=peers["mesh"],
        connected=not peers["is_cached"],
        members=members[:MAX_MEMBERS],
        topics=[f"#{name}" for name in topics["topics"]],
        more=True if len(members) > MAX_MEMBERS else UNSET,
    )


def show_member(peer: Mapping[str, object]) -> Member:
    """Return a member from the daemon's list of peers."""
    return Member(
        node=str(peer["node"]),
        online=bool(peer["online"]),
        name=str(peer["name"]) if peer.get("name") else UNSET,
        status=_PRESENCES.get(str(peer.get("status")), UNSET),
        me=True if peer.get("is_self") else UNSET,
    )


def _order(member: Member) -> tuple[bool, bool, str]:
    return member.me is UNSET, not member.online, member.node if member.name is UNSET else member.name


WHO = ToolSpec(
    "who",
    "List members, who is online, and topics.",
    Arguments,
    Answer,
    run,
    is_read_only=True,
)
