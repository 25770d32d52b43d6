"""Deliveries and the reader's answer to them: confirmed in signed batches, or rejected one by one.

Ids of one sender are confirmed together, at most 50 under one signature. A full batch leaves at once. A smaller one
leaves at the end of the event-loop iteration, unless another small batch is unanswered: then ids collect while the
relay syncs. A confirmation is signed once, and the same bytes are sent again after a reconnect or a transient refusal,
so a lost answer costs nothing. While a message is being confirmed or rejected its id is known here, so a second copy
of it needs no second answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from posthouse.client.stream.frames import write_command
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.client.trust.signing import Signer, open_content, with_mesh
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import CONFIRMATION, Event
from posthouse.model.limits import CONFIRMATION_MAX_IDS
from posthouse.model.message import Message, read_message
from posthouse.model.message_api import Ignored
from posthouse.model.strict_json import parse_jcs
from posthouse.tracing import TRACEPARENT, Role, Span, Tracer, valid_traceparent


class Delivery:
    """One message for this node; it stays in its queue until it is confirmed or rejected."""

    def __init__(
        self,
        event: Event,
        seq: int,
        *,
        was_stored: bool,
        attempt: int,
        key: NodeKey,
        message: Message | None = None,
        is_from_history: bool = False,
    ) -> None:
        #: the signed event, as its sender made it
        self.event = event
        #: position in the relay's journal; ascends within one connection
        self.seq = seq
        #: True if it waited in the queue before it was first sent
        self.was_stored = was_stored
        #: how often it was sent, this time included
        self.attempt = attempt
        #: True if the queue had no room for it, so that it comes from the history of its topic
        self.is_from_history = is_from_history
        #: begun when it arrived; None: this client, or its sender, does not trace it
        self.span: Span | None = None
        #: set once this reader has confirmed or rejected it
        self.settled = asyncio.Event()
        self.mesh = event.mesh if message is None else message.mesh
        self._key = key
        if message is not None:
            self.message = message

    def __repr__(self) -> str:
        return f"<Delivery {self.id} from {self.sender}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        return self.event.id

    def settle(self, failure: str | None = None) -> None:
        """Note that this reader has confirmed it, or why it has not."""
        self.settled.set()
        if self.span is not None:
            self.span.end(failure)
            self.span = None

    def trace(self, tracer: Tracer) -> None:
        """Begin the span of the reader, which ends when it confirms or rejects the message."""
        if (parent := self.traceparent) is not None:
            attributes = {"posthouse.mesh": self.mesh, "messaging.message.id": self.id}
            self.span = tracer.start("receive", Role.RECEIVER, parent, attributes)

    @property
    def traceparent(self) -> str | None:
        """The span that sent it, as the parent of the reader's own spans; None if it is not traced."""
        return valid_traceparent(self.event.value(TRACEPARENT))

    @property
    def sender(self) -> str:
        """Node id of the author."""
        return self.event.pubkey

    @cached_property
    def message(self) -> Message:
        """The fields in its tags: destination, reply_to, priority, budget, mentions."""
        return read_message(self.event)

    @property
    def topic(self) -> str | None:
        """The topic it was posted to; None for a direct message."""
        return None if self.message.recipient is not None else self.message.destination_ref

    @property
    def from_agent(self) -> str:
        """The sender's agent; "" if the host itself sent it."""
        return self.message.from_agent

    @property
    def to_agent(self) -> str:
        """The agent of this host that a direct message is for; "" for the default inbox."""
        return self.message.to_agent

    @property
    def client_message_id(self) -> str:
        return self.message.client_message_id

    @cached_property
    def meta(self) -> Any:
        """The meta object, which is not sealed; None if the message has none."""
        return parse_jcs(self.message.meta) if self.message.meta else None

    @cached_property
    def body(self) -> str:
        """The body in the clear; raises an error if this node's key cannot open it: then `reject` the message."""
        return open_content(self._key, self.event)


class Confirmed(NamedTuple):
    """A reader has confirmed a message of this node."""

    #: of the message
    id: str
    #: node id of the reader
    reader: str
    was_stored: bool
    #: when the relay accepted the confirmation
    at_ns: int
    #: the confirmation, signed by the reader
    event: Event


@dataclass(frozen=True, slots=True)
class ConfirmAnswer:
    """The relay's answer to a confirmation."""

    #: ids that it closed, or that the same confirmation had closed before
    confirmed: tuple[str, ...]
    #: ids without effect -> reason: duplicate, expired, purged, blocked, unknown, foreign
    ignored: Mapping[str, str]


class Presence(NamedTuple):
    """A node opened its first mailbox in a mesh or closed its last, or its agents or its profile changed."""

    node: str
    is_online: bool
    #: names of its agents that are online
    agents: tuple[str, ...] = ()


_NO_EFFECT = "confirmation_without_effect"
#: refusals that mean that the message has left the queue, so there is nothing to reject
_ALREADY_CLOSED = frozenset({"delivery_closed", "delivery_unknown"})


class _IgnoredIds(msgspec.Struct):
    ignored: list[Ignored] | None = None


class _ConfirmCall:
    """One call of `confirm`: settled when all of its ids are."""

    __slots__ = ("_confirmed", "_ignored", "_remaining", "future")

    def __init__(self, remaining: int, future: asyncio.Future[ConfirmAnswer]) -> None:
        self.future = future
        self._remaining = remaining
        self._confirmed: list[str] = []
        self._ignored: dict[str, str] = {}

    def settle(self, ids: Sequence[str], ignored: Mapping[str, str]) -> None:
        self._confirmed += [id_ for id_ in ids if id_ not in ignored]
        self._ignored |= {id_: ignored[id_] for id_ in ids if id_ in ignored}
        self._remaining -= len(ids)
        if not self._remaining and not self.future.done():
            self.future.set_result(ConfirmAnswer(tuple(self._confirmed), self._ignored))


class _Batch(Pending):
    """One signed confirmation without an answer."""

    __slots__ = ("_on_answer", "ids", "is_small", "parts")

    def __init__(
        self, event: Event, parts: Mapping[_ConfirmCall, list[str]], on_answer: Callable[[_Batch, Answer], None]
    ) -> None:
        self.parts = parts
        self.ids = [message_id for part in parts.values() for message_id in part]
        self.is_small = len(self.ids) < CONFIRMATION_MAX_IDS
        self._on_answer = on_answer
        super().__init__(Kind.CONFIRM, event.id, write_command("CONFIRM", event))

    def on_answer(self, answer: Answer) -> None:
        self._on_answer(self, answer)


class _Rejection(Pending):
    """One rejection without an answer."""

    __slots__ = ("_rejecting", "future")

    def __init__(self, message_id: str, reason: str, rejecting: dict[str, _Rejection]) -> None:
        super().__init__(Kind.REJECT, message_id, write_command("REJECT", message_id, reason))
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._rejecting = rejecting

    def on_answer(self, answer: Answer) -> None:
        self._rejecting.pop(self.key, None)
        if self.future.done():
            return
        if isinstance(answer, PosthouseError) and answer.code not in _ALREADY_CLOSED:
            _fail(self.future, answer)
        else:
            self.future.set_result(not isinstance(answer, PosthouseError))


class Confirmations:
    """Confirms and rejects messages as one node; this works whether or not its mailbox is still open."""

    def __init__(self, commands: PendingCommands, signer: Signer) -> None:
        self._commands = commands
        self._signer = signer
        #: mesh and sender -> ids that collect for the next batch
        self._collecting: dict[tuple[str, str], list[tuple[_ConfirmCall, str]]] = {}
        #: ids that collect, or are confirmed and not answered
        self._confirming: set[str] = set()
        #: rejected and not answered, by message id
        self._rejecting: dict[str, _Rejection] = {}
        self._small_batches = 0
        self._is_flush_scheduled = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._confirming or message_id in self._rejecting

    def confirm(self, deliveries: Sequence[Delivery]) -> asyncio.Future[ConfirmAnswer]:
        """Confirm deliveries; the future has the relay's answer, and the caller need not await it."""
        new: dict[str, tuple[str, str]] = {}
        for each in deliveries:
            each.settle()
            if each.id not in self._confirming and not each.is_from_history:
                new[each.id] = (each.mesh, each.sender)
        loop = asyncio.get_running_loop()
        call = _ConfirmCall(len(new), loop.create_future())
        if not new:
            call.settle((), {})
            return call.future
        self._is_idle.clear()
        self._confirming.update(new)
        for message_id, origin in new.items():
            collected = self._collecting.setdefault(origin, [])
            collected.append((call, message_id))
            if len(collected) == CONFIRMATION_MAX_IDS:
                self._send_batch(origin)
        if self._collecting and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            loop.call_soon(self._flush)
        return call.future

    def reject(self, message_id: str, reason: str) -> asyncio.Future[bool]:
        """Reject a message; the future is False if it had left the queue, and the caller need not await it."""
        known = self._rejecting.get(message_id)
        if known is not None:
            return known.future
        rejection = self._rejecting[message_id] = _Rejection(message_id, reason, self._rejecting)
        self._commands.add(rejection)
        return rejection.future

    async def confirmed(self) -> None:
        """Wait until every confirmation is answered."""
        await self._is_idle.wait()

    async def settled(self) -> None:
        """Wait until the relay has answered every confirmation and rejection."""
        await self.confirmed()
        while self._rejecting:
            await asyncio.wait([each.future for each in self._rejecting.values()])

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._send_small_batches()

    def _send_small_batches(self) -> None:
        if not self._small_batches:
            for origin in list(self._collecting):
                self._send_batch(origin)

    def _send_batch(self, origin: tuple[str, str]) -> None:
        mesh, sender = origin
        parts: dict[_ConfirmCall, list[str]] = {}
        tags = [("p", sender)]
        for call, message_id in self._collecting.pop(origin):
            parts.setdefault(call, []).append(message_id)
            tags.append(("e", message_id))
        event = self._signer.sign(CONFIRMATION, "", with_mesh(tags, mesh))
        batch = _Batch(event, parts, self._on_answer)
        self._small_batches += batch.is_small
        self._commands.add(batch)

    def _on_answer(self, batch: _Batch, answer: Answer) -> None:
        ignored = self._ignored(answer)
        self._small_batches -= batch.is_small
        self._confirming.difference_update(batch.ids)
        if not self._confirming:
            self._is_idle.set()
        for call, ids in batch.parts.items():
            if isinstance(ignored, PosthouseError):
                _fail(call.future, ignored)
            else:
                call.settle(ids, ignored)
        self._send_small_batches()

    def _ignored(self, answer: Answer) -> dict[str, str] | PosthouseError:
        """Return the ids without effect and their reasons, or the refusal of the whole batch."""
        if isinstance(answer, PosthouseError):
            if answer.code != _NO_EFFECT:
                return answer
            answer = answer.fields
        elif not answer.get("ignored"):
            return {}
        try:
            ignored = msgspec.convert({"ignored": answer.get("ignored")}, _IgnoredIds).ignored or ()
        except msgspec.ValidationError as invalid:
            relay = self._commands.link.origin
            raise error("answer_invalid", relay=relay, reason=f"OK is malformed: {invalid}") from invalid
        return {each.id: each.reason for each in ignored}


def _fail(future: asyncio.Future[Any], refusal: PosthouseError) -> None:
    if not future.done():
        future.set_exception(refusal)
        future.exception()  # marks it as retrieved: the caller need not await it
