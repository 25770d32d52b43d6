"""The bridge between the mesh and the host's bus, in both directions.

    mesh.<mesh>.in.>     messages of the default inbox and of topics, published in order, if an endpoint matches
    agents.<agent>       direct messages to an agent, if its program has registered this endpoint
    mesh.<mesh>.out.>    the daemon's endpoint; envelopes published there go to the outbox

A member is `mesh.<mesh>.member.<64 hex>`, its agent has one more token; `mesh.<mesh>.out.dm.<64 hex>.<agent>` sends to
an agent. An envelope from `agents.<agent>` is sent as that agent.

A request on the bus that goes out is a request in the mesh with the same deadline, and its answers are published to the
private reply subject of its caller. The reply subject of a request from the mesh is `mesh.<mesh>.out.answer.<id>`, with
a last token (partial, failed, busy) if a reply is not final.

The incoming and outgoing subjects never match each other, so nothing echoes. A return stays a return on both sides, and
names the message that it answers by its id on that side. The client_message_id of an outgoing message is derived from
the envelope's id, so handling an envelope twice sends it once. A message that the outbox refuses becomes a dead letter
of the bus. A message that the bus refuses for a while (full mailbox, open breaker) is retried from the inbox, and no
message for the same subject overtakes it. Only `usage` of a payload becomes meta, because meta is not encrypted.
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
from posthouse.bus.results import PublishResult, Reason, refusal_text
from posthouse.bus.running import find_message
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.failure_notices import FROM_BUS
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.request_desk import RequestDesk
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import Sending, SendRequest, sender_address
from posthouse.model.address import DEFAULT_INBOX, Address, validate_agent_name
from posthouse.model.budget import check_mesh_budget, decode_mesh_budget, effective_mesh_budget, to_mesh_budget
from posthouse.model.clock import Clock, format_utc
from posthouse.model.envelope import ChannelType, Envelope, StandardPayload, Usage
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import is_event_id
from posthouse.model.limits import DAY_S, MILLISECOND_NS
from posthouse.model.node import node_from_hex, node_hex
from posthouse.model.request import AnswerState, RequestMode, read_answer_state
from posthouse.model.subjects import REPLIES, matches, mesh_answer_subject
from posthouse.model.ulid import validate_ulid
from posthouse.model.usage import with_usage


class BridgeSubjects:
    """The subjects of one mesh."""

    def __init__(self, mesh: str, node: str) -> None:
        self._node = node
        self._mesh = mesh
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
        if item.request is not None:
            return mesh_answer_subject(self._mesh, item.message_id)
        if item.topic is not None:
            return f"{self._out}.topic.{item.topic}"
        return _with_agent(f"{self._out}.dm.{node_hex(item.sender)}", item.from_agent)

    def answered_request(self, subject: str) -> tuple[str, AnswerState] | None:
        """Return the request that a reply on an outgoing subject answers, and the kind of answer."""
        kind, _, rest = subject.removeprefix(f"{self._out}.").partition(".")
        message_id, _, state = rest.partition(".")
        if kind != "answer" or not is_event_id(message_id):
            return None
        return message_id, AnswerState(state) if state in tuple(AnswerState) else AnswerState.FINAL

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
    is_request = envelope.reply_to is not None and envelope.reply_to.startswith(REPLIES)
    return SendRequest(
        to=destination,
        message=_text(payload, "content"),
        meta=_usage(payload.get("usage") if isinstance(payload, dict) else None),
        reply_to_id=_mesh_id(payload, "replyToId") or _mesh_id(answered, "messageId"),
        client_message_id=f"{FROM_BUS}{envelope.id}",
        request=RequestMode.NOW if is_request else None,
        valid_until=format_utc(envelope.budget.ttl * MILLISECOND_NS) if is_request else None,
    )


def outgoing_answer(envelope: Envelope, destination: str, request_id: str, state: AnswerState) -> SendRequest:
    """Return the send request of a reply to a request from the mesh."""
    payload = envelope.payload
    is_reason = state not in (AnswerState.PARTIAL, AnswerState.FINAL)
    return SendRequest(
        to=destination,
        message=_text(payload, "reason" if is_reason else "content"),
        meta=_usage(payload.get("usage") if isinstance(payload, dict) else None),
        reply_to_id=request_id,
        client_message_id=f"{FROM_BUS}{envelope.id}",
        answer=state,
    )


def _text(payload: Any, name: str) -> str:
    """Return the text of a payload: that of a member, or the whole payload as JSON."""
    text = payload.get(name) if isinstance(payload, dict) else None
    return text if isinstance(text, str) else msgspec.json.encode(payload).decode()


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
PUBLISHED, UNMATCHED, REFUSED = "published", "unmatched", "refused"
_PAGE = 100
_ARRIVAL_RETRY_S = 1.0
#: rejections that a later attempt can avoid
_TEMPORARY = frozenset({Reason.BACKPRESSURE, Reason.CIRCUIT_OPEN, Reason.RATE_LIMITED})


class ArrivalPublisher:
    """Publishes messages of the inbox on the bus."""

    def __init__(
        self, bus: Bus, subjects: BridgeSubjects, inbox: Inbox, outbox: Outbox, desk: RequestDesk, clock: Clock
    ) -> None:
        self._bus = bus
        self._desk = desk
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
                state = await self._publish_answer(item)
                subject = self._subjects.arrival(item)
                if state is None and subject not in blocked:
                    state = await self._publish(item, subject, endpoints)
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
            await self._desk.decline_unattended(item)
            return UNMATCHED
        now_ns = self._clock.wall_ns()
        if item.is_stale(now_ns):  # a handler would mistake it for a new one; it stays in the inbox
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
        if item.valid_until_ns is not None and item.request is not None:  # the bus gives no handler a late request
            budget = msgspec.structs.replace(budget, ttl=min(budget.ttl, item.valid_until_ns // MILLISECOND_NS))
        result = await publish_bridged(
            self._bus.session.publisher,
            subject,
            arrival_payload(item),
            from_=self._subjects.member(item.sender, item.from_agent),
            budget=budget,
            reply_to=self._subjects.answer(item),
            in_reply_to=await self._answered_id(item) if is_return else None,
        )
        if item.request is not None and not result.delivered_to:  # its sender waits: it is not tried again
            await self._desk.decline(item, AnswerState.BUSY, refusal_text(result))
            return REFUSED
        return _bridge_state(result)

    async def _publish_answer(self, item: InboxItem) -> str | None:
        """Publish an answer to the caller of the request on this bus that it names; None if it names none."""
        if item.reply_to_id is None or item.topic is not None:
            return None
        asked = await self._answered_id(item)
        try:
            request = (await find_message(self._bus.session.core, asked, self._subjects.owner))[0]
        except PosthouseError:  # not a message of this bus
            return None
        if request.reply_to is None or not request.reply_to.startswith(REPLIES):
            return None
        state = read_answer_state(msgspec.json.decode(item.meta) if item.meta else None)
        is_reason = state not in (AnswerState.PARTIAL, AnswerState.FINAL)
        result = await publish_bridged(
            self._bus.session.publisher,
            request.reply_to if state is AnswerState.FINAL else f"{request.reply_to}.{state}",
            {"reason": item.body or ""} if is_reason else arrival_payload(item),
            from_=self._subjects.member(item.sender, item.from_agent),
            budget=effective_mesh_budget(self._clock.wall_ns() // MILLISECOND_NS, is_return=True),
            reply_to=self._subjects.answer(item),
            in_reply_to=asked,
        )
        if not result.delivered_to:  # the caller is gone: the answer is mail
            return None
        await self._inbox.mark_seen([item.id], item.to_agent)
        return PUBLISHED

    async def _answered_id(self, item: InboxItem) -> str:
        """Return the message that a return answers: its id on this bus if it came from there, else its mesh id."""
        mesh_id = item.reply_to_id or item.message_id  # a sender on another host may name none; it is still a return
        try:
            name = (await self._outbox.find(mesh_id)).client_message_id
            return validate_ulid(name.removeprefix(FROM_BUS)) if name.startswith(FROM_BUS) else mesh_id
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
        desk: RequestDesk,
        agents: AgentRegistry,
        clock: Clock,
    ) -> None:
        self._bus = Bus(bus_dir, handler_timeout_s=_HANDLER_TIMEOUT_S, clock=clock)
        self._subjects = BridgeSubjects(mesh, node)
        self._inbox = inbox
        self._sending = sending
        self._agents = agents
        self._arrivals = ArrivalPublisher(self._bus, self._subjects, inbox, outbox, desk, clock)
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
        request, agent = await self._outgoing(envelope)
        budget = to_mesh_budget(envelope.budget, is_return=envelope.in_reply_to is not None)
        while True:
            try:
                status, body = await self._sending.send(request, budget=budget, agent=agent)
                break
            except Transient as failure:
                if failure.code == "no_responder":
                    await self._report_absence(envelope, str(failure.fields["reason"]))
                    return
                # such as a full disk
                log.warning("bridge_departure_waits", id=envelope.id, code=failure.code)
                await asyncio.sleep(_OUTGOING_RETRY_S)
        if status >= 400:
            conflict = body.get("conflict")
            raise error("idempotency_key_reused", client_message_id=request.client_message_id, conflict=conflict)

    async def _outgoing(self, envelope: Envelope) -> tuple[SendRequest, str]:
        """Return the send request for an envelope, and the agent that sends it."""
        answered = self._subjects.answered_request(envelope.subject)
        if answered is None:
            destination = self._subjects.destination(envelope.subject)
            request = outgoing_request(envelope, destination, await self._answered_payload(envelope))
            return request, self._acting_agent(envelope.from_)
        message_id, state = answered
        asked = await self._inbox.requests.find(message_id)
        if asked is None:
            raise error("inbox_item_unknown", id=message_id)
        destination = sender_address(asked.sender, asked.from_agent)
        return outgoing_answer(envelope, destination, message_id, state), asked.to_agent

    async def _report_absence(self, envelope: Envelope, reason: str) -> None:
        """Answer the caller of a request on this bus that no responder is connected."""
        subject = f"{envelope.reply_to}.{AnswerState.NO_RESPONDER}"
        await self._bus.publish(subject, {"reason": reason}, from_=envelope.subject, in_reply_to=envelope.id)

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
