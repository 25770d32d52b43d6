"""A bus on which everything happens that its rules look at: two openings of one directory, driven at random.

Endpoints are served, left, unregistered and registered again; handlers fail in spells; mailboxes fill and are emptied;
dead letters pile up; senders flood; breakers open, cool, are reset; machines boot again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from posthouse.bus import Bus
from posthouse.bus.options import Retention
from posthouse.bus.results import PublishResult, publish_refused
from posthouse.model.access_rules import AccessRule, Action
from posthouse.model.budget import GivenBudget
from posthouse.model.clock import FakeClock
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.reliability import Backpressure, CircuitBreaker, DeadLetterLimits, RateLimit, Reliability

RELIABILITY = Reliability(
    rate_limit=RateLimit(window_secs=30, max_per_window=12, per_sender_overrides={"crowd.loud": 5}),
    circuit_breaker=CircuitBreaker(failure_threshold=2, cooldown_ms=10_000, success_to_close=2),
    backpressure=Backpressure(max_mailbox_size=4),
    dead_letters=DeadLetterLimits(max_letters=10, max_bytes=4_000),
)
RULES = [AccessRule(from_="crowd.spy", to="work.a", action=Action.DENY, priority=1)]
SERVED = ("work.a", "work.b")
POLLED = "work.c"
CATCH_ALL = "rest.>"
SENDERS = ("crowd.loud.one", "crowd.quiet", "crowd.spy", "work.a")
SUBJECTS = ("work.a", "work.b", "work.b", "work.c", "work.c", "work.*", "rest.x", "rest.y", "gone.away")


class RandomBus:
    """One history in the making."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = Random(seed)
        self._clock = FakeClock()
        self._is_failing = False
        self._failed = 0
        self.refused: set[str] = set()

    async def play(self, rounds: int, steps: int) -> None:
        """Open, act, close and boot again."""
        for _ in range(rounds):
            async with self._open() as server, self._open() as other:
                for rule in RULES:
                    await server.add_rule(rule)
                for subject in (*SERVED, POLLED, CATCH_ALL):
                    await server.register_endpoint(subject, owner="tests")
                unsubscribe = [await server.subscribe(subject, self._handle) for subject in SERVED]
                for step in range(steps):
                    if step == steps // 2:
                        await unsubscribe[1]()
                    await self._step(self._rng.choice((server, server, other)), server)
                    await self._settle(server, other)
            self._clock.reboot()

    def _open(self) -> Bus:
        return Bus(
            self._directory, clock=self._clock, reliability=RELIABILITY, cycle_rule="hops", retention=Retention()
        )

    async def _handle(self, envelope: Envelope) -> None:
        if self._is_failing:
            self._failed += 1
            if self._failed % 3 == 0:  # what it publishes is refused: the breaker is told nothing
                raise publish_refused("work.elsewhere", PublishResult(envelope.id, 0), None)
            raise RuntimeError("failing spell")

    async def _step(self, bus: Bus, server: Bus) -> None:
        chance = self._rng.random()
        if chance < 0.70:
            count = self._rng.choice((1, 1, 1, 3, 8))
            await asyncio.gather(*[self._publish(bus) for _ in range(count)])
        elif chance < 0.80:
            self._clock.advance(self._rng.choice((0.5, 3, 11, 31)))
        elif chance < 0.88:
            self._is_failing = not self._is_failing
        elif chance < 0.94:
            await self._fetch(bus)
        elif chance < 0.96:
            await server.reset_breaker("work.a")
        elif chance < 0.98:
            await self._requeue(bus)
        else:
            await server.unregister_endpoint(POLLED, force=True)
            await server.register_endpoint(POLLED, owner="tests")

    async def _publish(self, bus: Bus, way: tuple[str, str] | None = None, in_reply_to: str | None = None) -> None:
        rng = self._rng
        budget = rng.choice(
            (None, None, None, GivenBudget(call_budget_remaining=0), GivenBudget(max_hops=1, hop_count=1))
        )
        subject, sender = way or (rng.choice(SUBJECTS), rng.choice(SENDERS))
        try:
            result = await bus.publish(subject, {"n": 1}, from_=sender, budget=budget, in_reply_to=in_reply_to)
        except PosthouseError as failure:  # its mailbox was created again elsewhere: the reservation is withdrawn
            if failure.code != "mailbox_unwritable":
                raise
            return
        self.refused.update(entry.reason.value for entry in result.rejected)

    async def _fetch(self, bus: Bus) -> None:
        """Acknowledge what waits, and answer what other endpoints have asked: by returns, so no budget refuses it."""
        for subject in (POLLED, CATCH_ALL):
            for envelope in await bus.read_inbox(subject, limit=3):
                if envelope.from_ in SERVED:
                    await self._publish(bus, (envelope.from_, subject.replace(">", "x")), envelope.id)
                await bus.ack(subject, envelope.id)

    async def _requeue(self, bus: Bus) -> None:
        letters = await bus.dead_letters()
        if letters:
            letter = self._rng.choice(letters)
            try:
                await bus.requeue(letter.subject, letter.id)
            except PosthouseError as refusal:
                if refusal.code not in ("dead_letter_unknown", "dead_letter_trimmed", "mailbox_unwritable"):
                    raise

    async def _settle(self, *buses: Bus) -> None:
        for _ in range(3):
            for bus in buses:
                await asyncio.sleep(0)
                await bus.depths()
