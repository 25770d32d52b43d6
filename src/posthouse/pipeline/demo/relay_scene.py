"""What happens at the relay: members, topics, threads of messages, offline spells, failures, and fights for locks.

Drives a relay's core in this process: signed events through the accept path, mailboxes that are opened and lost, locks
through the one writer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from posthouse.keys import NodeKey
from posthouse.model.bucket import Rate
from posthouse.model.clock import FakeClock
from posthouse.model.errors import error
from posthouse.model.kinds import PROFILE
from posthouse.model.limits import DAY_S
from posthouse.model.node import DEFAULT_MESH
from posthouse.pipeline.demo.attendance import Attendance
from posthouse.pipeline.demo.cast import Agent
from posthouse.pipeline.demo.correspondence import Correspondence
from posthouse.pipeline.demo.lock_fights import LockFights
from posthouse.pipeline.demo.operator import Operator
from posthouse.pipeline.demo.timeline import Timeline
from posthouse.pipeline.demo.words import moments
from posthouse.relay.core import Core, CoreSettings
from posthouse.relay.deliver.settings import DeliverySettings
from posthouse.relay.meshes.rows import Role
from posthouse.relay.store.interface import Unit

TOPICS = ("builds", "reviews.core", "reviews.docs", "incidents")
_QUEUE_MAX = 40  # small, so that somebody who is away for long has a full one
_QUEUE_TTL_S = 2 * DAY_S
_EVENT_RATE = Rate(5, 50)  # events of one agent: a flood is refused, a conversation never
_FIGHTS_PER_DAY = 6
_QUIET_TURNS = 2  # the second one sees written what the first has sent
_SETTLE_TURNS = 30_000  # of a millisecond: only a defect needs so many


async def play_relay(directory: Path, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int) -> None:
    """Fill a relay's store."""
    settings = CoreSettings(
        directory,
        NodeKey(f"relay {seed}".encode().ljust(32, b".")[:32]).node,
        admins=(cast[0].node,),
        event_rate=_EVENT_RATE,
        deliveries=DeliverySettings(queue_max=_QUEUE_MAX, queue_ttl_s=_QUEUE_TTL_S),
        checkers=1,
    )
    core = await Core.start(settings, clock)
    try:
        await _Scene(core, clock, cast, seed, messages, days).play()
    finally:
        await core.close()


class _Scene:
    def __init__(self, core: Core, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int) -> None:
        self._core = core
        self._cast = cast
        self._days = days
        self._rng = Random(f"{seed} relay")
        self._timeline = Timeline(clock)
        self._letters = Correspondence(core, self._timeline, cast, self._rng, messages, days)
        self._readers = Attendance(core, self._timeline, self._letters.take, self._rng)
        self._letters.on_stall = self._readers.stall
        self._operator = Operator(core, cast, self._rng)
        self._fights = LockFights(core, self._timeline, cast, self._rng)

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
        await self._core.attendance.sweep()

    async def _settle(self) -> None:
        """Wait until the writer and the mailboxes have done everything that the last action led to."""
        quiet = 0
        for _ in range(_SETTLE_TURNS):
            await self._core.store.submit(_nothing)
            await asyncio.sleep(0)
            quiet = 0 if self._core.mailboxes.statistics()["behind"] else quiet + 1
            if quiet == _QUIET_TURNS:
                return
            if not quiet:
                await asyncio.sleep(0.001)
        raise error("internal", reason="the relay of the demo does not come to rest")


def _nothing(_unit: Unit) -> None:
    """Wait for one's turn at the writer."""
