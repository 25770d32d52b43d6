"""The registrar keeps the relay informed about the agents of this host: profile, presence, and the topics they follow.

The host's profile lists its agents, so that other hosts can write to them; it is published after a change, at most
every PUBLISH_EVERY_S. The host subscribes to the union of its agents' patterns. A subscription that the relay has and
no agent asked for belongs to the default inbox: it is from the time before there were agents, or was made by hand.
Names of projects and processes never leave the host.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog

from posthouse.client import Client
from posthouse.client.messages.receiver import AGENTS_FEATURE
from posthouse.daemon.agents.pauses import Pause
from posthouse.daemon.agents.registry import Agent, AgentRegistry
from posthouse.daemon.agents.subscriptions import Subscriptions
from posthouse.daemon.uplink import Uplink
from posthouse.model.address import AGENTS_MAX, DEFAULT_INBOX
from posthouse.model.errors import PosthouseError
from posthouse.model.event import PROFILE, Coordinate
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.profile import AgentProfile

log = structlog.get_logger(__name__)
PUBLISH_EVERY_S = 10.0  # a profile travels to every member


def agent_profile(agent: Agent, pause: Pause | None) -> AgentProfile:
    """Return the profile of an agent, which other hosts see."""
    return AgentProfile(
        name=agent.name,
        program=agent.program,
        summary=agent.summary or "",
        capabilities=tuple(msgspec.json.decode(agent.capabilities)),
        status=agent.status,
        receipts=bool(agent.receipts),
        retired=agent.is_retired,
        retired_reason=agent.retired_reason or "",
        paused_until=None if pause is None else pause.until_ns // MILLISECOND_NS,
        pause_reason="" if pause is None else pause.reason,
    )


def listed_agents(agents: AgentRegistry) -> list[AgentProfile]:
    """Return the agents of a profile: active ones, then those retired last, as many as it may list."""
    ordered = sorted(agents.agents.values(), key=lambda agent: (agent.is_retired, -(agent.retired_at_ns or 0)))
    return sorted(
        (agent_profile(agent, agents.pause_of(agent.name)) for agent in ordered[:AGENTS_MAX]),
        key=lambda listed: listed.name,
    )


class Registrar:
    """Keeps the relay of one mesh informed."""

    def __init__(self, mesh: str, uplink: Uplink, agents: AgentRegistry, subscriptions: Subscriptions) -> None:
        self._mesh = mesh
        self._uplink = uplink
        self._agents = agents
        self._subscriptions = subscriptions
        self._wakeup = asyncio.Event()
        self._profile_lock = asyncio.Lock()
        #: the connection for which subscriptions were compared
        self._compared = -1
        #: the connection and the list of the last profile
        self._published: tuple[int, Any] = (-1, None)
        self._next_publish_s = 0.0
        agents.on_change.append(self._wakeup.set)

    def close(self) -> None:
        """Stop following changes of agents."""
        self._agents.on_change.remove(self._wakeup.set)

    async def run(self) -> None:
        """Inform the relay after each change and each connection, until cancelled."""
        while True:
            await self._uplink.wait_sending()
            await asyncio.sleep(max(0.0, self._next_publish_s - asyncio.get_running_loop().time()))
            self._wakeup.clear()
            try:
                await self._inform()
            except PosthouseError as failure:
                log.info("registrar_waits", code=failure.code, reason=str(failure))
            await self._wait_for_change()

    async def change_profile(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change fields of the host's own profile; return the whole profile."""
        async with self._profile_lock:
            client = self._uplink.client
            applied = await _current_profile(client) | changes
            await self._publish(client, applied)
        return applied

    async def subscribe(self, agent: str, pattern: str) -> None:
        """Subscribe an agent to the topics that match a pattern."""
        await self._uplink.client.meshes.subscribe(self._mesh, pattern)
        await self._subscriptions.add(agent, [pattern])

    async def unsubscribe(self, agent: str, pattern: str) -> None:
        """Unsubscribe an agent from a pattern; the host's subscription ends with the last agent that has it."""
        await self.compare_subscriptions()
        others = {name for name in (DEFAULT_INBOX, *self._agents.agents) if name != agent}
        if not any(pattern in self._subscriptions.of(name) for name in others):
            await self._uplink.client.meshes.unsubscribe(self._mesh, pattern)
        await self._subscriptions.remove(agent, pattern)

    def subscriptions_of(self, agent: str) -> list[str]:
        """Return the patterns that an agent follows."""
        return self._subscriptions.of(agent)

    async def compare_subscriptions(self) -> None:
        """Make the relay's subscriptions of this host and those of its agents equal, once for each connection."""
        meshes = self._uplink.client.meshes
        if self._compared != self._uplink.connections:
            compared = self._uplink.connections
            at_relay = set(await meshes.subscriptions(self._mesh))
            unclaimed = at_relay - self._subscriptions.union() - self._subscriptions.abandoned()
            if unclaimed:
                await self._subscriptions.add(DEFAULT_INBOX, unclaimed)
            for pattern in self._subscriptions.union() - at_relay:
                await meshes.subscribe(self._mesh, pattern)
            self._compared = compared
        for pattern in self._subscriptions.abandoned():
            await meshes.unsubscribe(self._mesh, pattern)
        await self._subscriptions.forget_retired()

    async def _inform(self) -> None:
        await self.compare_subscriptions()
        if not self._uplink.supports(AGENTS_FEATURE):
            return
        self._uplink.show_online([name for name, agent in self._agents.agents.items() if agent.is_running])
        listed = msgspec.to_builtins(listed_agents(self._agents))
        state = self._uplink.connections, listed
        if state == self._published:
            return
        async with self._profile_lock:
            client = self._uplink.client
            known = await _current_profile(client)
            if known.get("agents", []) != listed:
                self._next_publish_s = asyncio.get_running_loop().time() + PUBLISH_EVERY_S
                await self._publish(client, known | {"agents": listed})
        self._published = state

    async def _publish(self, client: Client, profile: dict[str, Any]) -> None:
        await client.publish(msgspec.json.encode(profile).decode(), kind=PROFILE, mesh=self._mesh)

    async def _wait_for_change(self) -> None:
        """Wait for a change; return after a while anyway, because programs end without notice."""
        try:
            async with asyncio.timeout(PUBLISH_EVERY_S):
                await self._wakeup.wait()
        except TimeoutError:
            pass


async def _current_profile(client: Client) -> dict[str, Any]:
    try:
        stored = await client.address(Coordinate(PROFILE, client.key.node, ""))
        value = msgspec.json.decode(stored.event.content)
    except PosthouseError as failure:
        if failure.code != "address_unknown":
            raise
        return {}
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
