"""The relay part of the demo: members, topics, messages, contended locks, and an operator's evening work.

It drives a relay engine in this process: signed events through the accept path, reader sessions that open and break,
locks through the writer. Some lock holders die and lose the lock to the next agent.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random

from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.event import PROFILE
from posthouse.model.limits import DAY_S
from posthouse.model.lock_api import LockGrant
from posthouse.model.node import DEFAULT_MESH, Role
from posthouse.model.rate import Rate
from posthouse.pipeline.demo.cast import Agent, Timeline, moments
from posthouse.pipeline.demo.relay_messages import MessageTraffic, Presence
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import PARKED
from posthouse.relay.wire.lock_operations import Acquire, LockAnswer, Release, Renew

_REQUEUED = 0.6  # of parked deliveries; the rest is purged


class Operator:
    """Act as the administrator, which is the first agent, and as a member that blocks another one."""

    def __init__(self, core: RelayEngine, cast: list[Agent], rng: Random) -> None:
        self._core = core
        self._cast = cast
        self._rng = rng
        self._blocked = False

    async def clear_parked(self) -> None:
        """Requeue parked deliveries, or purge them."""
        admin = self._cast[0].node
        for row in await self._core.queues.rows(admin, DEFAULT_MESH, None, sorted(PARKED)):
            if self._rng.random() < _REQUEUED:
                await self._core.queues.requeue(admin, DEFAULT_MESH, row["recipient"], [row["id"]])
            else:
                states = [row["state"]]
                await self._core.queues.purge(admin, DEFAULT_MESH, row["recipient"], [row["id"]], states)

    async def change_blocks(self) -> None:
        """Make the second agent block the third on one evening and unblock it on the next."""
        blocker, blocked = self._cast[1].node, self._cast[2].node
        change = self._core.participation.unblock if self._blocked else self._core.participation.block
        await change(blocker, DEFAULT_MESH, blocked)
        self._blocked = not self._blocked


RESOURCES = ("deploy/production", "branch/main", "index/rebuild", "ledger/march")
_LEASE_MS = 20_000
_WAIT_MS = 600_000  # of real time; the demo ends long before
_AFTER_LEASE_S = 0.001  # short, so that it comes before the relay's own timer, which runs in real time
_RENEW_S = 8.0
_DIES = 0.12  # share of holders
_IMPATIENT = 0.15  # share of waiting agents that leave before they get the lock


class LockContention:
    """Let agents contend for locks."""

    def __init__(self, core: RelayEngine, timeline: Timeline, cast: list[Agent], rng: Random) -> None:
        self._core = core
        self._timeline = timeline
        self._cast = cast
        self._rng = rng

    async def start(self) -> None:
        """Make a few agents request the same resource within seconds."""
        resource = self._rng.choice(RESOURCES)
        contenders = self._rng.sample(self._cast, self._rng.randrange(2, min(6, len(self._cast)) + 1))
        for agent in contenders:
            self._timeline.after(self._rng.uniform(0, 6), partial(self._acquire, agent, resource))

    async def _acquire(self, agent: Agent, resource: str) -> None:
        left: list[bool] = []
        if self._rng.random() < _IMPATIENT:

            async def leave() -> None:
                left.append(True)

            self._timeline.after(self._rng.uniform(5, 60), leave)
        wanted = Acquire(resource, _LEASE_MS, wait_ms=_WAIT_MS, request_id=f"{agent.name}-{self._timeline.now_s:.6f}")
        answer = self._core.locks.ask(agent.node, wanted, lambda: bool(left))
        answer.add_done_callback(lambda future: self._answered(agent, future))

    def _answered(self, agent: Agent, future: asyncio.Future[LockAnswer]) -> None:
        grant = None if future.cancelled() else future.result()
        if not isinstance(grant, LockGrant):
            return
        if self._rng.random() < _DIES:
            self._timeline.after(_LEASE_MS / 1000 + _AFTER_LEASE_S, partial(self._acquire_expired, agent, grant))
        else:
            self._work(agent, grant, self._rng.uniform(1, 40))

    def _work(self, agent: Agent, grant: LockGrant, rest_s: float) -> None:
        if rest_s > _RENEW_S:
            self._timeline.after(_RENEW_S, lambda: self._renew(agent, grant, rest_s - _RENEW_S))
        else:
            self._timeline.after(rest_s, lambda: self._release(agent, grant))

    async def _renew(self, agent: Agent, grant: LockGrant, rest_s: float) -> None:
        answer = await self._core.locks.ask(agent.node, Renew(grant.resource, grant.token, _LEASE_MS))
        if isinstance(answer, LockGrant):
            self._work(agent, grant, rest_s)

    async def _release(self, agent: Agent, grant: LockGrant) -> None:
        await self._core.locks.ask(agent.node, Release(grant.resource, grant.token))

    async def _acquire_expired(self, agent: Agent, grant: LockGrant) -> None:
        """Request a lock whose holder died: the relay grants it to the first waiting agent, else to this one."""
        again = await self._core.locks.ask(agent.node, Acquire(grant.resource, _LEASE_MS))
        if isinstance(again, LockGrant):
            self._work(agent, again, self._rng.uniform(1, 5))


TOPICS = ("builds", "reviews.core", "reviews.docs", "incidents")
_QUEUE_MAX = 40  # small, so that the queue of a reader that is offline for days fills up
_QUEUE_TTL_S = 2 * DAY_S
_EVENT_RATE = Rate(5, 50)  # events per agent: refuses a flood, never a conversation
_CONTENTIONS_PER_DAY = 6
_QUIET_ROUNDS = 2  # the second round sees the writes that the first one caused
_SETTLE_TIMEOUT_S = 60  # only a defect takes this long


async def play_relay(directory: Path, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int) -> None:
    """Fill a relay's store."""
    settings = EngineSettings(
        directory,
        NodeKey(f"relay {seed}".encode().ljust(32, b".")[:32]).node,
        admins=(cast[0].node,),
        event_rate=_EVENT_RATE,
        deliveries=DeliverySettings(queue_max=_QUEUE_MAX, queue_ttl_s=_QUEUE_TTL_S),
        verifier_threads=1,
        has_new_key=True,
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
        self._traffic = MessageTraffic(core, self._timeline, cast, self._rng, messages, days)
        self._readers = Presence(core, self._timeline, self._traffic.on_message, self._rng)
        self._traffic.on_stall = self._readers.stall
        self._operator = Operator(core, cast, self._rng)
        self._contention = LockContention(core, self._timeline, cast, self._rng)

    async def play(self) -> None:
        await self._set_up()
        await self._settle()
        for number, agent in enumerate(self._cast):
            self._readers.plan(agent, self._days, is_long_offline=number == len(self._cast) - 1)
        self._traffic.plan()
        for at_s in moments(self._rng, _CONTENTIONS_PER_DAY * self._days, self._days):
            self._timeline.at(at_s, self._contention.start)
        for hour in range(self._days * 24):
            self._timeline.at(hour * 3600 + 3599, self._run_housekeeping)
        for day in range(self._days):
            self._timeline.at(day * DAY_S + 20 * 3600, self._operator.clear_parked)
            self._timeline.at(day * DAY_S + 21 * 3600, self._operator.change_blocks)
        await self._timeline.play(self._settle)
        await self._readers.close()

    async def _set_up(self) -> None:
        """Add all agents as members, create the topics and subscribe to them."""
        core, admin = self._core, self._cast[0]
        for number, agent in enumerate(self._cast):
            role = Role.ADMIN if agent is admin else Role.MEMBER
            await core.administration.save_member(admin.node, DEFAULT_MESH, agent.node, agent.name, role)
            profile = self._traffic.signer(agent).sign(PROFILE, f'{{"name":"{agent.name}","model":"{agent.model}"}}')
            await self._traffic.accept(profile)
            pattern = "reviews.>" if number % 3 == 0 else TOPICS[number % len(TOPICS)]
            await core.participation.subscribe(agent.node, DEFAULT_MESH, pattern)
        for topic in TOPICS:
            await core.participation.create_topic(admin.node, DEFAULT_MESH, topic)

    async def _run_housekeeping(self) -> None:
        """Run the jobs that a relay runs on real-time timers."""
        await self._core.refusals.write(self._core.store)
        await self._core.sweeper.sweep()

    async def _settle(self) -> None:
        """Wait until the writer and the reader sessions have finished the work of the last action."""
        quiet = 0
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            while quiet < _QUIET_ROUNDS:
                await self._core.store.submit(_nothing)
                await asyncio.sleep(0)
                await self._core.sessions.idle()
                quiet = 0 if self._core.sessions.statistics()["behind"] else quiet + 1


def _nothing(_unit: Unit) -> None:
    """Do nothing: waiting for this write waits for all earlier ones."""
