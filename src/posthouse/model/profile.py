"""The agents in the profile (kind 10002) of a host, as other members see them before they write to one.

A profile is a JSON object. Without the member `agents` the host takes mail for itself only. A relay refuses a profile
whose list breaks the bounds here, so readers need not bound it. Unknown members of an entry are ignored: later
versions may add some. If you change the list: 1. docs/protocol.md, 2. the version of the feature `agents`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from posthouse.model.address import AGENTS_MAX, is_agent_name
from posthouse.model.errors import error

# A profile lists 64 agents and is an event: these bounds keep it far below the size of one.
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Line = Annotated[str, msgspec.Meta(max_length=200)]
Words = Annotated[list[Word], msgspec.Meta(max_length=16)]


class AgentProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One agent of a host."""

    name: str
    #: the program that uses the name, as in claude-code
    program: Word | None = None
    summary: Line = ""
    capabilities: Annotated[tuple[Word, ...], msgspec.Meta(max_length=16)] = ()
    #: availability: idle, working or dnd
    status: Word | None = None
    #: whether senders learn when the agent read their messages
    receipts: bool = True
    #: the agent no longer accepts mail
    retired: bool = False
    #: why, for senders
    retired_reason: Line = ""
    #: Unix milliseconds until which its mail waits and nothing wakes it
    paused_until: int | None = None
    pause_reason: Line = ""


class AgentListing(NamedTuple):
    """The list of agents in a host's profile."""

    #: None if it has no list
    agents: tuple[AgentProfile, ...] | None


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_agents = msgspec.json.Decoder(Annotated[tuple[AgentProfile, ...], msgspec.Meta(max_length=AGENTS_MAX)]).decode


def read_agents(content: str) -> tuple[AgentProfile, ...] | None:
    """Return the agents that a profile lists, None if it has no list, or raise profile_malformed."""
    try:
        listed = _decode_members(content).get("agents")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None  # profiles were free text before there were agents
    if listed is None:
        return None
    try:
        agents: tuple[AgentProfile, ...] = _decode_agents(listed)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise error("profile_malformed", reason=str(fault)) from fault
    names = [agent.name for agent in agents]
    if (invalid := next((name for name in names if not is_agent_name(name)), None)) is not None:
        raise error("profile_malformed", reason=f"{invalid[:64]!r} is not the name of an agent")
    if len(set(names)) < len(names):
        raise error("profile_malformed", reason="two agents have the same name")
    return agents
