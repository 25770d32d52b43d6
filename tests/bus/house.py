"""A data directory with every bus and process that a test has open on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from posthouse import Bus
from posthouse.model.clock import FakeClock
from posthouse.model.reliability import Reliability
from tests.bus.agent import Agent
from tests.bus.mailboxes import Mailbox


class House:
    """A data directory and every bus and process a test has open on it; all are closed at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self._buses: list[Bus] = []
        self._agents: list[Agent] = []

    async def bus(self, **settings: Any) -> Bus:
        """Open a bus; time stands still on it unless the test gives another clock."""
        if isinstance(settings.get("reliability"), dict):
            settings["reliability"] = msgspec.convert(settings["reliability"], Reliability)
        bus = Bus(self.root, **{"clock": self.clock, **settings})
        await bus.__aenter__()
        self._buses.append(bus)
        return bus

    async def agent(self, **settings: Any) -> Agent:
        """Start a process with the bus open."""
        agent = await Agent.start(self.root, **settings)
        self._agents.append(agent)
        return agent

    async def close(self) -> None:
        for agent in self._agents:
            await agent.stop()
        for bus in self._buses:
            await bus.close()

    def mailbox(self, subject: str) -> Mailbox:
        """The files of an endpoint."""
        return Mailbox(self.root, subject)
