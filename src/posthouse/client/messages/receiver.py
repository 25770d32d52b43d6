"""Receive messages: the open mailbox of a node, an async iterator in commit order over reconnects.

A message stays at the relay until it is confirmed or rejected. Messages without an answer when a connection ends are
delivered again on the next one, so a reader can see a message twice, but never within one connection. The relay
sends at most `window` unconfirmed messages, which bounds the buffer here. A reader that confirms nothing for 30
seconds loses its connection: confirm when the message is stored safely, not when its work is done. On a new connection
unanswered answers go first, then RECEIVE. If another process opens the mailbox, this one ends with mailbox_replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from posthouse.client.failures import error_from
from posthouse.client.messages.confirmations import ConfirmAnswer, Confirmations, Confirmed, Delivery, Presence
from posthouse.client.messages.receipts import Receipt, Receipts
from posthouse.client.stream.connection import Link
from posthouse.client.stream.frames import (
    ConfirmedMessages,
    DeliveredMessage,
    InvalidMessage,
    Notice,
    PresenceChange,
    ProfileChange,
    ProfileEntry,
    QueueStatus,
    ReceivedReceipt,
    Roster,
    RosterEntry,
    write_command,
)
from posthouse.keys import NodeKey
from posthouse.model.address import validate_agent_name
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import MESSAGE, Event
from posthouse.model.limits import CONFIRMATION_RESERVE, RECEIVE_WINDOW, RECEIVE_WINDOW_MAX
from posthouse.model.message import Message, read_confirmation, read_message
from posthouse.model.receipt import read_receipt
from posthouse.tracing import Tracer

log = logging.getLogger(__name__)  # the standard logging: a library is silent unless its user configures it


class Mailbox:
    """The messages for this node in one mesh; made by Client.receive."""

    def __init__(
        self,
        receiver: Receiver,
        mesh: str,
        window: int = RECEIVE_WINDOW,
        instance: str = "",
        on_confirmed: Callable[[Sequence[Confirmed]], None] | None = None,
        on_presence: Callable[[Presence], None] | None = None,
        on_receipts: Callable[[Sequence[Receipt]], None] | None = None,
        fills_gaps: bool = False,
    ) -> None:
        self.mesh = mesh
        self.fills_gaps = fills_gaps
        self.window = window
        self.instance = instance
        self._receiver = receiver
        self._deliveries: deque[Delivery] = deque()
        self._confirmed: deque[Confirmed] = deque()
        self._has_deliveries = asyncio.Event()
        self._has_confirmed = asyncio.Event()
        self._is_answered = asyncio.Event()
        self._is_closed = False
        self._failure: PosthouseError | None = None
        self._on_confirmed = on_confirmed
        self._on_presence = on_presence
        self._on_receipts = on_receipts
        #: members of the mesh by node id, with their presence and profiles
        self.roster: dict[str, RosterEntry] = {}
        #: agents of this node that are online
        self.agents: tuple[str, ...] = ()
        #: how many messages waited when the mailbox was last opened
        self.waiting = 0
        #: messages and confirmations that did not verify; such messages were rejected
        self.forged = 0
        #: confirmations that were dropped because `confirmed()` was not read; `Client.message` has the states
        self.missed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        if not self._deliveries:
            await self._wait_for_deliveries()
        return self._deliveries.popleft()

    async def take(self, limit: int | None = None) -> list[Delivery]:
        """Wait for messages and return those that have arrived, at most `limit`; an empty list once it is closed."""
        try:
            await self._wait_for_deliveries()
        except StopAsyncIteration:
            return []
        count = min(limit or self.window, len(self._deliveries))
        return [self._deliveries.popleft() for _ in range(count)]

    def confirm(self, *deliveries: Delivery) -> Awaitable[ConfirmAnswer]:
        """Confirm messages: the relay removes them from the queue and informs their senders.

        Awaiting the result is optional: it is the relay's answer. Without it, an unanswered confirmation is still
        sent again after a reconnect. Ids of one sender that collect go under one signature.
        """
        return self._receiver.confirmations.confirm(deliveries)

    def reject(self, delivery: Delivery, reason: str) -> Awaitable[bool]:
        """Reject a message that this node cannot process: it becomes a dead letter that operator and sender can see.

        Awaiting the result is optional: it is True if the message was rejected, False if it had already left the queue.
        """
        delivery.settle("rejected")
        return self._receiver.confirmations.reject(delivery.id, reason)

    def set_agents(self, names: Sequence[str]) -> None:
        """Show the mesh which agents of this node are online; does nothing at a relay without the feature `agents`."""
        self.agents = tuple(map(validate_agent_name, names))
        self._receiver.send_agents(self)

    async def confirmed(self) -> AsyncIterator[Confirmed]:
        """Yield the confirmations of this node's messages, beginning with those that arrived while it was offline."""
        while True:
            if self._confirmed:
                yield self._confirmed.popleft()
            elif self._failure is not None:
                raise self._failure
            elif self._is_closed:
                return
            else:
                self._has_confirmed.clear()
                await self._has_confirmed.wait()

    async def wait_open(self) -> None:
        """Wait until the relay has opened the mailbox; raises its refusal."""
        await self._is_answered.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_open(self) -> bool:
        """True while the mailbox is open at the relay."""
        return self._is_answered.is_set() and not self._is_closed

    async def flush(self) -> None:
        """Wait until every confirmation is answered."""
        await self._receiver.confirmations.confirmed()

    async def close(self) -> None:
        """Close the mailbox once the last confirmations are answered; unconfirmed messages stay at the relay."""
        if self._is_closed:
            return
        await self._receiver.settle()
        self._end()
        self._receiver.forget(self, is_leaving=True)

    def statistics(self) -> dict[str, Any]:
        """Return the state of the mailbox: is_open, buffered, waiting, forged."""
        buffered = len(self._deliveries)
        return {"is_open": self.is_open, "buffered": buffered, "waiting": self.waiting, "forged": self.forged}

    # called by the receiver

    def reopen(self) -> None:
        """Prepare for a new connection, which delivers every unconfirmed message again."""
        self._is_answered.clear()
        self._deliveries.clear()

    def on_delivery(self, delivery: Delivery) -> None:
        """Add a message for the reader."""
        # slightly more than the window is legal: messages purged after they were sent do not count at the relay
        if len(self._deliveries) >= self.window + RECEIVE_WINDOW_MAX:
            reason = "more messages than the window allows"
            self.fail(error("answer_invalid", relay=self._receiver.origin, reason=reason))
            return
        self._deliveries.append(delivery)
        self._has_deliveries.set()

    def on_roster(self, entries: Sequence[RosterEntry]) -> None:
        """Handle the answer to RECEIVE: the mailbox is open."""
        self.roster = {entry.node: entry for entry in entries}
        self.waiting = 0  # QUEUE_STATUS follows if messages wait
        self._is_answered.set()

    def on_presence(self, presence: Presence) -> None:
        """Record that a node, or some of its agents, came online or went offline."""
        known = self.roster.get(presence.node) or RosterEntry(presence.node)
        self.roster[presence.node] = msgspec.structs.replace(
            known, online=presence.is_online, online_agents=presence.agents
        )
        if self._on_presence is not None:
            self._on_presence(presence)

    def on_profile(self, profile: ProfileEntry) -> None:
        """Note that a member published a profile."""
        known = self.roster.get(profile.node) or RosterEntry(profile.node)
        self.roster[profile.node] = msgspec.structs.replace(known, status=profile.status, agents=profile.agents)
        if self._on_presence is not None:
            self._on_presence(Presence(profile.node, known.online, known.online_agents))

    def on_confirmed(self, items: Sequence[Confirmed]) -> None:
        """Add confirmations of this node's messages; if they are not read in time, the oldest are dropped."""
        if self._on_confirmed is not None:
            self._on_confirmed(items)
            return
        self._confirmed.extend(items)
        while len(self._confirmed) > CONFIRMATION_RESERVE:
            self._confirmed.popleft()
            self.missed += 1
        self._has_confirmed.set()

    def on_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Handle receipts of this node's messages."""
        if self._on_receipts is not None:
            self._on_receipts(receipts)

    def fail(self, failure: PosthouseError) -> None:
        """End the mailbox with an error, which the reader gets after the messages in the buffer."""
        if not self._is_closed:
            self._failure = None if failure.code == "client_closed" else failure
            self._end()
            self._receiver.forget(self, is_leaving=False)

    def _end(self) -> None:
        self._is_closed = True
        for event in (self._has_deliveries, self._has_confirmed, self._is_answered):
            event.set()

    async def _wait_for_deliveries(self) -> None:
        while not self._deliveries:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise StopAsyncIteration
            self._has_deliveries.clear()
            await self._has_deliveries.wait()


_SETTLE_S = 5.0
CODE_REPLACED = 4003
AGENTS_FEATURE = "agents"
#: notices that answer a RECEIVE
_REFUSALS = ("mesh_unknown", "not_member", "key_not_approved", "right_missing", "verb_unknown", "mailbox_open")


class Receiver:
    """Passes the relay's commands to the open mailbox of a client; messages that do not verify are rejected."""

    def __init__(self, link: Link, key: NodeKey, confirmations: Confirmations, receipts: Receipts) -> None:
        self._link = link
        #: requests whose answers go to the waiting callers, not to the mailbox
        self.awaited: set[str] = set()
        #: returns True for a request that is confirmed and not given to the mailbox
        self.is_late: Callable[[Message], bool] = lambda _message: False
        self.tracer: Tracer | None = None
        self._key = key
        self._mailbox: Mailbox | None = None
        self.origin = link.origin
        self.confirmations = confirmations
        self._receipts = receipts
        handlers: dict[type, Callable[[Any], None]] = {
            DeliveredMessage: self._on_delivered,
            ConfirmedMessages: self._on_confirmed,
            ReceivedReceipt: self._on_receipt,
            InvalidMessage: self._on_invalid,
            QueueStatus: self._on_queue_status,
            Roster: self._on_roster,
            PresenceChange: self._on_presence,
            ProfileChange: self._on_profile,
            Notice: self._on_notice,
        }
        link.join(handlers, on_up=self._reopen, on_lost=self._on_lost, on_end=self._fail)

    @property
    def mailbox(self) -> Mailbox | None:
        """The open mailbox."""
        return self._mailbox

    def open(self, mailbox: Mailbox) -> None:
        """Open a mailbox; a client has one at a time."""
        if self._mailbox is not None:
            raise error("mailbox_open", mesh=self._mailbox.mesh)
        self._mailbox = mailbox
        self._request(mailbox)

    def forget(self, mailbox: Mailbox, *, is_leaving: bool) -> None:
        """Forget a mailbox; if it is leaving, restart the connection, because only that closes it at the relay."""
        if self._mailbox is mailbox:
            self._mailbox = None
            if is_leaving:
                self._link.restart()

    async def settle(self) -> None:
        """Wait a bounded time until the last confirmations, rejections and receipts are answered."""
        try:
            async with asyncio.timeout(_SETTLE_S if self._link.is_up else 0):
                await self.confirmations.settled()
                await self._receipts.settled()
        except TimeoutError:
            pass  # the relay delivers an unanswered message again

    def send_agents(self, mailbox: Mailbox) -> None:
        """Send the agents of the open mailbox that are online; a later connection sends them with RECEIVE."""
        if self._mailbox is mailbox and self._link.supports(AGENTS_FEATURE):
            self._link.send(write_command("AGENTS", mailbox.mesh, mailbox.agents))

    def _request(self, mailbox: Mailbox) -> None:
        options: dict[str, Any] = {"window": mailbox.window, "instance": mailbox.instance}
        if mailbox.agents and self._link.supports(AGENTS_FEATURE):
            options["agents"] = mailbox.agents
        self._link.send(write_command("RECEIVE", mailbox.mesh, options))

    def _reopen(self) -> None:
        if self._mailbox is not None:
            self._mailbox.reopen()
            self._request(self._mailbox)

    def _on_lost(self, code: int | None, _reason: str) -> None:
        # with 1000 a connection of this client itself has replaced it, such as a former one that a relay opened late
        if self._mailbox is not None and code == CODE_REPLACED:
            self._mailbox.fail(error("mailbox_replaced", mesh=self._mailbox.mesh))

    def _fail(self, failure: PosthouseError) -> None:
        if self._mailbox is not None:
            self._mailbox.fail(failure)

    def _on_delivered(self, delivered: DeliveredMessage) -> None:
        mailbox, event = self._mailbox, delivered.event
        if mailbox is None:
            return
        message: Message | None = None
        if self._link.is_verifying:
            try:
                message = self._checked_message(event, mailbox.mesh)
            except PosthouseError as invalid:
                self._refuse(mailbox, event.id, invalid)
                return
        if event.id in self.confirmations or (message is not None and message.reply_to in self.awaited):
            return  # a second copy of a message that is confirmed or rejected already, or that another call takes
        info = delivered.info
        delivery = Delivery(
            event, delivered.seq, was_stored=info.was_stored, attempt=info.attempt, key=self._key, message=message
        )
        if self.tracer is not None:
            delivery.trace(self.tracer)
        if message is not None and message.meta and self.is_late(message):  # only meta marks a request
            self.confirmations.confirm([delivery])
        else:
            mailbox.on_delivery(delivery)

    def _checked_message(self, event: Event, mesh: str) -> Message:
        """Return the message in an event, or raise an error if it is not one for this mailbox."""
        message = read_message(event) if event.kind == MESSAGE else None
        if message is None or message.mesh != mesh or not self._key.stands_for(message.recipient or self._key.node):
            raise error("answer_invalid", relay=self.origin, reason=f"{event.id} is not a message for this mailbox")
        return message

    def _on_confirmed(self, confirmed: ConfirmedMessages) -> None:
        mailbox, event = self._mailbox, confirmed.event
        if mailbox is None:
            return
        try:
            confirmation = read_confirmation(event)
        except PosthouseError as invalid:
            self._refuse(mailbox, None, invalid)
            return
        ids = set(confirmation.ids)
        if not self._key.stands_for(confirmation.sender) or not all(item.id in ids for item in confirmed.items):
            reason = f"{event.id} does not confirm the messages that the relay lists with it"
            self._refuse(mailbox, None, error("answer_invalid", relay=self.origin, reason=reason))
            return
        reader = confirmation.reader
        mailbox.on_confirmed(
            [Confirmed(each.id, reader, each.was_stored, each.at_ns, event) for each in confirmed.items]
        )

    def _on_receipt(self, received: ReceivedReceipt) -> None:
        mailbox, event = self._mailbox, received.event
        if mailbox is None:
            return
        try:
            receipt = read_receipt(event)
        except PosthouseError as invalid:
            self._refuse(mailbox, None, invalid)
            return
        if not self._key.stands_for(receipt.sender):
            reason = f"{event.id} is not a receipt for messages of this node"
            self._refuse(mailbox, None, error("answer_invalid", relay=self.origin, reason=reason))
            return
        listed = {item.id for item in received.items}
        mailbox.on_receipts(
            [
                Receipt(each.id, receipt.reader, receipt.agent, each.state, each.at_ms, each.reason, event)
                for each in receipt.items
                if each.id in listed
            ]
        )

    def _on_invalid(self, invalid: InvalidMessage) -> None:
        if self._mailbox is not None:
            self._refuse(self._mailbox, invalid.delivery_id, invalid.error)

    def _refuse(self, mailbox: Mailbox, delivery_id: str | None, invalid: PosthouseError) -> None:
        log.warning("a message from %s is refused: %s", self.origin, invalid)
        is_forged = invalid.code != "signature_form_unknown"  # which stays in the queue for a newer client
        mailbox.forged += is_forged
        if delivery_id is not None and is_forged:
            self.confirmations.reject(delivery_id, invalid.code)

    def _on_queue_status(self, status: QueueStatus) -> None:
        if self._mailbox is not None:
            self._mailbox.waiting = status.waiting

    def _on_roster(self, roster: Roster) -> None:
        if self._mailbox is not None and roster.mesh == self._mailbox.mesh:
            self._mailbox.on_roster(roster.entries)

    def _on_presence(self, change: PresenceChange) -> None:
        if self._mailbox is not None and change.mesh == self._mailbox.mesh:
            self._mailbox.on_presence(Presence(change.node, change.state == "online", change.agents))

    def _on_profile(self, change: ProfileChange) -> None:
        if self._mailbox is not None and change.mesh == self._mailbox.mesh:
            self._mailbox.on_profile(change.profile)

    def _on_notice(self, notice: Notice) -> None:
        log.info("notice of %s: %s %s", self.origin, notice.code, notice.text)
        mailbox = self._mailbox
        if mailbox is None or mailbox.is_open or notice.code not in _REFUSALS:
            return
        fields = {"node": self._key.node, "mesh": mailbox.mesh, "verb": "RECEIVE", "right": "read"}
        refusal = error_from({"code": notice.code, "detail": notice.text, "status": 403, **fields}, self.origin)
        if not isinstance(refusal, Transient):
            mailbox.fail(refusal)
