"""The bridge between the mesh and the host's bus, in both directions.

    mesh.<mesh>.in.>     messages of the default inbox and of topics, published in order, if an endpoint matches
    agents.<agent>       direct messages to an agent, if its program has registered this endpoint
    mesh.<mesh>.out.>    the daemon's endpoint; envelopes published there go to the outbox

A member is `mesh.<mesh>.member.<64 hex>`, its agent has one more token; `mesh.<mesh>.out.dm.<64 hex>.<agent>` sends to
an agent. An envelope from `agents.<agent>` is sent as that agent.

The two never match each other, so nothing echoes. A return stays a return on both sides, and names the message that it
answers by its id on that side. The client_message_id of an outgoing message is made from the
envelope's id, so handling an envelope twice sends it once; what the outbox refuses becomes a dead letter of the bus.
A message that the bus refuses for a while (full mailbox, open breaker) is retried from the inbox, and no message for
the same subject overtakes it. Only `usage` of a payload becomes meta, because meta is not encrypted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from posthouse.bus.bus import Bus
from posthouse.bus.publishing import publish_bridged
from posthouse.bus.results import PublishResult, Reason
from posthouse.bus.running import find_message
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.inbox.inbox import Inbox, InboxItem
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import Sending, SendRequest
from posthouse.model.address import DEFAULT_INBOX, Address, validate_agent_name
from posthouse.model.budget import check_mesh_budget, decode_mesh_budget, effective_mesh_budget, to_mesh_budget
from posthouse.model.clock import Clock
from posthouse.model.envelope import ChannelType, Envelope, StandardPayload, Usage
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import is_event_id
from posthouse.model.limits import DAY_S, MILLISECOND_NS
from posthouse.model.node import node_from_hex, node_hex
from posthouse.model.subjects import matches
from posthouse.model.ulid import validate_ulid
from posthouse.model.usage import with_usage


class BridgeSubjects:
    """The subjects of one mesh."""

    def __init__(self, mesh: str, node: str) -> None:
        self._node = node
        self._in = f"mesh.{mesh}.in"
        self._out = f"mesh.{mesh}.out"
        self._member = f"mesh.{mesh}.member"
        #: the endpoint of the daemon
        self.outgoing = f"{self._out}.>"
        #: the owner of that endpoint
        self.owner = f"daemon.{mesh}"

    def is_own_post(self, item: InboxItem) -> bool:
        """Return True for a topic post of this host, which its agents get and the bus would echo to its author."""
        return item.topic is not None and item.sender == self._node

    def arrival(self, item: InboxItem) -> str:
        """Return the subject under which a message of the inbox is published."""
        if item.topic is not None:
            return f"{self._in}.topic.{item.topic}"
        return f"{_AGENTS}{item.to_agent}" if item.to_agent else f"{self._in}.dm.{node_hex(item.sender)}"

    def answer(self, item: InboxItem) -> str:
        """Return the subject to which replies to a message are published."""
        if item.topic is not None:
            return f"{self._out}.topic.{item.topic}"
        return _with_agent(f"{self._out}.dm.{node_hex(item.sender)}", item.from_agent)

    def member(self, node: str, agent: str = DEFAULT_INBOX) -> str:
        """Return the sender subject of a member, or of its agent."""
        return _with_agent(f"{self._member}.{node_hex(node)}", agent)

    def destination(self, subject: str) -> str:
        """Return the address or #topic of an outgoing subject."""
        kind, _, rest = subject.removeprefix(f"{self._out}.").partition(".")
        if kind == "topic" and rest:
            return TOPIC_MARK + rest
        if kind == "dm":
            digits, _, agent = rest.partition(".")
            node = node_from_hex(digits)
            return str(Address(validate_agent_name(agent), node)) if agent else node
        raise error(
            "subject_invalid", subject=subject, reason="it is neither out.topic.<topic> nor out.dm.<64 hex>[.<agent>]"
        )


_AGENTS = "agents."  # begins the endpoint of an agent


def _with_agent(subject: str, agent: str) -> str:
    return f"{subject}.{agent}" if agent else subject


def arrival_payload(item: InboxItem) -> StandardPayload:
    """Return the bus payload of an inbox message."""
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
            "fromAgent": item.from_agent,
            "toAgent": item.to_agent,
            "replyToId": item.reply_to_id,
            "priority": item.priority,
            "meta": msgspec.json.decode(item.meta) if item.meta else None,
        },
    )


def outgoing_request(envelope: Envelope, destination: str, answered: Any = None) -> SendRequest:
    """Return the send request of an envelope; its client_message_id makes a second handling harmless.

    `answered` is the payload of the message that a return answers, if it is known.
    """
    payload = envelope.payload
    fields: dict[str, Any] = payload if isinstance(payload, dict) else {}
    content = fields.get("content")
    return SendRequest(
        to=destination,
        message=content if isinstance(content, str) else msgspec.json.encode(payload).decode(),
        meta=_usage(fields.get("usage")),
        reply_to_id=_mesh_id(payload, "replyToId") or _mesh_id(answered, "messageId"),
        client_message_id=f"{_FROM_BUS}{envelope.id}",
    )


def _usage(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        usage = msgspec.convert(value, Usage)
    except msgspec.ValidationError:
        return None
    return with_usage(None, usage)


def _mesh_id(payload: Any, name: str) -> str | None:
    """Return the id of a mesh message in the platform data of a payload."""
    data = payload.get("platformData") if isinstance(payload, dict) else None
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, str) and is_event_id(value) else None


log = structlog.get_logger(__name__)
_FROM_BUS = "bus-"  # begins the client_message_id of a message that came from the bus
PUBLISHED, UNMATCHED, REFUSED = "published", "unmatched", "refused"
_PAGE = 100
_ARRIVAL_RETRY_S = 1.0
#: rejections that a later attempt can avoid
_TEMPORARY = frozenset({Reason.BACKPRESSURE, Reason.CIRCUIT_OPEN, Reason.RATE_LIMITED})


class ArrivalPublisher:
    """Publishes messages of the inbox on the bus."""

    def __init__(self, bus: Bus, subjects: BridgeSubjects, inbox: Inbox, outbox: Outbox, clock: Clock) -> None:
        self._bus = bus
        self._subjects = subjects
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._wakeup = asyncio.Event()

    def wake(self, _items: Sequence[InboxItem] = ()) -> None:
        """Check the inbox for messages to publish."""
        self._wakeup.set()

    async def run(self) -> None:
        """Publish messages as they arrive, until cancelled."""
        while True:
            self._wakeup.clear()
            try:
                is_done = await self._publish_all()
            except (PosthouseError, OSError) as failure:  # such as a full disk under the bus
                log.warning("bridge_failed", code=getattr(failure, "code", "internal"), reason=str(failure))
                is_done = False
            if is_done:
                await self._wakeup.wait()
            else:
                await asyncio.sleep(_ARRIVAL_RETRY_S)

    async def _publish_all(self) -> bool:
        """Try each waiting message once; return True if none is left."""
        after, blocked = 0, set[str]()
        while items := await self._inbox.unbridged(after, _PAGE):
            endpoints = [endpoint.subject for endpoint in await self._bus.list_endpoints()]
            outcomes: list[tuple[str, int]] = []
            for item in items:
                subject = self._subjects.arrival(item)
                state = None if subject in blocked else await self._publish(item, subject, endpoints)
                if state is None:
                    blocked.add(subject)
                else:
                    outcomes.append((state, item.position))
            if outcomes:
                await self._inbox.set_bridge_states(outcomes)
            after = items[-1].position
        return not blocked

    async def _publish(self, item: InboxItem, subject: str, endpoints: Sequence[str]) -> str | None:
        """Publish one message; return its state, or None if it must be tried again."""
        if self._subjects.is_own_post(item) or not any(matches(subject, pattern) for pattern in endpoints):
            return UNMATCHED
        now_ns = self._clock.wall_ns()
        if item.is_stale(now_ns):  # a handler would take it for a new one; it stays in the inbox
            log.info("bridge_stale", message_id=item.message_id)
            return REFUSED
        now_ms = now_ns // MILLISECOND_NS
        given = None if item.budget is None else decode_mesh_budget(item.budget)
        is_return = given is not None and given.is_return
        budget = effective_mesh_budget(now_ms, given=given, is_return=is_return)
        reason = check_mesh_budget(budget, now_ms)
        if reason is not None:
            log.info("bridge_budget_exceeded", message_id=item.message_id, reason=reason)
            return REFUSED
        result = await publish_bridged(
            self._bus.session.publisher,
            subject,
            arrival_payload(item),
            from_=self._subjects.member(item.sender, item.from_agent),
            budget=budget,
            reply_to=self._subjects.answer(item),
            in_reply_to=await self._answered_id(item) if is_return else None,
        )
        return _bridge_state(result)

    async def _answered_id(self, item: InboxItem) -> str:
        """Return the message that a return answers: its id on this bus if it came from there, else its mesh id."""
        mesh_id = item.reply_to_id or item.message_id  # a foreign sender may name none; it is a return all the same
        try:
            name = (await self._outbox.find(mesh_id)).client_message_id
            return validate_ulid(name.removeprefix(_FROM_BUS)) if name.startswith(_FROM_BUS) else mesh_id
        except PosthouseError:
            return mesh_id


def _bridge_state(result: PublishResult) -> str | None:
    if result.delivered_to:
        return PUBLISHED
    if any(rejection.reason in _TEMPORARY for rejection in result.rejected):
        return None
    return REFUSED if result.rejected else UNMATCHED


_OUTGOING_RETRY_S = 1.0
#: whatever limit the user sets for handlers of agents: on a full disk messages wait here and do not become dead letters
_HANDLER_TIMEOUT_S = 7.0 * DAY_S


class Bridge:
    """Carries messages from the inbox to the bus and from the bus to the outbox."""

    def __init__(
        self,
        bus_dir: Path,
        mesh: str,
        node: str,
        inbox: Inbox,
        outbox: Outbox,
        sending: Sending,
        agents: AgentRegistry,
        clock: Clock,
    ) -> None:
        self._bus = Bus(bus_dir, handler_timeout_s=_HANDLER_TIMEOUT_S, clock=clock)
        self._subjects = BridgeSubjects(mesh, node)
        self._inbox = inbox
        self._sending = sending
        self._agents = agents
        self._arrivals = ArrivalPublisher(self._bus, self._subjects, inbox, outbox, clock)
        self._task: asyncio.Task[None] | None = None
        #: callback(task) when the task that publishes arrivals ends
        self.on_task_end: Callable[[asyncio.Task[None]], None] = lambda _task: None

    async def start(self) -> None:
        """Open the bus and begin with the messages that wait on either side."""
        await self._bus.open()
        try:
            await self._bus.register_endpoint(self._subjects.outgoing, owner=self._subjects.owner)
            await self._bus.subscribe(self._subjects.outgoing, self._handle_outgoing)
        except BaseException:
            await self._bus.close()
            raise
        self._inbox.on_new.append(self._arrivals.wake)
        self._task = asyncio.create_task(self._arrivals.run())
        self._task.add_done_callback(self.on_task_end)

    async def close(self) -> None:
        """Stop; waiting messages are carried after the next start."""
        if self._task is not None:
            self._inbox.on_new.remove(self._arrivals.wake)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._bus.close()

    async def _handle_outgoing(self, envelope: Envelope) -> None:
        answered = await self._answered_payload(envelope)
        request = outgoing_request(envelope, self._subjects.destination(envelope.subject), answered)
        budget = to_mesh_budget(envelope.budget, is_return=envelope.in_reply_to is not None)
        agent = self._acting_agent(envelope.from_)
        while True:
            try:
                status, body = await self._sending.send(request, budget=budget, agent=agent)
                break
            except Transient as failure:  # such as a full disk
                log.warning("bridge_departure_waits", id=envelope.id, code=failure.code)
                await asyncio.sleep(_OUTGOING_RETRY_S)
        if status >= 400:
            conflict = body.get("conflict")
            raise error("idempotency_key_reused", client_message_id=request.client_message_id, conflict=conflict)

    def _acting_agent(self, sender: str) -> str:
        """Return the agent of this host that published an envelope; any other program acts for the host."""
        name = sender.removeprefix(_AGENTS) if sender.startswith(_AGENTS) else DEFAULT_INBOX
        if name not in self._agents.agents:
            return DEFAULT_INBOX
        return self._agents.require_active(name).name

    async def _answered_payload(self, envelope: Envelope) -> Any:
        if envelope.in_reply_to is None:
            return None
        try:
            return (await find_message(self._bus.session.core, envelope.in_reply_to, envelope.from_))[0].payload
        except PosthouseError:  # the journal no longer has it: the return goes out without naming it
            return None
