"""Who is online when: working hours with breaks, one agent that is away for days, connections that break."""

from __future__ import annotations

from random import Random

from posthouse.model.limits import DAY_S
from posthouse.model.node import DEFAULT_MESH
from posthouse.pipeline.demo.cast import Agent
from posthouse.pipeline.demo.reader import OnMessage, Reader
from posthouse.pipeline.demo.timeline import Timeline
from posthouse.relay.core import Core
from posthouse.relay.deliver.mailboxes import End

_HOUR_S = 3600


class Attendance:
    """The agents that are online."""

    def __init__(self, core: Core, timeline: Timeline, on_message: OnMessage, rng: Random) -> None:
        self._core = core
        self._timeline = timeline
        self._on_message = on_message
        self._rng = rng
        self._online: dict[str, Reader] = {}

    def plan(self, agent: Agent, days: int, *, is_long_away: bool) -> None:
        """Plan when an agent comes and goes; one that is long away misses all but the first and the last day."""
        for day in range(days):
            if is_long_away and 0 < day < days - 1:
                continue
            begin = day * DAY_S + self._rng.uniform(6.5, 9) * _HOUR_S
            noon = day * DAY_S + self._rng.uniform(11.8, 13.2) * _HOUR_S
            end = day * DAY_S + self._rng.uniform(17, 23) * _HOUR_S
            for come_s, go_s in ((begin, noon), (noon + self._rng.uniform(600, 4000), end)):
                self._timeline.at(come_s, lambda: self._come(agent))
                self._timeline.at(go_s, lambda: self._go(agent))

    async def stall(self, agent: Agent) -> None:
        """End the connection of an agent that makes no progress; it comes again at once."""
        reader = self._online.pop(agent.name, None)
        if reader is not None:
            await reader.close(End.TIMEOUT)
            await self._come(agent)

    async def close(self) -> None:
        """Let everybody go."""
        for reader in list(self._online.values()):
            await self._go(reader.agent)

    async def _come(self, agent: Agent) -> None:
        if agent.name not in self._online:
            self._online[agent.name] = Reader(self._core, agent, DEFAULT_MESH, self._on_message)

    async def _go(self, agent: Agent) -> None:
        reader = self._online.pop(agent.name, None)
        if reader is not None:
            await reader.close()
