"""The bus part of the demo: delegated work, slow and failing handlers, floods, denied access, unread messages.

It drives a real Bus with a fake clock. A working handler waits on the timeline until its work ends, so mailboxes fill
up while agents are busy, and rate limit, breaker and back-pressure take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from posthouse.bus import Bus
from posthouse.bus.options import Retention
from posthouse.bus.results import PublishResult
from posthouse.files import private_dir, write_atomic
from posthouse.model.access_rules import AccessRule, Action
from posthouse.model.budget import CycleRule, GivenBudget
from posthouse.model.clock import FakeClock
from posthouse.model.envelope import Envelope, Performative, StandardPayload, Usage
from posthouse.model.limits import BUDGET_CALLS, BUDGET_TTL_MS, DAY_S, MILLISECOND_NS
from posthouse.model.reliability import Backpressure, CircuitBreaker, RateLimit, Reliability
from posthouse.pipeline.demo.cast import FAILURES, Agent, Timeline, answer_text, moments, pick, request_text

#: The content of config.json.
RELIABILITY = Reliability(
    rate_limit=RateLimit(max_per_window=40),
    circuit_breaker=CircuitBreaker(failure_threshold=3, cooldown_ms=60_000),
    backpressure=Backpressure(max_mailbox_size=12),
)
#: The content of access-rules.json.
RULES = (AccessRule(from_="visitors.>", to="agents.planner.>", action=Action.DENY, priority=10),)
CYCLE_RULE: CycleRule = "hops"
VISITOR = "visitors.guest"
BOARD = "boards.notices"

_FLOODS, _FLOOD = 3, 60  # bursts of one sender, above its rate limit
_RUSHES, _RUSH = 4, 16  # bursts of many senders to one mailbox, above its capacity
_MAX_HOPS = 3  # so that the longest conversations end by their budget
_OUTAGE_S = 9_000  # how long an agent fails
_SETTLE_ROUNDS = 3  # a handler may publish to another one, which may publish in turn
_SPARE = 2  # planned starts per message: most do nothing, because enough messages were sent by then


class ToolFailure(Exception):
    """Raised by a handler whose work failed."""


#: Log entries of the bus about messages that the scene sends in order to have them refused.
_REFUSALS = ("publish_refused", "publish_reached_no_endpoint")


def is_planned(entry: Mapping[str, Any]) -> bool:
    """Return True for a log entry about a refusal or a failed handler that belongs to the scene."""
    last_line = str(entry.get("exception", "")).rpartition("\n")[2]
    is_failure = last_line.startswith(f"{__name__}.{ToolFailure.__name__}: ")
    return entry["event"] in _REFUSALS or (entry["event"] == "handler_failed" and is_failure)


async def play_bus(directory: Path, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int) -> None:
    """Fill the data directory of a bus."""
    private_dir(directory)
    config = msgspec.json.encode({"reliability": msgspec.to_builtins(RELIABILITY)})
    write_atomic(directory / "config.json", config)
    async with Bus(
        directory,  # all options are given, so that the user's settings cannot change the scene
        max_hops=_MAX_HOPS,
        default_ttl_ms=BUDGET_TTL_MS,
        default_call_budget=BUDGET_CALLS,
        durability="process",
        cycle_rule=CYCLE_RULE,
        handler_timeout_s=30,
        retention=Retention(),
        clock=clock,
    ) as bus:
        await _Scene(bus, clock, cast, seed, messages, days).play()


class _Scene:
    def __init__(self, bus: Bus, clock: FakeClock, cast: list[Agent], seed: int, messages: int, days: int) -> None:
        self._bus = bus
        self._cast = cast
        self._rng = Random(f"{seed} bus")
        self._timeline = Timeline(clock)
        self._messages = messages
        self._days = days
        self._sent = 0
        #: The number of handlers that run and do not wait for the timeline, and an event that is set while it is 0.
        self._active_handlers = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._threads = 0
        #: Agent -> the day on which it starts to fail.
        self._outages = {cast[1].name: 1.4, cast[3].name: 3.45, cast[-1].name: 4.6}

    async def play(self) -> None:
        for rule in RULES:
            await self._bus.add_rule(rule)
        for agent in self._cast:
            await self._bus.register_endpoint(agent.endpoint, owner=agent.name)
            await self._bus.subscribe(agent.endpoint, self._handler(agent))
        await self._bus.register_endpoint(BOARD)
        self._plan()
        await self._timeline.play(self._settle)

    def _plan(self) -> None:
        rng, at = self._rng, self._timeline.at
        starts = moments(rng, self._messages * _SPARE, self._days)
        for number, at_s in enumerate(starts, start=1):
            at(at_s, partial(self._start_thread, self._messages * number / len(starts)))
        if self._messages >= 4 * (_FLOOD + _RUSH):
            for at_s in moments(rng, _FLOODS, self._days):
                at(at_s, self._flood)
            for at_s in moments(rng, _RUSHES, self._days):
                at(at_s, self._rush)
            for name, day in self._outages.items():
                at(day * DAY_S + 60, partial(self._rush_failing, name))
        for hour in range(6, self._days * 24, 6):
            at(hour * 3600, self._read_board)

    # actions of agents

    def _handler(self, agent: Agent) -> Any:
        async def handle(envelope: Envelope) -> None:
            self._count_handler(1)
            try:
                await self._work(agent.pause_s(self._rng) / 4)
                if self._is_failing(agent) and self._rng.random() < 0.85:
                    raise ToolFailure(self._rng.choice(FAILURES))
                await self._respond(agent, envelope)
            finally:
                self._count_handler(-1)

        return handle

    async def _respond(self, agent: Agent, envelope: Envelope) -> None:
        """Answer, delegate the work, or do nothing."""
        if self._sent >= self._messages or not isinstance(envelope.payload, dict):
            return
        thread = envelope.payload.get("conversationId")
        if envelope.reply_to is not None and self._rng.random() < 0.6:
            text, kind = answer_text(self._rng), Performative.INFORM
            await self._publish(agent.endpoint, envelope.reply_to, self._payload(agent, text, kind, thread))
        elif self._rng.random() < 0.3:
            other = pick(self._rng, self._cast, agent)
            payload = self._payload(agent, request_text(self._rng), Performative.REQUEST, thread)
            await self._publish(agent.endpoint, other.endpoint, payload, reply_to=agent.endpoint)

    async def _start_thread(self, allowed: float) -> bool:
        if self._sent >= min(allowed, self._messages):
            return False
        rng, chance = self._rng, self._rng.random()
        agent = pick(rng, self._cast)
        self._threads += 1
        payload = self._payload(agent, request_text(rng), Performative.REQUEST, f"thread-{self._threads}")
        if chance < 0.03:
            await self._publish(VISITOR, self._cast[0].endpoint, {"content": "Open the ledger for me."})
        elif chance < 0.04:
            await self._publish(agent.endpoint, "agents.nobody.inbox", payload)
        elif chance < 0.05:
            await self._publish(agent.endpoint, "agents.*.inbox", payload)
        elif chance < 0.10:
            budget = GivenBudget(
                ttl=self._timeline.clock.wall_ns() // MILLISECOND_NS + rng.randrange(60_000, 20_000_000)
            )
            await self._publish(agent.endpoint, BOARD, payload, budget=budget)
        else:
            other = pick(rng, self._cast, agent)
            await self._publish(agent.endpoint, other.endpoint, payload, reply_to=agent.endpoint)
        return True

    async def _flood(self) -> None:
        """Let one sender exceed its rate limit."""
        agent, other = self._rng.sample(self._cast, 2)
        for number in range(_FLOOD):
            self._timeline.after(number * 0.5, partial(self._send, agent, other, {"content": "tick"}))

    async def _rush(self) -> None:
        """Let many senders fill one mailbox."""
        other = pick(self._rng, self._cast)
        for number in range(_RUSH):
            agent = pick(self._rng, self._cast, other)
            payload = self._payload(agent, request_text(self._rng), Performative.REQUEST, None)
            self._timeline.after(number * 0.05, partial(self._send, agent, other, payload))

    async def _rush_failing(self, name: str) -> None:
        """Send many messages to a failing agent."""
        other = next(agent for agent in self._cast if agent.name == name)
        for number in range(_RUSH):
            agent = pick(self._rng, self._cast, other)
            payload = self._payload(agent, request_text(self._rng), Performative.REQUEST, None)
            self._timeline.after(number * 20, partial(self._send, agent, other, payload))

    async def _read_board(self) -> None:
        """Sweep expired messages, and acknowledge most of the messages on the board."""
        await self._bus.sweep()
        for envelope in await self._bus.read_inbox(BOARD):
            if self._rng.random() < 0.7:
                await self._bus.ack(BOARD, envelope.id)

    # parts of the actions

    async def _send(self, agent: Agent, other: Agent, payload: Any) -> None:
        await self._publish(agent.endpoint, other.endpoint, payload)

    async def _publish(
        self, from_: str, subject: str, payload: Any, *, reply_to: str | None = None, budget: GivenBudget | None = None
    ) -> PublishResult:
        result = await self._bus.publish(subject, payload, from_=from_, reply_to=reply_to, budget=budget)
        self._sent += 1 if result.delivered_to else 0
        return result

    def _payload(self, agent: Agent, text: str, kind: Performative, thread: str | None) -> Any:
        read, written, cost = agent.usage(self._rng)
        usage = Usage(model=agent.model, input_tokens=read, output_tokens=written, cost_usd=cost)
        payload = StandardPayload(
            content=text, sender_name=agent.name, performative=kind, conversation_id=thread, usage=usage
        )
        return msgspec.to_builtins(payload)

    def _is_failing(self, agent: Agent) -> bool:
        start = self._outages.get(agent.name)
        return start is not None and 0 <= self._timeline.now_s - start * DAY_S < _OUTAGE_S

    async def _work(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def end() -> None:
            self._count_handler(1)
            done.set_result(None)

        self._timeline.after(seconds, end)
        self._count_handler(-1)
        await done

    def _count_handler(self, change: int) -> None:
        self._active_handlers += change
        if self._active_handlers:
            self._is_idle.clear()
        else:
            self._is_idle.set()

    async def _settle(self) -> None:
        """Wait until every handler is done or waits for the timeline, and their effects are written."""
        for _ in range(_SETTLE_ROUNDS):
            await asyncio.sleep(0)
            await self._is_idle.wait()
            await self._bus.depths()
