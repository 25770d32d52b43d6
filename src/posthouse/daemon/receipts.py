"""Receipts of one mesh: report to senders what agents here have read, and store the outcomes of own messages.

A receipt waits in the inbox's store until the relay has it, so neither a restart nor a lost connection loses one. The
client sends up to 50 receipts, or those of 5 seconds, under one signature. Between agents of one host the receipt goes
straight into the outbox row. An agent whose receipts are off sends none. The relay forgets a receipt once this host's
kernel has it. So after each start the daemon queries the relay about the newest messages without an outcome: if it was
killed in between, it would never learn theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog

from posthouse.client import Confirmed, Receipt
from posthouse.client.messages.receipts import RECEIPTS_FEATURE
from posthouse.daemon.agents.registry import AgentRegistry
from posthouse.daemon.failure_notices import Failed
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.read_state import Handed, mark_sent, waiting_receipts
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.outbox_rows import Outcome
from posthouse.daemon.uplink import Uplink
from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.message_api import DeliveryState
from posthouse.model.receipt import ReceiptState

log = structlog.get_logger(__name__)
_PAGE = 200
_AGAIN_S = 10.0  # receipts that could not be sent are tried again
_ASKED_AFTER_START = 500
_REJECTED = ReceiptState.REJECTED.value


class ReceiptDesk:
    """Sends and receives the receipts of one mesh."""

    def __init__(self, inbox: Inbox, outbox: Outbox, agents: AgentRegistry, uplink: Uplink, node: str) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._agents = agents
        self._uplink = uplink
        self._node = node
        self._wakeup = asyncio.Event()
        self._sending: dict[Handed, asyncio.Future[bool]] = {}
        #: outcomes of own messages that the outbox has not stored yet
        self._outcomes: list[Outcome] = []
        self._has_asked = False
        #: awaited with the messages of this node that recipients have refused
        self.on_rejected: Callable[[Sequence[Failed]], Awaitable[None]] = _ignore_rejected

    def wake(self) -> None:
        """Send the receipts that wait."""
        self._wakeup.set()

    def on_confirmed(self, items: Sequence[Confirmed]) -> None:
        """Note that hosts have messages of this node."""
        self._outcomes += [Outcome(item.id, "confirmed", item.at_ns) for item in items]
        self._wakeup.set()

    def on_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Note that agents of other hosts read or rejected messages of this node."""
        self._outcomes += [
            Outcome(each.id, each.state.value, each.at_ms * MILLISECOND_NS, each.reason) for each in receipts
        ]
        self._wakeup.set()

    async def run(self) -> None:
        """Send and store receipts, until cancelled."""
        self._wakeup.set()
        while True:
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
            self._wakeup.clear()
            try:
                await self._store_outcomes()
                await self._send_waiting()
                await self._ask_after_start()
            except PosthouseError as failure:
                log.warning("receipts_wait", code=failure.code, reason=str(failure))

    async def _store_outcomes(self) -> None:
        taken = len(self._outcomes)
        if taken:
            await self._note(self._outcomes[:taken])
            del self._outcomes[:taken]

    async def _note(self, outcomes: Sequence[Outcome]) -> None:
        """Store outcomes, after the notices to the senders of refused messages, so that a crash loses no notice."""
        rejected = [Failed(each.message_id, each.reason) for each in outcomes if each.state == _REJECTED]
        if rejected:
            await self.on_rejected(rejected)
        await self._outbox.note_outcomes(outcomes)

    async def _ask_after_start(self) -> None:
        """Query the relay, once, for the outcome of the newest messages whose outcome is not stored."""
        if self._has_asked or not self._uplink.may_send:
            return
        for message_id in await self._outbox.without_outcome(_ASKED_AFTER_START):
            try:
                found = await self._uplink.client.message(message_id)
            except Refused as refusal:  # the relay was restored, or this host is no longer a member
                if refusal.code == "client_closed":  # the next connection tries again
                    raise
                continue
            outcomes = [each for state in found.deliveries for each in _outcomes(message_id, state)]
            if outcomes:
                await self._note(outcomes)
        self._has_asked = True

    async def _send_waiting(self) -> None:
        """Deliver every waiting receipt to its sender; those for other hosts are marked once the relay has them."""
        after = 0
        while page := await self._waiting(after):
            after = page[-1].position
            settled = [each for each in page if not self._wants_receipt(each)]
            own = [each for each in page if each not in settled and each.sender == self._node]
            if own:
                read = ReceiptState.READ.value
                await self._outbox.note_outcomes([Outcome(each.message_id, read, each.handed_at_ns) for each in own])
            await self._mark([*settled, *own, *self._finished()])
            if self._uplink.may_send and self._uplink.supports(RECEIPTS_FEATURE):
                for each in page:
                    if each not in settled and each not in own and each not in self._sending:
                        self._send(each)

    async def _waiting(self, after: int) -> list[Handed]:
        return await self._inbox.store.pool.run(lambda db: waiting_receipts(db, after, _PAGE))

    def _wants_receipt(self, handed: Handed) -> bool:
        agent = self._agents.agents.get(handed.agent)
        return agent is not None and bool(agent.receipts)

    def _send(self, handed: Handed) -> None:
        future = self._uplink.client.receipts.add(
            handed.message_id,
            handed.sender,
            mesh=self._inbox.mesh,
            at_ms=handed.handed_at_ns // MILLISECOND_NS,
            agent=handed.agent,
        )
        self._sending[handed] = future
        future.add_done_callback(lambda _done: self._wakeup.set())

    def _finished(self) -> list[Handed]:
        """Return the receipts that the relay has accepted or finally refused; forget those that must be sent again."""
        answered = [each for each, future in self._sending.items() if future.done()]
        finished = []
        for each in answered:
            future = self._sending.pop(each)
            if not future.cancelled() and future.exception() is None:
                finished.append(each)
        return finished

    async def _mark(self, receipts: Sequence[Handed]) -> None:
        if receipts:
            await self._inbox.store.writer.run(lambda tx: mark_sent(tx, receipts))


async def _ignore_rejected(_failed: Sequence[Failed]) -> None:
    return


def _outcomes(message_id: str, delivery: DeliveryState) -> Iterator[Outcome]:
    if delivery.state == "confirmed" and delivery.closed_at_ns is not None:
        yield Outcome(message_id, "confirmed", delivery.closed_at_ns)
    if delivery.receipt is not None and delivery.receipt_at_ms is not None:
        at_ns = delivery.receipt_at_ms * MILLISECOND_NS
        yield Outcome(message_id, delivery.receipt, at_ns, delivery.receipt_reason)
