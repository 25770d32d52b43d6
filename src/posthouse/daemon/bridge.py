"""The bridge between the mesh and the host's bus, in both directions.

    mesh.<mesh>.in.>     inbox messages, published in order; only if an endpoint matches
    mesh.<mesh>.out.>    the daemon's endpoint; what is published there goes to the outbox

The two never match each other, so nothing echoes. An outgoing message gets a client_message_id made of the
envelope's id, so handling it twice sends it once; what the outbox refuses becomes a dead letter of the bus. What the
bus refuses for now (full mailbox, open breaker) is retried from the inbox, and nothing for the same subject
overtakes it. Of a payload only usage becomes meta, because meta is not encrypted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from posthouse.bus.bus import Bus, publish_bridged
from posthouse.bus.results import PublishResult, Reason
from posthouse.daemon.inbox.inbox import Inbox, InboxItem
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import Sending, SendRequest
from posthouse.model.budget import check_mesh_budget, decode_mesh_budget, effective_mesh_budget, to_mesh_budget
from posthouse.model.clock import Clock
from posthouse.model.envelope import ChannelType, Envelope, StandardPayload, Usage
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import is_event_id
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.node import node_from_hex, node_hex
from posthouse.model.subjects import matches


class BridgeSubjects:
    """The subjects of one mesh."""

    def __init__(self, mesh: str) -> None:
        self._in = f"mesh.{mesh}.in"
        self._out = f"mesh.{mesh}.out"
        self._member = f"mesh.{mesh}.member"
        #: the endpoint of the daemon
        self.outgoing = f"{self._out}.>"
        #: who owns it
        self.owner = f"daemon.{mesh}"

    def arrival(self, topic: str | None, sender: str) -> str:
        """Return where a message is published."""
        return f"{self._in}.dm.{node_hex(sender)}" if topic is None else f"{self._in}.topic.{topic}"

    def answer(self, topic: str | None, sender: str) -> str:
        """Return where an answer to a message is published."""
        return f"{self._out}.dm.{node_hex(sender)}" if topic is None else f"{self._out}.topic.{topic}"

    def member(self, node: str) -> str:
        """Return as whom a message is published."""
        return f"{self._member}.{node_hex(node)}"

    def destination(self, subject: str) -> str:
        """Return the node id or #topic an outgoing subject stands for."""
        kind, _, rest = subject.removeprefix(f"{self._out}.").partition(".")
        if kind == "topic" and rest:
            return TOPIC_MARK + rest
        if kind == "dm":
            return node_from_hex(rest)
        raise error("subject_invalid", subject=subject, reason="it is neither out.topic.<topic> nor out.dm.<64 hex>")


def arrival_payload(item: InboxItem) -> StandardPayload:
    """Return what is published of a message that came."""
    return StandardPayload(
        content=item.body or "",
        sender_name=item.sender_name,
        channel_name=item.topic,
        channel_type=ChannelType.DM if item.topic is None else ChannelType.CHANNEL,
        platform_data={
            "mesh": item.mesh,
            "inboxId": item.id,
            "messageId": item.message_id,
            "clientMessageId": item.client_message_id,
            "sender": item.sender,
            "replyToId": item.reply_to_id,
            "priority": item.priority,
            "meta": msgspec.json.decode(item.meta) if item.meta else None,
        },
    )


def departure_request(envelope: Envelope, destination: str) -> SendRequest:
    """Return the message an envelope becomes; its id makes a second handling harmless."""
    payload = envelope.payload
    fields: dict[str, Any] = payload if isinstance(payload, dict) else {}
    content = fields.get("content")
    return SendRequest(
        to=destination,
        message=content if isinstance(content, str) else msgspec.json.encode(payload).decode(),
        meta=_usage(fields.get("usage")),
        reply_to_id=_reply_to(fields.get("platformData")),
        client_message_id=f"bus-{envelope.id}",
    )


def _usage(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        usage = msgspec.convert(value, Usage)
    except msgspec.ValidationError:
        return None
    return {"usage": {name: getattr(usage, name) for name in usage.__struct_fields__}}


def _reply_to(data: Any) -> str | None:
    given = data.get("replyToId") if isinstance(data, dict) else None
    return given if isinstance(given, str) and is_event_id(given) else None


log = structlog.get_logger(__name__)
PUBLISHED, UNMATCHED, REFUSED = "published", "unmatched", "refused"
_PAGE = 100
_ARRIVAL_RETRY_S = 1.0
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
                await asyncio.sleep(_ARRIVAL_RETRY_S)

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


_DEPARTURE_TRIES = 10
_DEPARTURE_RETRY_S = 1.0  # within the time of a handler


class Bridge:
    """Carries mail between inbox, bus and outbox."""

    def __init__(self, bus_dir: Path, mesh: str, inbox: Inbox, sending: Sending, clock: Clock) -> None:
        self._bus = Bus(bus_dir, clock=clock)
        self._subjects = BridgeSubjects(mesh)
        self._inbox = inbox
        self._sending = sending
        self._arrivals = Arrivals(self._bus, self._subjects, inbox, clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the bus and begin with what waits on either side."""
        await self._bus.open()
        try:
            await self._bus.register_endpoint(self._subjects.outgoing, owner=self._subjects.owner)
            await self._bus.subscribe(self._subjects.outgoing, self._depart)
        except BaseException:
            await self._bus.close()
            raise
        self._inbox.on_new.append(self._arrivals.wake)
        self._task = asyncio.create_task(self._arrivals.run())

    async def close(self) -> None:
        """Stop carrying; what waits is carried after the next start."""
        if self._task is not None:
            self._inbox.on_new.remove(self._arrivals.wake)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._bus.close()

    async def _depart(self, envelope: Envelope) -> None:
        request = departure_request(envelope, self._subjects.destination(envelope.subject))
        budget = to_mesh_budget(envelope.budget)
        for _ in range(_DEPARTURE_TRIES):
            try:
                status, body = await self._sending.send(request, budget=budget)
                break
            except Transient as failure:
                log.warning("bridge_departure_waits", id=envelope.id, code=failure.code)
                await asyncio.sleep(_DEPARTURE_RETRY_S)
        else:
            raise error("store_busy", items=0, bytes=0)
        if status >= 400:
            conflict = body.get("conflict")
            raise error("idempotency_key_reused", client_message_id=request.client_message_id, conflict=conflict)
