"""What happens at the demo's relay: members, topics, messages, contended locks, and an operator's evening work.

Drives a relay's core in this process: signed events through the accept path, reader sessions that open and break,
locks through the one writer. Some lock holders die and lose the lock to the next.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random

from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import error
from posthouse.model.kinds import PROFILE
from posthouse.model.limits import DAY_S
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.rate import Rate
from posthouse.pipeline.demo.cast import Agent, Timeline, moments
from posthouse.pipeline.demo.relay_messages import MessageTraffic, Presence
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import PARKED
from posthouse.relay.wire.lock_operations import Acquire, Granted, LockAnswer, Release, Renew
from posthouse.relay.wire.mesh_rows import Role

_REQUEUED = 0.6  # of what is parked; the rest goes for good


class Operator:
    """The administrator, who is the first agent, and the members who block."""

    def __init__(self, core: RelayEngine, cast: list[Agent], rng: Random) -> None:
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


RESOURCES = ("deploy/production", "branch/main", "index/rebuild", "ledger/march")
_LEASE_MS = 20_000
_WAIT_MS = 600_000  # of real time, which hardly passes here
_MOMENT_S = 0.001  # after a lease: before the relay's own timer looks, which runs in real time
_RENEW_S = 8.0
_DIES = 0.12
_IMPATIENT = 0.15  # of those who wait: they leave before their turn


class LockContention:
    """The fights of one history."""

    def __init__(self, core: RelayEngine, timeline: Timeline, cast: list[Agent], rng: Random) -> None:
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

    def _answered(self, agent: Agent, future: asyncio.Future[LockAnswer]) -> None:
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


TOPICS = ("builds", "reviews.core", "reviews.docs", "incidents")
_QUEUE_MAX = 40  # small, so that somebody who is away for long has a full one
_QUEUE_TTL_S = 2 * DAY_S
_EVENT_RATE = Rate(5, 50)  # events of one agent: a flood is refused, a conversation never
_FIGHTS_PER_DAY = 6
_QUIET_TURNS = 2  # the second one sees written what the first has sent
_SETTLE_TURNS = 30_000  # of a millisecond: only a defect needs so many


async def play_relay(directory: Path, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int) -> None:
    """Fill a relay's store."""
    settings = EngineSettings(
        directory,
        NodeKey(f"relay {seed}".encode().ljust(32, b".")[:32]).node,
        admins=(cast[0].node,),
        event_rate=_EVENT_RATE,
        deliveries=DeliverySettings(queue_max=_QUEUE_MAX, queue_ttl_s=_QUEUE_TTL_S),
        verifier_threads=1,
    )
    core = await RelayEngine.start(settings, clock)
    try:
        await _Scene(core, clock, cast, seed, messages, days).play()
    finally:
        await core.close()


class _Scene:
    def __init__(
        self, core: RelayEngine, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int
    ) -> None:
        self._core = core
        self._cast = cast
        self._days = days
        self._rng = Random(f"{seed} relay")
        self._timeline = Timeline(clock)
        self._letters = MessageTraffic(core, self._timeline, cast, self._rng, messages, days)
        self._readers = Presence(core, self._timeline, self._letters.take, self._rng)
        self._letters.on_stall = self._readers.stall
        self._operator = Operator(core, cast, self._rng)
        self._fights = LockContention(core, self._timeline, cast, self._rng)

    async def play(self) -> None:
        await self._found()
        await self._settle()
        for number, agent in enumerate(self._cast):
            self._readers.plan(agent, self._days, is_long_away=number == len(self._cast) - 1)
        self._letters.plan()
        for at_s in moments(self._rng, _FIGHTS_PER_DAY * self._days, self._days):
            self._timeline.at(at_s, self._fights.start)
        for hour in range(self._days * 24):
            self._timeline.at(hour * 3600 + 3599, self._keep_house)
        for day in range(self._days):
            self._timeline.at(day * DAY_S + 20 * 3600, self._operator.look_after_queues)
            self._timeline.at(day * DAY_S + 21 * 3600, self._operator.change_blocks)
        await self._timeline.play(self._settle)
        await self._readers.close()

    async def _found(self) -> None:
        """List everybody, make the topics and subscribe to them."""
        core, admin = self._core, self._cast[0]
        for number, agent in enumerate(self._cast):
            role = Role.ADMIN if agent is admin else Role.MEMBER
            await core.administration.save_member(admin.node, DEFAULT_MESH, agent.node, agent.name, role)
            profile = self._letters.signer(agent).sign(PROFILE, f'{{"name":"{agent.name}","model":"{agent.model}"}}')
            await self._letters.accept(profile)
            pattern = "reviews.>" if number % 3 == 0 else TOPICS[number % len(TOPICS)]
            await core.participation.subscribe(agent.node, DEFAULT_MESH, pattern)
        for topic in TOPICS:
            await core.participation.create_topic(admin.node, DEFAULT_MESH, topic)

    async def _keep_house(self) -> None:
        """Do what a relay does by itself in a real hour."""
        await self._core.refusals.write(self._core.store)
        await self._core.sweeper.sweep()

    async def _settle(self) -> None:
        """Wait until the writer and the mailboxes have done everything that the last action led to."""
        quiet = 0
        for _ in range(_SETTLE_TURNS):
            await self._core.store.submit(_nothing)
            await asyncio.sleep(0)
            quiet = 0 if self._core.sessions.statistics()["behind"] else quiet + 1
            if quiet == _QUIET_TURNS:
                return
            if not quiet:
                await asyncio.sleep(0.001)
        raise error("internal", reason="the relay of the demo does not come to rest")


def _nothing(_unit: Unit) -> None:
    """Wait for one's turn at the writer."""
