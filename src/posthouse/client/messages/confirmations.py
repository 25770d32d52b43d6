"""Deliveries and the reader's answer to them: confirmed in signed batches, or rejected one by one.

Ids of one sender are confirmed together, at most 50 under one signature. A full batch leaves at once. A smaller one
leaves at the end of the event-loop iteration, unless another small batch is unanswered: then ids collect while the
relay syncs. A confirmation is signed once and sent again byte for byte on the next connection, so a lost answer
costs nothing; rejections are sent again too. A message that is being confirmed or rejected is known by id, so a
second copy needs no second handling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from posthouse.client.failures import error_from
from posthouse.client.stream.frames import write_command, write_event
from posthouse.client.trust.signing import open_content
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, Transient
from posthouse.model.event import Event
from posthouse.model.limits import CONFIRMATION_MAX_IDS
from posthouse.model.message import Message, read_message
from posthouse.model.strict_json import parse_jcs


class Delivery:
    """One message for this node; it stays in its queue until it is confirmed or rejected."""

    def __init__(self, event: Event, seq: int, *, was_stored: bool, attempt: int, key: NodeKey) -> None:
        #: the signed event, as its sender made it
        self.event = event
        #: place in the relay's journal; ascends within one connection
        self.seq = seq
        #: whether it waited in the queue before it was first sent
        self.was_stored = was_stored
        #: how often it was sent, this time included
        self.attempt = attempt
        self._key = key

    def __repr__(self) -> str:
        return f"<Delivery {self.id} from {self.sender}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        return self.event.id

    @property
    def sender(self) -> str:
        """Node id of the author."""
        return self.event.pubkey

    @cached_property
    def message(self) -> Message:
        """What the tags say: destination, reply_to, priority, budget, mentions."""
        return read_message(self.event)

    @property
    def mesh(self) -> str:
        return self.event.mesh

    @property
    def topic(self) -> str | None:
        """The topic it was posted to; None of a direct message."""
        return None if self.message.recipient is not None else self.message.destination_ref

    @property
    def client_message_id(self) -> str:
        return self.message.client_message_id

    @cached_property
    def meta(self) -> Any:
        """The meta object, None when there is none; it is in the clear."""
        return parse_jcs(self.message.meta) if self.message.meta else None

    @cached_property
    def body(self) -> str:
        """The body in the clear; raises why it cannot be opened, then `reject` it."""
        return open_content(self._key, self.event)


class Confirmed(NamedTuple):
    """A reader has confirmed a message of this node."""

    #: of the message
    id: str
    #: node id of who confirmed it
    reader: str
    was_stored: bool
    #: when the relay took the confirmation
    at_ns: int
    #: the confirmation, signed by the reader
    event: Event


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a relay did with confirmed ids."""

    #: ids that were closed by it, or by the same confirmation before
    confirmed: tuple[str, ...]
    #: ids without effect -> why: duplicate, expired, purged, blocked, unknown, foreign
    ignored: Mapping[str, str]


class Presence(NamedTuple):
    """A node opened its first mailbox in a mesh, or closed its last."""

    node: str
    is_online: bool


_RETRY_S = 0.2  # after a refusal that may pass
NO_EFFECT = "confirmation_without_effect"
#: mesh, sender and message ids -> the signed confirmation
Sign = Callable[[str, str, Sequence[str]], Event]


class _ConfirmCall:
    """One call of confirm: settled once all of its ids are."""

    __slots__ = ("confirmed", "future", "ignored", "left")

    def __init__(self, left: int, future: asyncio.Future[Receipt]) -> None:
        self.left = left
        self.future = future
        self.confirmed: list[str] = []
        self.ignored: dict[str, str] = {}

    def settle(self, ids: Sequence[str], ignored: dict[str, str]) -> None:
        self.confirmed += [id_ for id_ in ids if id_ not in ignored]
        self.ignored |= {id_: ignored[id_] for id_ in ids if id_ in ignored}
        self.left -= len(ids)
        if not self.left and not self.future.done():
            self.future.set_result(Receipt(tuple(self.confirmed), self.ignored))

    def fail(self, failure: PosthouseError) -> None:
        if not self.future.done():
            self.future.set_exception(failure)
            self.future.exception()  # seen: not everybody waits for it


class _Batch:
    __slots__ = ("command", "ids", "is_small", "parts")

    def __init__(self, command: bytes, parts: list[tuple[_ConfirmCall, list[str]]], ids: list[str]) -> None:
        self.command = command
        self.parts = parts
        self.ids = ids
        self.is_small = len(ids) < CONFIRMATION_MAX_IDS


class Confirmations:
    """The confirmations of one node; they count whether or not its mailbox is still open."""

    def __init__(self, sign: Sign, send: Callable[[bytes], None], relay: str) -> None:
        self._sign = sign
        self._send = send
        self._relay = relay
        #: mesh and sender -> ids that wait for their batch
        self._gathering: dict[tuple[str, str], list[tuple[_ConfirmCall, str]]] = {}
        #: confirmation id -> batch, in the order signed
        self._unanswered: dict[str, _Batch] = {}
        self._small = 0
        #: ids that are being confirmed
        self._ids: set[str] = set()
        self._is_turn_planned = False
        self._timers: set[asyncio.TimerHandle] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._ids

    def confirm(self, deliveries: Sequence[Delivery]) -> asyncio.Future[Receipt]:
        """Confirm deliveries; the future tells what the relay did, and need not be waited for."""
        fresh = {each.id: (each.mesh, each.sender) for each in deliveries if each.id not in self._ids}
        call = _ConfirmCall(len(fresh), asyncio.get_running_loop().create_future())
        if not fresh:
            call.settle((), {})
            return call.future
        self._idle.clear()
        self._ids.update(fresh)
        for message_id, origin in fresh.items():
            waiting = self._gathering.setdefault(origin, [])
            waiting.append((call, message_id))
            if len(waiting) == CONFIRMATION_MAX_IDS:
                self._sign_batch(origin)
        self._plan_turn()
        return call.future

    def expects(self, confirmation_id: object) -> bool:
        """Tell whether an answer under this id is waited for."""
        return confirmation_id in self._unanswered

    def take_ok(self, confirmation_id: str, is_accepted: bool, body: Any) -> None:
        """Handle the answer to a confirmation, if it is one of these."""
        batch = self._unanswered.get(confirmation_id)
        if batch is None:
            return
        failure = None if is_accepted else error_from(body, self._relay)
        if isinstance(failure, Transient):
            self._later(confirmation_id)
            return
        self._drop(confirmation_id, batch)
        if failure is not None and failure.code != NO_EFFECT:
            for call, _ids in batch.parts:
                call.fail(failure)
        else:
            ignored = {each["id"]: each["reason"] for each in body.get("ignored") or ()}
            for call, ids in batch.parts:
                call.settle(ids, ignored)
        self._end_turn()

    def resume(self) -> None:
        """Send everything unanswered again."""
        for batch in self._unanswered.values():
            self._send(batch.command)

    def fail(self, failure: PosthouseError) -> None:
        """End every call that is open."""
        calls = [call for waiting in self._gathering.values() for call, _id in waiting]
        calls += [call for batch in self._unanswered.values() for call, _ids in batch.parts]
        for timer in self._timers:
            timer.cancel()
        self._gathering.clear()
        self._unanswered.clear()
        self._ids.clear()
        self._small = 0
        self._idle.set()
        for call in calls:
            call.fail(failure)

    async def settled(self) -> None:
        """Wait until everything is answered."""
        await self._idle.wait()

    def _plan_turn(self) -> None:
        if self._gathering and not self._is_turn_planned:
            self._is_turn_planned = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._is_turn_planned = False
        self._end_turn()

    def _end_turn(self) -> None:
        """Let small batches go, unless one is on its way already."""
        if not self._small:
            for origin in list(self._gathering):
                self._sign_batch(origin)

    def _sign_batch(self, origin: tuple[str, str]) -> None:
        parts: dict[_ConfirmCall, list[str]] = {}
        for call, message_id in self._gathering.pop(origin):
            parts.setdefault(call, []).append(message_id)
        ids = [message_id for part in parts.values() for message_id in part]
        event = self._sign(*origin, ids)
        batch = _Batch(write_event("CONFIRM", event), list(parts.items()), ids)
        self._unanswered[event.id] = batch
        self._small += batch.is_small
        self._send(batch.command)

    def _drop(self, confirmation_id: str, batch: _Batch) -> None:
        del self._unanswered[confirmation_id]
        self._small -= batch.is_small
        self._ids.difference_update(batch.ids)
        if not self._ids:
            self._idle.set()

    def _later(self, confirmation_id: str) -> None:
        def send() -> None:
            self._timers.discard(timer)
            if (batch := self._unanswered.get(confirmation_id)) is not None:
                self._send(batch.command)

        timer = asyncio.get_running_loop().call_later(_RETRY_S, send)
        self._timers.add(timer)


#: answers of a relay for which the message needs no rejecting any more: it has left the queue
_ALREADY_CLOSED = frozenset({"delivery_closed", "delivery_unknown"})


class Rejections:
    """The rejections of one node that are not answered."""

    def __init__(self, send: Callable[[bytes], None], relay: str) -> None:
        self._send = send
        self._relay = relay
        #: message id -> command and what waits for its answer
        self._unanswered: dict[str, tuple[bytes, asyncio.Future[bool]]] = {}

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._unanswered

    def reject(self, message_id: str, reason: str) -> asyncio.Future[bool]:
        """Reject a message; the future tells whether it was parked, and need not be waited for."""
        known = self._unanswered.get(message_id)
        if known is not None:
            return known[1]
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        command = write_command("REJECT", message_id, reason)
        self._unanswered[message_id] = (command, future)
        self._send(command)
        return future

    def take_ok(self, message_id: str, is_accepted: bool, body: Any) -> None:
        """Handle the answer to a rejection, if it is one of these."""
        known = self._unanswered.get(message_id)
        if known is None:
            return
        failure = None if is_accepted else error_from(body, self._relay)
        if isinstance(failure, Transient):
            asyncio.get_running_loop().call_later(_RETRY_S, self._again, message_id)
            return
        del self._unanswered[message_id]
        future = known[1]
        if future.done():
            return
        if failure is None or failure.code in _ALREADY_CLOSED:
            future.set_result(failure is None)
        else:
            _fail(future, failure)

    def resume(self) -> None:
        """Send everything unanswered again."""
        for command, _future in self._unanswered.values():
            self._send(command)

    def fail(self, failure: PosthouseError) -> None:
        """End everything that is open."""
        for _command, future in self._unanswered.values():
            _fail(future, failure)
        self._unanswered.clear()

    async def settled(self) -> None:
        """Wait until everything is answered."""
        while self._unanswered:
            await asyncio.wait([future for _command, future in self._unanswered.values()])

    def _again(self, message_id: str) -> None:
        if (known := self._unanswered.get(message_id)) is not None:
            self._send(known[0])


def _fail(future: asyncio.Future[bool], failure: PosthouseError) -> None:
    if not future.done():
        future.set_exception(failure)
        future.exception()  # seen: not everybody waits for it
