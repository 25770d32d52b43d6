"""`who`: the members of the mesh and who is online, the topics, and who this agent is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.mcp.tool import ToolCall, ToolSpec

MAX_MEMBERS = 200
#: the words a profile may use; any other text in its place is somebody's own, and not shown
Presence = Literal["idle", "working", "dnd"]


_PRESENCES: dict[str, Presence] = {word: word for word in get_args(Presence)}


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Member(msgspec.Struct, omit_defaults=True):
    node: str
    online: bool
    name: str | UnsetType = UNSET
    status: Presence | UnsetType = UNSET
    #: this agent
    me: bool | UnsetType = UNSET


class Answer(msgspec.Struct, omit_defaults=True):
    mesh: str
    #: to the relay; without it everything here is as last heard
    connected: bool
    members: list[Member]
    topics: list[str]
    #: there are members beyond these
    more: bool | UnsetType = UNSET


async def run(call: ToolCall, given: Arguments) -> Answer:
    heard = await call.daemon.peers()
    topics = await call.daemon.topics()
    members = sorted((show_member(peer) for peer in heard["peers"]), key=_order)
    return Answer(
        mesh=heard["mesh"],
        connected=not heard["is_cached"],
        members=members[:MAX_MEMBERS],
        topics=[f"#{name}" for name in topics["topics"]],
        more=True if len(members) > MAX_MEMBERS else UNSET,
    )


def show_member(peer: Mapping[str, object]) -> Member:
    """Return a member as the daemon lists it."""
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
