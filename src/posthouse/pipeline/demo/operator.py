"""What people do in the made-up history: look after parked messages in the evening, block and unblock a nuisance."""

from __future__ import annotations

from random import Random

from posthouse.model.node import DEFAULT_MESH
from posthouse.pipeline.demo.cast import Agent
from posthouse.relay.core import Core
from posthouse.relay.deliver.rows import PARKED

_REQUEUED = 0.6  # of what is parked; the rest goes for good


class Operator:
    """The administrator, who is the first agent, and the members who block."""

    def __init__(self, core: Core, cast: list[Agent], rng: Random) -> None:
        self._core = core
        self._cast = cast
        self._rng = rng
        self._blocked = False

    async def look_after_queues(self) -> None:
        """Open parked messages again, or remove them."""
        admin = self._cast[0].node
        for row in await self._core.queues.rows(admin, DEFAULT_MESH, None, sorted(PARKED)):
            if self._rng.random() < _REQUEUED:
                await self._core.queues.requeue(admin, DEFAULT_MESH, row["recipient"], [row["id"]])
            else:
                states = [row["state"]]
                await self._core.queues.purge(admin, DEFAULT_MESH, row["recipient"], [row["id"]], states)

    async def change_blocks(self) -> None:
        """Let the second agent block the third one evening and forgive it the next."""
        who, nuisance = self._cast[1].node, self._cast[2].node
        change = self._core.participation.unblock if self._blocked else self._core.participation.block
        await change(who, DEFAULT_MESH, nuisance)
        self._blocked = not self._blocked
