"""Accept a message from a local program: validate, resolve, fingerprint, seal and sign, insert into the outbox.

Everything that can be wrong with a request is found before anything is written, so the id of a refused request stays
free. The event is sealed and signed once; every attempt sends the same bytes, unless the clock was ahead when it was
signed (see Uplink). Every answer and refusal carries the client_message_id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from posthouse.client.messages.sender import Composer, MessageOptions, Request
from posthouse.daemon import request_fields
from posthouse.daemon.inbox.inbox import Inbox, sender_ref
from posthouse.daemon.inbox.read_state import traceparent_of
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.outbox_rows import NewRow, OutboxRow
from posthouse.daemon.outbox.transitions import MAX_AGE
from posthouse.model.address import DEFAULT_INBOX, Address, Recipient
from posthouse.model.budget import (
    MeshBudget,
    charge_mesh_budget,
    check_mesh_budget,
    effective_mesh_budget,
    find_answered,
    first_mesh_budget,
)
from posthouse.model.clock import Clock, format_utc, parse_utc
from posthouse.model.errors import PosthouseError, Refused, error
from posthouse.model.event import Event, decode_event, encode_event
from posthouse.model.freshness import FAILURE, SUPERSEDES, VALID_UNTIL, WITHDRAWS, with_freshness
from posthouse.model.limits import BODY_MAX_BYTES, MILLISECOND_NS
from posthouse.model.message import Message, read_message, validate_client_message_id
from posthouse.model.message_api import MessageStates
from posthouse.model.outbox_rules import AcceptAction, OutboxStatus
from posthouse.model.request import ANSWER, REQUEST, AnswerState, RequestMode
from posthouse.model.strict_json import parse_jcs
from posthouse.model.ulid import UlidGenerator
from posthouse.model.usage import USAGE
from posthouse.tracing import Role, Tracer, valid_traceparent

#: resolves an address, name, prefix, node id or #topic to a node id or #topic, and the agent there
Resolve = Callable[[str], Awaitable[Recipient]]


#: the program through which a person acts, for the journal
Via = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]{0,31}$")]


class MessageFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of a message that a local program sets, whatever the destination."""

    message: request_fields.MessageText
    priority: request_fields.PriorityName | None = None
    meta: dict[str, Any] | None = None
    reply_to_id: request_fields.MessageId | None = None
    mentions: list[request_fields.Peer] | None = None
    client_message_id: request_fields.ClientMessageId | None = None
    mesh: request_fields.MeshName | None = None
    #: an earlier message to the same recipient that this one replaces while it is unread
    supersedes: request_fields.RowKey | None = None
    #: a time after which a recipient that has not read the message sees its text only if it confirms
    valid_until: request_fields.Moment | None = None
    #: the message only reports a failure: it wakes no agent
    failure: bool = False
    #: program through which a person sends it, for the journal
    via: Via | None = None
    #: the sender waits for an answer until valid_until: now, or queue if no responder need be connected
    request: RequestMode | None = None
    #: the kind of answer to the request that reply_to_id names
    answer: AnswerState | None = None


class SendRequest(MessageFields, kw_only=True):
    """The body of POST /v1/send."""

    to: request_fields.Destination


class SendResult(NamedTuple):
    """The status and body of the answer to a send."""

    status: int
    body: dict[str, Any]


class Sending:
    """Accepts messages into the outbox."""

    def __init__(
        self,
        mesh: str,
        composer: Composer,
        outbox: Outbox,
        inbox: Inbox,
        resolve: Resolve,
        open_event: Callable[[Event], str],
        capacity_bytes: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._mesh = mesh
        self._composer = composer
        self._outbox = outbox
        self._inbox = inbox
        self._resolve = resolve
        self._open_event = open_event
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._minter = UlidGenerator(clock)
        #: returns a message from the relay by its id; raises if the relay is not reachable now
        self.find_at_relay: Callable[[str], Awaitable[MessageStates | None]] = _find_nothing
        #: like `resolve`, but also returns an agent that no longer accepts mail
        self.resolve_past: Resolve = resolve
        #: raises if a message of an agent cannot be sent to a recipient over the current connection
        self.check_route: Callable[[str, Recipient], None] = lambda _agent, _to: None
        #: returns why no agent can answer a request to a recipient now, None if one may
        self.absence_of: Callable[[Recipient], str | None] = lambda _to: None
        #: None: messages are not traced
        self.tracer: Tracer | None = None
        #: True until restored stores were compared with the relay: an id may have been used since the backup
        self.is_held = False
        #: largest body that the relay accepts, in bytes
        self.max_payload = BODY_MAX_BYTES

    async def send(
        self,
        request: SendRequest,
        header_id: str | None = None,
        budget: MeshBudget | None = None,
        agent: str = DEFAULT_INBOX,
        traceparent: str | None = None,
    ) -> SendResult:
        """Accept a message of an agent; `header_id` is the Idempotency-Key, `budget` is inherited from the bus.

        `traceparent` is the span that the agent sends it in; an answer without one continues the trace of its request.
        """
        parent = valid_traceparent(traceparent)
        if self.tracer is None:
            return await self._accept(request, header_id, budget, agent, parent)
        if parent is None and request.reply_to_id is not None:
            answered = request.reply_to_id
            parent = await self._inbox.store.pool.run(lambda db: traceparent_of(db, answered))
        span = self.tracer.start("send", Role.SENDER, parent, {"posthouse.mesh": self._mesh, "posthouse.agent": agent})
        try:
            result = await self._accept(request, header_id, budget, agent, span.traceparent)
        except PosthouseError as failure:
            span.end(failure)
            raise
        span.end()
        return result

    async def _accept(
        self,
        request: SendRequest,
        header_id: str | None,
        budget: MeshBudget | None,
        agent: str,
        traceparent: str | None,
    ) -> SendResult:
        self._check_reconciled()
        client_message_id = header_id if header_id is not None else request.client_message_id
        if client_message_id is None:
            client_message_id = self._minter.mint()
        try:
            complete = await self._build_request(request, client_message_id, budget, agent)
            row = self._sign(complete._replace(traceparent=traceparent))
            outcome = await self._outbox.accept(row, self._capacity_bytes(), request.via)
            if request.supersedes is not None and outcome.action is AcceptAction.INSERT:
                await self._drop_unsent(await self._outbox.find(request.supersedes, agent))
        except PosthouseError as failure:
            raise _with_client_message_id(failure, client_message_id) from failure
        body = {"client_message_id": client_message_id} | outcome.body
        if outcome.action is AcceptAction.REFUSE:
            body["hint"] = "Use a new client_message_id for a new message; repeat a request unchanged to retry it."
        return SendResult(outcome.status, body)

    async def usage_of(self, client_message_id: str, agent: str) -> dict[str, Any] | None:
        """Return the usage that an agent's earlier request reported; None if it did not, or its event is gone."""
        raw = await self._outbox.event_of(await self._outbox.find(client_message_id, agent))
        meta = read_message(decode_event(raw)).meta if raw is not None else ""
        found = parse_jcs(meta).get(USAGE) if meta else None
        return found if isinstance(found, dict) else None

    async def requeue(
        self, key: str, new_id: str | None, message: str | None, agent: str = DEFAULT_INBOX, via: str | None = None
    ) -> dict[str, Any]:
        """Replace a dead or pending row by a new one with a new id and the same or another message.

        The relay may have a row that was sent but not answered: then the row is done, and nothing is sent again.
        """
        self._check_reconciled()
        row = await self._outbox.find(key, agent)
        if row.status in (OutboxStatus.DEAD, OutboxStatus.PENDING) and _may_be_at_relay(row):
            found = await self.find_at_relay(row.event_id)
            if found is not None:
                await self._outbox.note_accepted(row, found.id, found.seq)
                raise error("outbox_row_accepted", id=row.id, message_id=found.id)
        request = await self._request_of_row(row, new_id, message)
        try:
            successor = self._sign(request)._replace(from_agent=row.from_agent)
            await self._outbox.requeue(row, successor, self._capacity_bytes(), via)
        except PosthouseError as failure:
            raise _with_client_message_id(failure, request.client_message_id) from failure
        return {
            "aborted_row_id": row.id,
            "new_row_id": successor.id,
            "new_client_message_id": successor.client_message_id,
        }

    async def _build_request(
        self, given: SendRequest, client_message_id: str, budget: MeshBudget | None, agent: str
    ) -> Request:
        validate_client_message_id(client_message_id)
        destination, to_agent = await self._recipient(given.to, client_message_id, agent)
        self.check_route(agent, Recipient(destination, to_agent))
        if given.request is RequestMode.NOW and not await self._outbox.has(client_message_id, agent):
            reason = self.absence_of(Recipient(destination, to_agent))
            if reason is not None:
                raise error("no_responder", subject=given.to, reason=reason)
        options: MessageOptions = {
            "client_message_id": client_message_id,
            "reply_to": given.reply_to_id,
            "priority": given.priority,
            "meta": await self._meta(given, Recipient(destination, to_agent), agent, client_message_id),
            "from_agent": agent,
            "to_agent": to_agent,
        }
        if given.mentions:
            options["mentions"] = [await self._resolve_mention(name) for name in given.mentions]
        request = self._composer.request(destination, given.message, self._mesh, options)
        self._check_payload(request)
        if given.reply_to_id is not None or budget is not None:
            request = request._replace(budget=await self._message_budget(request, given.reply_to_id, budget))
        return request

    async def _recipient(self, to: str, client_message_id: str, agent: str) -> Recipient:
        """Return the recipient of a message; for a repeated request even if the recipient no longer exists."""
        try:
            return await self._resolve(to)
        except Refused:
            if not await self._outbox.has(client_message_id, agent):
                raise
            return await self.resolve_past(to)

    async def _meta(
        self, given: SendRequest, to: Recipient, agent: str, client_message_id: str
    ) -> dict[str, Any] | None:
        """Return the meta of a message, with the members that say how long it is valid."""
        said: dict[str, Any] = {FAILURE: given.failure, REQUEST: _value(given.request), ANSWER: _value(given.answer)}
        if given.request is not None and given.valid_until is None:
            raise error("request_malformed", reason="it has no valid_until, its deadline")
        if given.answer is not None and given.reply_to_id is None:
            raise error("value_invalid", name="answer", reason="it needs reply_to_id, the request that it answers")
        if given.supersedes is not None:
            row = await self._outbox.find(given.supersedes, agent)
            if (row.from_agent, row.destination, row.to_agent) != (agent, *to):
                raise error("value_invalid", name="supersedes", reason="it is not a message of yours to this recipient")
            if (signed_as := await self._signed_as(row)) != agent:  # readers let only the same name replace a message
                reason = f"it was sent under the name {signed_as}: withdraw it and send a new message"
                raise error("value_invalid", name="supersedes", reason=reason)
            said[SUPERSEDES] = row.message_id
        if given.valid_until is not None:
            until_ns = parse_utc(given.valid_until)
            if until_ns <= self._clock.wall_ns() and not await self._outbox.has(client_message_id, agent):
                raise error("value_invalid", name="valid_until", reason="it has already passed")
            said[VALID_UNTIL] = format_utc(until_ns)
        return with_freshness(given.meta, said)

    async def withdraw(self, row: OutboxRow, agent: str) -> dict[str, Any]:
        """Take a message back: drop it if it was not sent, else send a withdrawal, which hides it from readers who have
        not read it.

        A second call sends nothing new.
        """
        self._check_reconciled()
        if row.from_agent != agent:
            raise error("outbox_row_unknown", id=row.id)
        if not row.destination or row.status in (OutboxStatus.DEAD, OutboxStatus.ABORTED):
            raise error("outbox_row_state", id=row.id, status=row.status, allowed="rows that were or will be sent")
        if await self._drop_unsent(row):
            return {"message_id": row.message_id, "state": "dropped"}
        options: MessageOptions = {
            "client_message_id": f"withdraw-{row.message_id}",
            "meta": {WITHDRAWS: row.message_id},
            "from_agent": await self._signed_as(row),
            "to_agent": row.to_agent,
        }
        text = f"I withdraw my message {row.message_id}."
        request = self._composer.request(row.destination, text, self._mesh, options)
        notice = self._sign(request)._replace(from_agent=agent)
        outcome = await self._outbox.accept(notice, self._capacity_bytes())
        if outcome.action is AcceptAction.REFUSE:  # the notice of an earlier call is dead or was dropped
            fields = {name: value for name, value in outcome.body.items() if name != "error"}
            raise error("idempotency_key_reused", client_message_id=request.client_message_id, **fields)
        return {"message_id": row.message_id, "state": "withdrawing"}

    async def _signed_as(self, row: OutboxRow) -> str:
        """Return the name under which an agent signed a row; after a rename it differs from the row's."""
        raw = await self._outbox.event_of(row)
        return row.from_agent if raw is None else read_message(decode_event(raw)).from_agent

    def _check_reconciled(self) -> None:
        if self.is_held:
            raise error("daemon_reconciling", mesh=self._mesh)

    async def _drop_unsent(self, row: OutboxRow) -> bool:
        """Abort a row that no relay can have; return False if it may have left this host."""
        if row.status != OutboxStatus.PENDING or row.attempts:
            return False
        try:
            await self._outbox.drop(row)
        except PosthouseError as failure:
            if failure.code != "outbox_row_state":  # it was claimed for sending meanwhile
                raise
            return False
        return True

    def _check_payload(self, request: Request) -> None:
        size = len(request.body.encode())
        if size > self.max_payload:
            raise error("body_too_large", bytes=size, limit=self.max_payload)

    async def _resolve_mention(self, name: str) -> str:
        node = (await self._resolve(name)).destination
        if node.startswith("#"):
            raise error("value_invalid", name="mentions", reason="a topic cannot be mentioned")
        return node

    async def _message_budget(
        self, request: Request, reply_to: str | None, given: MeshBudget | None
    ) -> MeshBudget | None:
        """Return a message's budget: a reply inherits the rest of the original's, less one hop if it is not a return.

        A budget from the bus was charged there, where it was also decided if the message is a return; it is checked
        where the message arrives.
        """
        found = None if reply_to is None else await self._inbox.find_cause(reply_to)
        if found is None and given is None:
            return None
        now_ms = self._clock.wall_ns() // MILLISECOND_NS
        if found is None:
            return effective_mesh_budget(now_ms, given=given, is_return=given is not None and given.is_return)
        cause, original = found
        destination = f"#{request.topic}" if request.node is None else sender_ref(request.node, request.to_agent)
        is_return = find_answered(destination, [cause]) is not None if given is None else given.is_return
        inherited = effective_mesh_budget(now_ms, original or first_mesh_budget(now_ms), is_return=is_return)
        reason = check_mesh_budget(inherited, now_ms)
        if reason is not None:
            raise error("budget_exceeded", reason=reason)
        return effective_mesh_budget(now_ms, charge_mesh_budget(inherited), given, is_return=is_return)

    async def _request_of_row(self, row: OutboxRow, new_id: str | None, message: str | None) -> Request:
        raw = await self._outbox.event_of(row)
        if raw is None:
            raise error("outbox_row_state", id=row.id, status=row.status, allowed="dead or pending rows")
        event = decode_event(raw)
        message_before = read_message(event)
        body = self._open_event(event) if message is None else message
        options = _options(message_before, self._minter.mint() if new_id is None else new_id)
        request = self._composer.request(row.destination, body, self._mesh, options)
        self._check_payload(request)
        return request

    def _sign(self, request: Request) -> NewRow:
        event = self._composer.seal_and_sign(request)
        destination = request.node if request.node is not None else f"#{request.topic}"
        return NewRow(
            self._minter.mint(),
            request.client_message_id,
            request.fingerprint,
            event.id,
            encode_event(event),
            destination,
            request.from_agent,
            request.to_agent,
            request.reply_to,
        )


def sender_address(node: str, agent: str) -> str:
    """Return the address of an agent, or of its host, as `to` of a send takes it."""
    return str(Address(agent, node)) if agent else node


def _value(member: RequestMode | AnswerState | None) -> str | None:
    return None if member is None else member.value


async def _find_nothing(_message_id: str) -> MessageStates | None:
    return None


def _may_be_at_relay(row: OutboxRow) -> bool:
    """Return True unless the row was never sent, or a refusal of the relay made it dead."""
    is_refused = row.status == OutboxStatus.DEAD and not (row.last_error or "").startswith(f"{MAX_AGE}:")
    return row.attempts > 0 and not is_refused


def _options(message: Message, client_message_id: str) -> MessageOptions:
    return {
        "client_message_id": client_message_id,
        "reply_to": message.reply_to,
        "priority": message.priority,
        "meta": parse_jcs(message.meta) if message.meta else None,
        "budget": message.budget,
        "mentions": message.mentions,
        "from_agent": message.from_agent,
        "to_agent": message.to_agent,
    }


def _with_client_message_id(failure: PosthouseError, client_message_id: str) -> PosthouseError:
    fields = failure.fields | {"client_message_id": client_message_id}
    return type(failure)(failure.spec, fields, failure.hint)
