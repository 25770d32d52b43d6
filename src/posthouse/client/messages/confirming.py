"""Confirming in batches: ids gather per sender, up to 50 go under one signature, and each is kept until answered.

A full batch leaves at once. A smaller one leaves at the end of the turn of the loop, unless another small one is
unanswered: then more may gather, as many as come while the relay syncs. A confirmation is signed once and sent
again byte for byte on the next connection, so a lost answer costs nothing. What is being confirmed here is known by
id: a copy of it that a relay sends meanwhile needs no second handling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from posthouse.client.messages.delivery import Delivery, Receipt
from posthouse.client.problems import error_from
from posthouse.client.stream.commands import write_event
from posthouse.model.errors import PosthouseError, Transient
from posthouse.model.event import Event
from posthouse.model.limits import CONFIRMATION_MAX_IDS

_RETRY_S = 0.2  # after a refusal that may pass
NO_EFFECT = "confirmation_without_effect"
#: mesh, sender and message ids -> the signed confirmation
Sign = Callable[[str, str, Sequence[str]], Event]


class _Call:
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

    def __init__(self, command: bytes, parts: list[tuple[_Call, list[str]]], ids: list[str]) -> None:
        self.command = command
        self.parts = parts
        self.ids = ids
        self.is_small = len(ids) < CONFIRMATION_MAX_IDS


class Confirming:
    """The confirmations of one node; they count whether or not its mailbox is still open."""

    def __init__(self, sign: Sign, send: Callable[[bytes], None], relay: str) -> None:
        self._sign = sign
        self._send = send
        self._relay = relay
        #: mesh and sender -> ids that wait for their batch
        self._gathering: dict[tuple[str, str], list[tuple[_Call, str]]] = {}
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
        call = _Call(len(fresh), asyncio.get_running_loop().create_future())
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
        parts: dict[_Call, list[str]] = {}
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
