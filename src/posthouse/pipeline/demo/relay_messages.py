"""Messages at the demo's relay: agents go online and offline, start threads, answer, confirm, reject and repeat.

Readers receive deliveries as a connection would, but inside this process. A thread is planned for a time of the week,
starts only if fewer messages than the limit for that time were sent, and then continues by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from posthouse.client.messages.sender import TOPIC_MARK, Composer, MessageOptions
from posthouse.client.trust.signing import Signer
from posthouse.model.errors import PosthouseError
from posthouse.model.event import CONFIRMATION, Event, encode_event
from posthouse.model.limits import CONFIRM_TIMEOUT_S, DAY_S, RECEIVE_WINDOW
from posthouse.model.node import DEFAULT_MESH
from posthouse.model.ulid import UlidGenerator
from posthouse.pipeline.demo.cast import Agent, Timeline, answer_text, moments, pick, request_text
from posthouse.relay.engine import RelayEngine
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.sessions import CODE_CONFIRM_TIMEOUT, SessionEnd
from posthouse.relay.wire.accept_results import Accepted, Answer

_decode = msgspec.json.Decoder().decode
OnMessage = Callable[[Agent, dict[str, Any]], None]


class DemoReader:
    """An agent that is online in one mesh."""

    separator = b","

    def __init__(self, core: RelayEngine, agent: Agent, mesh: str, on_message: OnMessage) -> None:
        self.agent = agent
        self._core = core
        self._on_message = on_message
        self._session = ReaderSession(core.sessions, self, mesh, agent.node, RECEIVE_WINDOW)
        core.sessions.open(self._session)
        self._session.wake()

    def start_session(self, session: ReaderSession) -> None:
        self._task = asyncio.create_task(session.run())

    async def close(self, end: SessionEnd = SessionEnd.LOST) -> None:
        """Go offline."""
        self._core.sessions.close(self._session, end)
        await self._task

    def deliver(self, text: bytes, count: int) -> None:
        for command in _decode(b"[%b]" % text):
            if command[0] == "DELIVER":
                self._on_message(self.agent, command[2])

    def send_frame(self, frame: bytes) -> None:
        """Ignore presence frames."""

    def has_room(self, size: int, count: int) -> bool:
        return True

    async def drain(self) -> None:
        """Do nothing: deliveries are processed immediately."""

    @property
    def taken_bytes(self) -> int:
        return -1

    def ping(self, on_pong: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(on_pong)

    def end(self, code: int, reason: str) -> None:
        self._core.sessions.close(
            self._session, SessionEnd.TIMEOUT if code == CODE_CONFIRM_TIMEOUT else SessionEnd.LOST
        )


_HOUR_S = 3600


class Presence:
    """Let agents go online and offline."""

    def __init__(self, core: RelayEngine, timeline: Timeline, on_message: OnMessage, rng: Random) -> None:
        self._core = core
        self._timeline = timeline
        self._on_message = on_message
        self._rng = rng
        self._online: dict[str, DemoReader] = {}

    def plan(self, agent: Agent, days: int, *, is_long_offline: bool) -> None:
        """Plan when an agent is online; one that is offline for long is online only on the first and the last day."""
        for day in range(days):
            if is_long_offline and 0 < day < days - 1:
                continue
            start = day * DAY_S + self._rng.uniform(6.5, 9) * _HOUR_S
            noon = day * DAY_S + self._rng.uniform(11.8, 13.2) * _HOUR_S
            end = day * DAY_S + self._rng.uniform(17, 23) * _HOUR_S
            for online_s, offline_s in ((start, noon), (noon + self._rng.uniform(600, 4000), end)):
                self._timeline.at(online_s, lambda: self._go_online(agent))
                self._timeline.at(offline_s, lambda: self._go_offline(agent))

    async def stall(self, agent: Agent) -> None:
        """Close the session of an agent that makes no progress, and open a new one."""
        reader = self._online.pop(agent.name, None)
        if reader is not None:
            await reader.close(SessionEnd.TIMEOUT)
            await self._go_online(agent)

    async def close(self) -> None:
        """Let all agents go offline."""
        for reader in list(self._online.values()):
            await self._go_offline(reader.agent)

    async def _go_online(self, agent: Agent) -> None:
        if agent.name not in self._online:
            self._online[agent.name] = DemoReader(self._core, agent, DEFAULT_MESH, self._on_message)

    async def _go_offline(self, agent: Agent) -> None:
        reader = self._online.pop(agent.name, None)
        if reader is not None:
            await reader.close()


_TOPIC_SHARE = 0.25
_DEPTH_MAX = 7  # answers per thread
_REJECTED = 0.012
_REPEATED = 0.02
_POISON_EVERY = 150
_UNKNOWN_TOPIC = 0.01
_FLOOD = 90  # messages in one burst, above the rate limit
_SPARE = 2  # planned starts per message: most do nothing, because enough messages were sent by then


class MessageTraffic:
    """Let agents send, answer, confirm and reject messages at the relay."""

    def __init__(
        self, core: RelayEngine, timeline: Timeline, cast: list[Agent], rng: Random, messages: int, days: int
    ) -> None:
        self._core = core
        self._timeline = timeline
        self._cast = cast
        self._by_node = {agent.node: agent for agent in cast}
        self._rng = rng
        self._messages = messages
        self._days = days
        self._sent = 0
        #: Message id -> the number of answers that its thread may still have.
        self._depths: dict[str, int] = {}
        #: Messages that no reader ever confirms.
        self._poison: set[str] = set()
        self._next_poison = _POISON_EVERY // 2
        #: Called with a reader that has not confirmed a message within CONFIRM_TIMEOUT_S.
        self.on_stall: Callable[[Agent], Awaitable[None]] = _ignore
        minter = UlidGenerator(timeline.clock)
        self._signers = {agent.name: Signer(agent.key, timeline.clock) for agent in cast}
        self._composers = {name: Composer(signer, minter) for name, signer in self._signers.items()}

    def plan(self) -> None:
        """Plan the starts of threads, and one flood."""
        starts = moments(self._rng, self._messages * _SPARE, self._days)
        for number, at_s in enumerate(starts, start=1):
            allowed = self._messages * number / len(starts)
            self._timeline.at(at_s, partial(self._start_thread, allowed))
        if self._messages > 2 * _FLOOD:
            self._timeline.at(self._rng.choice(starts), self._flood)

    def signer(self, agent: Agent) -> Signer:
        """Return the signer of an agent."""
        return self._signers[agent.name]

    async def accept(self, event: Event) -> Answer:
        """Submit an event to the relay."""
        return await self._core.accept(encode_event(event))

    def on_message(self, reader: Agent, event: dict[str, Any]) -> None:
        """Plan the reaction of a reader to a delivered message."""
        rng, sender = self._rng, self._by_node[event["pubkey"]]
        if event["id"] in self._poison:
            self._timeline.after(CONFIRM_TIMEOUT_S + 1, lambda: self.on_stall(reader))
            return
        if rng.random() < _REJECTED:
            self._timeline.after(rng.uniform(0.1, 2), lambda: self._reject(reader, event["id"]))
            return
        self._timeline.after(rng.lognormvariate(-1, 1), lambda: self._confirm(reader, sender, event["id"]))
        depth = self._depths.get(event["id"], 0)
        is_direct = any(tag[0] == "p" for tag in event["tags"])
        if depth and rng.random() < (0.75 if is_direct else 0.2):
            self._timeline.after(reader.pause_s(rng), partial(self._answer, reader, sender, event["id"], depth - 1))

    async def _start_thread(self, allowed: float) -> bool:
        if self._sent >= min(allowed, self._messages):
            return False
        sender = pick(self._rng, self._cast)
        text, depth = request_text(self._rng), self._rng.randrange(1, _DEPTH_MAX + 1)
        if self._rng.random() < _TOPIC_SHARE:
            topic = "rumours" if self._rng.random() < _UNKNOWN_TOPIC else self._rng.choice(self._topics())
            await self._send(sender, f"#{topic}", text, depth)
        else:
            await self._send(sender, pick(self._rng, self._cast, sender).node, text, depth)
        return True

    async def _answer(self, agent: Agent, to: Agent, reply_to: str, depth: int) -> None:
        if self._sent < self._messages:
            await self._send(agent, to.node, answer_text(self._rng), depth, reply_to)

    async def _send(self, agent: Agent, destination: str, text: str, depth: int, reply_to: str | None = None) -> None:
        rng = self._rng
        read, written, cost = agent.usage(rng)
        usage = {"model": agent.model, "input_tokens": read, "output_tokens": written, "cost_usd": cost}
        options: MessageOptions = {"meta": {"usage": usage}, "reply_to": reply_to}
        if rng.random() < 0.08:
            options["mentions"] = [pick(rng, self._cast, agent).node]
        composer = self._composers[agent.name]
        event = composer.seal_and_sign(composer.request(destination, text, DEFAULT_MESH, options))
        answer = await self.accept(event)
        if isinstance(answer, Accepted):
            self._sent += 1
            self._depths[event.id] = depth
            if self._sent >= self._next_poison and not destination.startswith(TOPIC_MARK):
                self._poison.add(event.id)
                self._next_poison += _POISON_EVERY
            if rng.random() < _REPEATED:  # as if the answer was lost and the sender tried again
                await self.accept(event)

    async def _flood(self) -> None:
        sender = self._cast[-1]
        for _ in range(_FLOOD):
            await self._send(sender, f"#{self._topics()[0]}", request_text(self._rng), 0)

    async def _confirm(self, reader: Agent, sender: Agent, message_id: str) -> None:
        tags = [("p", sender.node), ("e", message_id)]
        await self.accept(self._signers[reader.name].sign(CONFIRMATION, "", tags))

    async def _reject(self, reader: Agent, message_id: str) -> None:
        try:
            await self._core.queues.reject(reader.node, message_id, self._rng.choice(("not my task", "unreadable")))
        except PosthouseError as refusal:
            if refusal.code != "delivery_closed":
                raise

    def _topics(self) -> list[str]:
        return self._core.participation.topics(self._cast[0].node, DEFAULT_MESH)


async def _ignore(_reader: Agent) -> None:
    """Do nothing."""
