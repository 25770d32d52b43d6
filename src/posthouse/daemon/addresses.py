"""Which host and agent a string names: `claude@laptop`, `claude`, a member, a key, or #topic.

A plain name is an agent of this host, else a member, else an agent that exactly one host of the mesh lists; a name
with several meanings is refused with its candidates, never guessed. A mistyped name is refused with near misses. It
refuses an agent of another host only if it has seen that host's list on the current connection; otherwise it queues the
message, and the other host refuses it if it cannot deliver it. In the same way an unknown topic is refused only once
the relay has said that it does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.client.messages.receipts import RECEIPTS_FEATURE
from posthouse.client.messages.receiver import AGENTS_FEATURE
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.roster import TOPIC_MARK, Roster
from posthouse.daemon.uplink import Uplink
from posthouse.model.address import DEFAULT_INBOX, Address, Recipient, is_agent_name, near_misses, parse_address
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.profile import AgentProfile

_NO_RELAY = "this host is not connected to its relay"


class AddressBook:
    """Resolves recipients for the senders of one host."""

    def __init__(self, node: str, uplink: Uplink, roster: Roster, agents: AgentRegistry) -> None:
        self._node = node
        self._uplink = uplink
        self._roster = roster
        self._agents = agents

    async def resolve(self, to: str) -> Recipient:
        """Return the node id or #topic that a string names, and the agent there, or raise an error if it names none."""
        if to.startswith(TOPIC_MARK):
            return Recipient(await self._uplink.resolve(to))
        if "@" in to:
            return await self._resolve_agent(parse_address(to))
        own = self._agents.agents.get(to)
        if own is not None and not own.is_retired:
            return Recipient(self._node, to)
        try:
            return Recipient(await self._uplink.resolve(to))
        except PosthouseError as unknown:
            if unknown.code != "member_name_unknown":
                raise
            return self._resolve_name(to, unknown)

    def check_route(self, agent: str, to: Recipient) -> None:
        """Raise relay_too_old for mail from or to an agent that must pass a relay which mixes up ids of agents."""
        if (agent or to.agent) and to.destination != self._node and self._uplink.is_too_old_for_agents:
            named = str(Address(to.agent, to.destination)) if to.agent else f"{to.destination} from {agent}"
            raise error("relay_too_old", feature=AGENTS_FEATURE, purpose=f"mail to {named}")

    async def resolve_past(self, name: str) -> Recipient:
        """Return the host and agent that a name in old mail refers to; the agent may no longer exist."""
        if "@" in name:
            address = parse_address(name)
            return Recipient(await self._uplink.resolve(address.host), address.agent)
        if name in self._agents.agents:
            return Recipient(self._node, name)
        return await self.resolve(name)

    def sends_receipts(self, destination: str, agent: str) -> bool | None:
        """Return whether the recipient of a message sends receipts when it has read it; None if that is unknown."""
        if destination.startswith(TOPIC_MARK) or not agent:
            return False
        if destination == self._node:
            own = self._agents.agents.get(agent)
            return own is not None and bool(own.receipts)
        listed = self._uplink.listed_agents().get(destination)
        found = next((each for each in listed or () if each.name == agent), None)
        return None if found is None else found.receipts and self._uplink.supports(RECEIPTS_FEATURE)

    def pause_of(self, to: Recipient) -> dict[str, str] | None:
        """Return until when and why the recipient of a message is paused; None if no pause is known."""
        if to.destination == self._node:
            own = self._agents.pause_of(to.agent)
            return None if own is None else {"until": format_utc(own.until_ns), "reason": own.reason}
        listed = self._uplink.listed_agents().get(to.destination) or ()
        found = next((each for each in listed if each.name == to.agent), None)
        if (
            found is None
            or found.paused_until is None
            or found.paused_until * MILLISECOND_NS <= self._agents.store.clock.wall_ns()
        ):
            return None
        return {"until": format_utc(found.paused_until * MILLISECOND_NS), "reason": found.pause_reason}

    def absence_of(self, to: Recipient) -> str | None:
        """Return why no agent can answer a request to a recipient now; None if one can, as far as this host knows."""
        if to.destination.startswith(TOPIC_MARK):
            return None if self._uplink.is_up else _NO_RELAY
        if to.destination == self._node:
            return self._agents.absence_of(to.agent)
        if not self._uplink.is_up:
            return _NO_RELAY
        entry = self._uplink.online.get(to.destination)
        return None if entry is not None and entry.online else "its host is not connected to the relay"

    def addresses(self) -> Iterator[tuple[Address, str, AgentProfile]]:
        """Yield the active agents that other hosts list: address, node id, profile."""
        for node, agents in self._uplink.listed_agents().items():
            for agent in agents or ():
                if node != self._node and not agent.retired:
                    yield Address(agent.name, self._roster.host_of(node)), node, agent

    def _resolve_name(self, name: str, unknown: PosthouseError) -> Recipient:
        """Return the one agent of the mesh with a name; raises recipient_ambiguous, or `unknown` with near misses."""
        found = [(address, node) for address, node, _agent in self.addresses() if address.agent == name]
        if len(found) > 1:
            candidates = ", ".join(sorted(str(address) for address, _node in found))
            raise error("recipient_ambiguous", to=name, candidates=candidates)
        if found:
            return Recipient(found[0][1], name)
        if is_agent_name(name) and name in self._agents.agents:
            self._agents.require_active(name)
        raise self._with_near_misses(unknown, name)

    async def _resolve_agent(self, address: Address) -> Recipient:
        try:
            node = await self._uplink.resolve(address.host)
        except PosthouseError as unknown:
            if unknown.code != "member_name_unknown":
                raise
            raise self._with_near_misses(unknown, str(address)) from unknown
        if node == self._node:
            return Recipient(node, self._agents.require_active(address.agent).name)
        self.check_route(DEFAULT_INBOX, Recipient(node, address.agent))
        if (listing := await self._uplink.agents_of(node)) is not None:
            self._check_listed(address, listing.agents)
        return Recipient(node, address.agent)

    def _check_listed(self, address: Address, listed: tuple[AgentProfile, ...] | None) -> None:
        """Raise an error if a host accepts no mail for an agent; `listed` is None for a host that lists none."""
        if not listed:
            hint = f"Write to {address.host} itself."
            raise error("recipient_agent_unknown", agent=address.agent, host=address.host, hint=hint)
        found = next((agent for agent in listed if agent.name == address.agent), None)
        if found is None:
            active = [agent.name for agent in listed if not agent.retired]
            close = near_misses(address.agent, active) or sorted(active)
            names = ", ".join(f"{name}@{address.host}" for name in close[:5])
            raise error(
                "recipient_agent_unknown", agent=address.agent, host=address.host, hint=f"Did you mean {names}?"
            )
        if found.retired:
            raise error("agent_retired", name=str(address), reason=found.retired_reason or "it was retired")

    def _agents_called_like(self, name: str) -> list[str]:
        """Return the addresses of agents of other hosts whose names are close to a name without a host."""
        found: dict[str, list[str]] = {}
        for address, _node, _agent in self.addresses():
            found.setdefault(address.agent, []).append(str(address))
        return [address for close in near_misses(name, list(found)) for address in sorted(found[close])]

    def _with_near_misses(self, unknown: PosthouseError, text: str) -> PosthouseError:
        members = [member.name for member in self._roster.members if member.name]
        own = [name for name, agent in self._agents.agents.items() if not agent.is_retired]
        host = self._roster.host_of(self._node)
        known = [*members, *own, *(str(address) for address, _node, _agent in self.addresses())]
        known += [f"{name}@{host}" for name in own]
        close = near_misses(text, known) or self._agents_called_like(text)
        hint = f"Did you mean {', '.join(close)}? {unknown.hint}" if close else unknown.hint
        if not self._uplink.is_up:
            hint += " Without its relay this host cannot find agents of other hosts by name alone: give NAME@HOST."
        return type(unknown)(unknown.spec, unknown.fields, hint)
