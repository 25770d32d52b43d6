"""The tools `who` and `topic`: the agents and members of the mesh, their capabilities, and the topics.

A member's description of itself is untrusted. A status is shown only if it is one of the known words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from posthouse.mcp.tool import ToolCall, ToolSpec
from posthouse.mcp.tools.reading import short_node

MAX_MEMBERS = 200
#: the values of a status that are shown
Presence = Literal["idle", "working", "dnd"]
_PRESENCES: dict[str, Presence] = {word: word for word in get_args(Presence)}


class WhoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class About(msgspec.Struct, omit_defaults=True):
    """An agent's description of itself."""

    summary: str = ""
    capabilities: list[str] = []


class Member(msgspec.Struct, omit_defaults=True):
    """An agent, or a host with a person."""

    #: what `to` of send accepts
    name: str
    online: bool
    status: Presence | UnsetType = UNSET
    untrusted: About | UnsetType = UNSET


class WhoAnswer(msgspec.Struct, omit_defaults=True):
    #: this agent
    you: str
    mesh: str
    #: to the relay; without a connection the answer is cached
    connected: bool
    agents: list[Member]
    topics: list[str]
    #: the topics and patterns whose messages this agent gets
    following: list[str] | UnsetType = UNSET
    #: True: there are more members
    more: bool | UnsetType = UNSET


async def run_who(call: ToolCall, arguments: WhoArguments) -> WhoAnswer:
    peers = await call.daemon.peers()
    topics = await call.daemon.topics()
    nodes = [peer["node"] for peer in peers["peers"]]
    hosts = [(str(peer.get("name") or short_node(peer["node"], nodes)), peer) for peer in peers["peers"]]
    shown = [member for host, peer in hosts for member in show_host(host, peer)]
    (you,) = [address(call.agent, host, peer) for host, peer in hosts if peer["is_self"]]
    members = sorted((member for member in shown if member.name != you), key=_order)
    return WhoAnswer(
        you=you,
        mesh=peers["mesh"],
        connected=not peers["is_cached"],
        agents=members[:MAX_MEMBERS],
        topics=[f"#{name}" for name in topics["topics"]],
        following=[f"#{name}" for name in topics["subscriptions"] or ()] or UNSET,
        more=True if len(members) > MAX_MEMBERS else UNSET,
    )


def address(agent: str, host: str, peer: Mapping[str, Any]) -> str:
    """Return the address of an agent of a host; while this host has no name, its agents go by their own names."""
    return agent if peer["is_self"] and not peer.get("name") else f"{agent}@{host}"


def show_host(host: str, peer: Mapping[str, Any]) -> Iterator[Member]:
    """Yield a host of the daemon's list of peers, and its agents."""
    yield show_member(host, peer)
    for agent in peer.get("agents", ()):
        yield show_member(address(agent["name"], host, peer), agent)


def show_member(name: str, about: Mapping[str, Any]) -> Member:
    """Return an agent or a host."""
    says = About(str(about.get("summary") or ""), [str(each) for each in about.get("capabilities") or ()])
    return Member(
        name=name,
        online=bool(about["online"]),
        status=_PRESENCES.get(str(about.get("status")), UNSET),
        untrusted=says if says.summary or says.capabilities else UNSET,
    )


def _order(member: Member) -> tuple[bool, str]:
    return not member.online, member.name


WHO = ToolSpec(
    "who",
    "List yourself, others with their skills, and topics.",
    WhoArguments,
    WhoAnswer,
    run_who,
    is_read_only=True,
)


class TopicArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["follow", "unfollow", "create"]
    topic: str


class TopicAnswer(msgspec.Struct):
    topic: str
    following: bool


async def run_topic(call: ToolCall, arguments: TopicArguments) -> TopicAnswer:
    topic = arguments.topic.removeprefix("#")
    if arguments.action == "create":
        await call.daemon.create_topic(topic)
    if arguments.action == "unfollow":
        await call.daemon.unsubscribe(topic)
    else:
        await call.daemon.subscribe(topic)
    return TopicAnswer(f"#{topic}", following=arguments.action != "unfollow")


TOPIC = ToolSpec(
    "topic",
    "Follow a #topic to get its messages; create also follows.",
    TopicArguments,
    TopicAnswer,
    run_topic,
)
