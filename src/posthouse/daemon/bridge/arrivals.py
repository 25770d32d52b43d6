"""The way in: messages of the inbox, published on the bus in order, each until it is there or refused for good.

A message is published only when an endpoint matches; else it stays in the inbox alone. What the bus refuses for now
(a full mailbox, an open breaker) is tried again from the inbox, and nothing for the same subject overtakes it. A
budget that is used up stops the publish; the message stays readable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from posthouse.bus.bridged import publish_bridged
from posthouse.bus.bus import Bus
from posthouse.bus.results import PublishResult, Reason
from posthouse.daemon.bridge.payloads import arrival_payload
from posthouse.daemon.bridge.subjects import BridgeSubjects
from posthouse.daemon.inbox import Inbox, InboxItem
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.mesh_budget import check_mesh_budget, decode_mesh_budget, effective_mesh_budget
from posthouse.model.subjects import matches

log = structlog.get_logger(__name__)
PUBLISHED, UNMATCHED, REFUSED = "published", "unmatched", "refused"
_PAGE = 100
_AGAIN_S = 1.0
_FOR_NOW = frozenset({Reason.BACKPRESSURE, Reason.CIRCUIT_OPEN, Reason.RATE_LIMITED})


class Arrivals:
    """Publishes what the inbox has for the bus."""

    def __init__(self, bus: Bus, subjects: BridgeSubjects, inbox: Inbox, clock: Clock) -> None:
        self._bus = bus
        self._subjects = subjects
        self._inbox = inbox
        self._clock = clock
        self._news = asyncio.Event()

    def wake(self, _fresh: Sequence[InboxItem] = ()) -> None:
        """Look into the inbox."""
        self._news.set()

    async def run(self) -> None:
        """Publish what there is, then wait for more."""
        while True:
            self._news.clear()
            try:
                is_all = await self._publish_all()
            except PosthouseError as failure:
                log.warning("bridge_failed", code=failure.code, reason=str(failure))
                is_all = False
            if is_all:
                await self._news.wait()
            else:
                await asyncio.sleep(_AGAIN_S)

    async def _publish_all(self) -> bool:
        """Go once through what waits; return whether nothing is left."""
        after, blocked = 0, set[str]()
        while items := await self._inbox.to_bridge(after, _PAGE):
            endpoints = [endpoint.subject for endpoint in await self._bus.list_endpoints()]
            outcomes: list[tuple[str, int]] = []
            for item in items:
                subject = self._subjects.arrival(item.topic, item.sender)
                state = None if subject in blocked else await self._publish(item, subject, endpoints)
                if state is None:
                    blocked.add(subject)
                else:
                    outcomes.append((state, item.position))
            if outcomes:
                await self._inbox.mark_bridged(outcomes)
            after = items[-1].position
        return not blocked

    async def _publish(self, item: InboxItem, subject: str, endpoints: Sequence[str]) -> str | None:
        """Publish one message; return its state, or None when it has to be tried again."""
        if not any(matches(subject, pattern) for pattern in endpoints):
            return UNMATCHED
        now_ms = self._clock.wall_ns() // MILLISECOND_NS
        budget = effective_mesh_budget(now_ms, None if item.budget is None else decode_mesh_budget(item.budget))
        reason = check_mesh_budget(budget, now_ms)
        if reason is not None:
            log.info("bridge_budget_exceeded", message_id=item.message_id, reason=reason)
            return REFUSED
        result = await publish_bridged(
            self._bus,
            subject,
            arrival_payload(item),
            from_=self._subjects.member(item.sender),
            budget=budget,
            reply_to=self._subjects.answer(item.topic, item.sender),
        )
        return _state(result)


def _state(result: PublishResult) -> str | None:
    if result.delivered_to:
        return PUBLISHED
    if any(rejection.reason in _FOR_NOW for rejection in result.rejected):
        return None
    return REFUSED if result.rejected else UNMATCHED
