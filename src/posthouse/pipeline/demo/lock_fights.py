"""Fights for locks: several agents want one thing; most give it back, some die with it and lose it to the next."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from posthouse.pipeline.demo.cast import Agent
from posthouse.pipeline.demo.timeline import Timeline
from posthouse.relay.core import Core
from posthouse.relay.locks.answers import Answer, Granted
from posthouse.relay.locks.arguments import Acquire, Release, Renew

RESOURCES = ("deploy/production", "branch/main", "index/rebuild", "ledger/march")
_LEASE_MS = 20_000
_WAIT_MS = 600_000  # of real time, which hardly passes here
_MOMENT_S = 0.001  # after a lease: before the relay's own timer looks, which runs in real time
_RENEW_S = 8.0
_DIES = 0.12
_IMPATIENT = 0.15  # of those who wait: they leave before their turn


class LockFights:
    """The fights of one history."""

    def __init__(self, core: Core, timeline: Timeline, cast: list[Agent], rng: Random) -> None:
        self._core = core
        self._timeline = timeline
        self._cast = cast
        self._rng = rng

    async def start(self) -> None:
        """Let a few agents go for the same resource within seconds."""
        resource = self._rng.choice(RESOURCES)
        fighters = self._rng.sample(self._cast, self._rng.randrange(2, min(6, len(self._cast)) + 1))
        for agent in fighters:
            self._timeline.after(self._rng.uniform(0, 6), partial(self._ask, agent, resource))

    async def _ask(self, agent: Agent, resource: str) -> None:
        gone: list[bool] = []
        if self._rng.random() < _IMPATIENT:

            async def leave() -> None:
                gone.append(True)

            self._timeline.after(self._rng.uniform(5, 60), leave)
        wanted = Acquire(resource, _LEASE_MS, wait_ms=_WAIT_MS, request_id=f"{agent.name}-{self._timeline.now_s:.6f}")
        answer = self._core.locks.ask(agent.node, wanted, lambda: bool(gone))
        answer.add_done_callback(lambda future: self._answered(agent, future))

    def _answered(self, agent: Agent, future: asyncio.Future[Answer]) -> None:
        grant = None if future.cancelled() else future.result()
        if not isinstance(grant, Granted):
            return
        if self._rng.random() < _DIES:
            self._timeline.after(_LEASE_MS / 1000 + _MOMENT_S, partial(self._look, agent, grant))
        else:
            self._work(agent, grant, self._rng.uniform(1, 40))

    def _work(self, agent: Agent, grant: Granted, rest_s: float) -> None:
        if rest_s > _RENEW_S:
            self._timeline.after(_RENEW_S, lambda: self._renew(agent, grant, rest_s - _RENEW_S))
        else:
            self._timeline.after(rest_s, lambda: self._release(agent, grant))

    async def _renew(self, agent: Agent, grant: Granted, rest_s: float) -> None:
        answer = await self._core.locks.ask(agent.node, Renew(grant.resource, grant.token, _LEASE_MS))
        if isinstance(answer, Granted):
            self._work(agent, grant, rest_s)

    async def _release(self, agent: Agent, grant: Granted) -> None:
        await self._core.locks.ask(agent.node, Release(grant.resource, grant.token))

    async def _look(self, agent: Agent, grant: Granted) -> None:
        """Ask for a lock whose holder has died: whoever waits has it then, or else who asks."""
        again = await self._core.locks.ask(agent.node, Acquire(grant.resource, _LEASE_MS))
        if isinstance(again, Granted):
            self._work(agent, again, self._rng.uniform(1, 5))
