"""The console's connections to daemon and relay: one client and one stream each, however many pages are open.

Daemon and relay may be unreachable at any time: pages show the available parts and why the others are missing, and the
streams reconnect by themselves. Everything happens with the rights of the user's key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from posthouse.client import Client
from posthouse.client.daemon import AsyncDaemonClient
from posthouse.client.daemon.local_api import ThreadMessage
from posthouse.client.daemon.trace_steps import Step
from posthouse.client.failures import Backoff
from posthouse.client.metric_samples import MetricSamples
from posthouse.console.live_feed import LiveFeed, row_of_daemon_event, row_of_event
from posthouse.journal.cursor import Cursor
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.limits import SECOND_NS
from posthouse.model.outbox_rules import MessageState, shown_state
from posthouse.pipeline.audit.finding import LastAudit

log = structlog.get_logger(__name__)
T = TypeVar("T")
FindBusSteps = Callable[[str, str | None, str], list[Step]]
_FIRST_EVENTS = 200  # that a new console shows on its page Live
_REMEMBERED_S = 5.0  # how long names, the user's role and costly figures are cached
_STATES_ASKED = 25  # newest messages of a page whose states are read from the relay
_STATES_KEPT = 500
SAMPLE_S = 10.0  # between samples of metrics


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The answer of daemon or relay, or the error that came instead."""

    value: T | None
    failure: PosthouseError | None = None

    def or_else(self, default: T) -> T:
        """Return the value, or a default if there is none."""
        return default if self.value is None else self.value


async def attempt(asked: Awaitable[T]) -> Found[T]:
    """Wait for an answer; return an error as part of the result."""
    try:
        return Found(await asked)
    except PosthouseError as failure:
        return Found(None, failure)


class Upstream:
    """The daemon and the relay that one console watches, in one mesh."""

    def __init__(
        self,
        daemon: AsyncDaemonClient,
        relay: Client,
        clock: Clock,
        *,
        feed: LiveFeed | None = None,
        sample_s: float = SAMPLE_S,
    ) -> None:
        self.daemon = daemon
        self.relay = relay
        self.mesh = relay.mesh
        self.clock = clock
        self.feed = feed or LiveFeed()
        self.samples = MetricSamples()
        self.sample_s = sample_s
        #: returns the steps of a message on this host's bus, by event id, client_message_id and mesh
        self.find_bus_steps: FindBusSteps = lambda _event_id, _client_message_id, _mesh: []
        #: returns the result of the newest audit of this user's lake
        self.read_last_audit: Callable[[], LastAudit | None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []
        #: where the stream of the relay continues
        self._relay_cursor: str | None = None
        self._cached: dict[str, tuple[int, Any]] = {}
        #: message id -> when the relay was asked, and its answer
        self._states: dict[str, tuple[int, str]] = {}

    async def start(self) -> None:
        """Start following daemon and relay in the background."""
        for work in (self._follow_relay, self._follow_daemon, self._sample_metrics):
            self._tasks.append(asyncio.create_task(self._keep_running(work)))

    async def close(self) -> None:
        """End the streams and close the clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.relay.close()
        await self.daemon.close()

    @property
    def node(self) -> str:
        """The node of the user's key."""
        return self.relay.key.node

    async def role(self) -> str | None:
        """Return the role of the user's key in the mesh, None if it is not a member or the relay is unreachable."""
        meshes = await self.remember("meshes", self.relay.meshes.readable)
        return next((each["role"] for each in meshes or () if each["mesh"] == self.mesh), None)

    async def is_admin(self) -> bool:
        """Return True if the user administers the mesh."""
        return await self.role() == "admin"

    async def names(self) -> dict[str, str]:
        """Return the member names by node, from the daemon or else from the relay."""
        peers = await self.remember("peers", self.daemon.peers)
        if peers is not None:
            return {each["node"]: each["name"] for each in peers["peers"] if each.get("name")}
        members = await self.remember("members", lambda: self.relay.meshes.members(self.mesh))
        return {each.node: each.name for each in members or () if each.name}

    async def remember(self, name: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return the answer of `ask`, cached for a few seconds; None if it failed."""
        now_ns = self.clock.boot_ns()
        asked_ns, value = self._cached.get(name, (None, None))
        if asked_ns is None or now_ns - asked_ns > _REMEMBERED_S * SECOND_NS:
            value = (await attempt(ask())).value
            self._cached[name] = (now_ns, value)
        return value

    async def message_states(self, messages: Iterable[ThreadMessage]) -> dict[str, str]:
        """Return, by message id, the relay's state of own messages for which the daemon only knows `sent`.

        A recipient that refuses a message, or never reads it, sends no receipt to the sender's daemon.
        """
        own = (each for each in messages if each.is_own and not each.to.startswith("#"))
        sent = [(each.at, each.message_id) for each in own if each.state == MessageState.SENT]
        found: dict[str, str] = {}
        for _, message_id in sorted(sent, reverse=True)[:_STATES_ASKED]:
            state = await self._state_at_relay(message_id)
            if state is None:
                break
            found[message_id] = state
        return found

    async def _state_at_relay(self, message_id: str) -> str | None:
        """Return the state of a direct message, None if the relay is unreachable now."""
        now_ns = self.clock.boot_ns()
        asked_ns, state = self._states.get(message_id, (0, ""))
        if state and now_ns - asked_ns <= _REMEMBERED_S * SECOND_NS:
            return state
        try:
            deliveries = (await self.relay.message(message_id)).deliveries
        except Refused:  # the relay was restored, or no longer keeps the message
            deliveries = ()
        except PosthouseError:
            return None
        state = MessageState.SENT
        if len(deliveries) == 1:
            state = shown_state(state, deliveries[0].state, deliveries[0].receipt, is_answered=False)
        if len(self._states) >= _STATES_KEPT:
            del self._states[next(iter(self._states))]
        self._states[message_id] = (now_ns, state)
        return state

    async def _keep_running(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work again whenever it ends; the delay grows with each failure."""
        backoff = Backoff(first_s=0.2, max_s=5.0)
        while True:
            try:
                await work()
                backoff.reset()
            except PosthouseError as failure:
                log.debug("upstream_lost", code=failure.code)
            await asyncio.sleep(backoff.next_s())

    async def _follow_relay(self) -> None:
        await self.relay.connect(is_patient=True)
        epoch = str((await self.relay.info())["epoch"])
        limit = None if self._relay_cursor else _FIRST_EVENTS
        async with await self.relay.subscribe({"mesh": self.mesh}, cursor=self._relay_cursor, limit=limit) as events:
            async for received in events:
                # events from before the first cursor of the relay have none of their own
                self._relay_cursor = received.cursor or str(Cursor(epoch, received.seq or 0))
                self.feed.add(partial(row_of_event, event=received.event, cursor=self._relay_cursor))

    async def _follow_daemon(self) -> None:
        own_node = (await self.daemon.health()).node
        async for event in self.daemon.events_of_all_agents():
            self.feed.add(partial(row_of_daemon_event, event=event, own_node=own_node))

    async def _sample_metrics(self) -> None:
        at_s = self.clock.boot_ns() / SECOND_NS
        with suppress(PosthouseError):  # only admins may read them
            self.samples.relay.add(at_s, await self.relay.archive.metrics())
        with suppress(PosthouseError):
            self.samples.daemon.add(at_s, await self.daemon.metrics())
        await asyncio.sleep(self.sample_s)
