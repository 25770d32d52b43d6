"""Receive messages: the open mailbox of a node, an async iterator in commit order over reconnects.

A message stays at the relay until it is confirmed or rejected. What was unconfirmed when a connection ended is
delivered again on the next one, so a reader can see a message twice, but never within one connection. The relay
sends at most `window` unconfirmed messages, which bounds the buffer here. A reader that confirms nothing for 30
seconds loses its connection: confirm when the message is stored safely, not when its work is done. On a new
connection unanswered confirmations and rejections go first, then RECEIVE. When another process opens the mailbox of
the same node, this one ends with mailbox_replaced and does not compete.
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
from posthouse.client.messages.confirmations import Confirmations, Confirmed, Delivery, Presence, Receipt, Rejections
from posthouse.client.stream.frames import (
    ConfirmedCommand,
    DeliverCommand,
    InvalidMessage,
    MessageCommand,
    text_of,
    value_of,
    write_command,
)
from posthouse.client.stream.subscription import Buffer
from posthouse.client.trust.signing import Signer, with_mesh
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.event import Event
from posthouse.model.kinds import CONFIRMATION, MESSAGE
from posthouse.model.limits import CONFIRMATION_RESERVE, RECEIVE_WINDOW, RECEIVE_WINDOW_MAX
from posthouse.model.message import read_confirmation, read_message


class RosterEntry(msgspec.Struct, frozen=True):
    """A member of the mesh, as the relay sees it."""

    node: str
    name: str | None = None
    role: str | None = None
    online: bool = False
    #: what the member says of itself in its profile
    status: str | None = None


class Mailbox:
    """The messages for this node in one mesh; made by Client.receive."""

    def __init__(
        self,
        receiving: Receiver,
        mesh: str,
        window: int = RECEIVE_WINDOW,
        instance: str = "",
        on_confirmed: Callable[[Sequence[Confirmed]], None] | None = None,
        on_presence: Callable[[Presence], None] | None = None,
    ) -> None:
        self.mesh = mesh
        self.window = window
        self.instance = instance
        self._receiving = receiving
        self._buffer: deque[Delivery] = deque()
        self._has_news = asyncio.Event()
        self._is_introduced = asyncio.Event()
        self._is_closed = False
        self._failure: PosthouseError | None = None
        self._on_confirmed = on_confirmed
        self._on_presence = on_presence
        self._confirmed: Buffer[Confirmed] = Buffer(CONFIRMATION_RESERVE, CONFIRMATION_RESERVE)
        #: members of the mesh by node id, with who is online
        self.roster: dict[str, RosterEntry] = {}
        #: how many messages waited when the mailbox was last opened
        self.waiting = 0
        #: messages that were not what they claimed; they were rejected
        self.forged = 0
        #: confirmations that nobody took from `confirmed()` in time; `Client.message` tells the states
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
        return (await self._next(1))[0]

    async def take(self, limit: int | None = None) -> list[Delivery]:
        """Wait for messages and return those that are there, at most `limit`; nothing once it is closed."""
        try:
            return await self._next(limit or self.window)
        except StopAsyncIteration:
            return []

    def confirm(self, *deliveries: Delivery) -> Awaitable[Receipt]:
        """Say that messages are in good hands; ids of one sender that gather go under one signature.

        Waiting is not needed: what is not answered is sent again. Who waits learns what the relay did.
        """
        return self._receiving.confirming.confirm(deliveries)

    def reject(self, delivery: Delivery, reason: str) -> Awaitable[bool]:
        """Park a message that this node cannot take; operator and sender see it and the reason.

        Who waits learns whether it was parked, or had left the queue before.
        """
        return self._receiving.rejecting.reject(delivery.id, reason)

    async def confirmed(self) -> AsyncIterator[Confirmed]:
        """Yield what readers confirm of this node's own messages, those confirmed while it was away first."""
        while True:
            item = self._confirmed.take()
            if item is not None:
                yield item
            elif self._failure is not None:
                raise self._failure
            elif self._is_closed:
                return
            else:
                await self._confirmed.wait()

    async def wait_open(self) -> None:
        """Wait until the relay has opened the mailbox; raises why it does not."""
        await self._is_introduced.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_open(self) -> bool:
        """Whether the mailbox is open at the relay now."""
        return self._is_introduced.is_set() and not self._is_closed

    async def flush(self) -> None:
        """Wait until every confirmation is answered."""
        await self._receiving.confirming.settled()

    async def close(self) -> None:
        """Close the mailbox, after the answers to the last confirmations; the rest waits at the relay."""
        if self._is_closed:
            return
        await self._receiving.settle()
        self._end()
        self._receiving.forget(self, is_leaving=True)

    # what the stream calls

    def begin(self) -> None:
        """Begin anew on a new connection: what was not handed out comes again."""
        self._is_introduced.clear()
        self._buffer.clear()

    def take_delivery(self, delivery: Delivery) -> None:
        """Take a message from the relay."""
        # a little more than the window is right: what was purged on its way takes no place in it
        if len(self._buffer) >= self.window + RECEIVE_WINDOW_MAX:
            self.fail(error("answer_invalid", relay="the relay", reason="more messages than the window allows"))
            return
        self._buffer.append(delivery)
        self._has_news.set()

    def take_roster(self, entries: Sequence[RosterEntry]) -> None:
        """Take the answer to RECEIVE."""
        self.roster = {entry.node: entry for entry in entries}
        self._is_introduced.set()

    def take_presence(self, presence: Presence) -> None:
        """Note who came or went."""
        known = self.roster.get(presence.node) or RosterEntry(presence.node)
        self.roster[presence.node] = msgspec.structs.replace(known, online=presence.is_online)
        if self._on_presence is not None:
            self._on_presence(presence)

    def take_confirmed(self, items: Sequence[Confirmed]) -> None:
        """Take confirmations of own messages."""
        if self._on_confirmed is not None:
            self._on_confirmed(items)
            return
        for item in items:
            if not self._confirmed.has_room:
                self._confirmed.take()
                self.missed += 1
            self._confirmed.put(item)

    def fail(self, failure: PosthouseError) -> None:
        """End the mailbox with an error, which the reader gets behind what is in the buffer."""
        if not self._is_closed:
            self._failure = None if failure.code == "client_closed" else failure
            self._end()
            self._receiving.forget(self, is_leaving=False)

    def statistics(self) -> dict[str, Any]:
        """Return how the mailbox is doing."""
        return {"is_open": self.is_open, "buffered": len(self._buffer), "waiting": self.waiting, "forged": self.forged}

    def _end(self) -> None:
        self._is_closed = True
        self._has_news.set()
        self._is_introduced.set()
        self._confirmed.wake()

    async def _next(self, limit: int) -> list[Delivery]:
        while not self._buffer:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        buffer = self._buffer
        if limit >= len(buffer):
            taken = list(buffer)
            buffer.clear()
            return taken
        return [buffer.popleft() for _ in range(limit)]


log = logging.getLogger(__name__)  # the standard one: a library is silent unless its user asks
_SETTLE_S = 5.0
CODE_REPLACED = 4003
REASON_REPLACED = "replaced_by_newer_connection"
#: notices that answer a RECEIVE
_REFUSALS = frozenset({"mesh_unknown", "not_member", "right_missing", "verb_unknown", "mailbox_open"})
_ROSTER = msgspec.json.Decoder(list[RosterEntry])


class Receiver:
    """The mailbox of a client, if it has one, and what it says about messages."""

    def __init__(
        self,
        signer: Signer,
        send: Callable[[bytes], None],
        restart: Callable[[], None],
        is_up: Callable[[], bool],
        relay: str,
        *,
        is_verifying: bool,
    ) -> None:
        self._signer = signer
        self._send = send
        self._restart = restart
        self._is_up = is_up
        self._relay = relay
        self._is_verifying = is_verifying
        self._mailbox: Mailbox | None = None
        self.confirming = Confirmations(self._sign_confirmation, send, relay)
        self.rejecting = Rejections(send, relay)

    def open(self, mailbox: Mailbox) -> None:
        """Open a mailbox; a client has one at a time."""
        if self._mailbox is not None:
            raise error("mailbox_open", mesh=self._mailbox.mesh)
        self._mailbox = mailbox
        self._ask(mailbox)

    def forget(self, mailbox: Mailbox, *, is_leaving: bool) -> None:
        """Let a mailbox go; only the end of its connection closes it at the relay."""
        if self._mailbox is mailbox:
            self._mailbox = None
            if is_leaving:
                self._restart()

    @property
    def handlers(self) -> dict[str, Callable[[Sequence[msgspec.Raw]], None]]:
        """The verbs that are for a mailbox."""
        return {
            "OK": self._take_ok,
            "QUEUE_STATUS": self._take_queue_status,
            "ROSTER": self._take_roster,
            "PRESENCE": self._take_presence,
            "NOTICE": self._take_notice,
        }

    def resume(self) -> None:
        """Go on over a new connection."""
        self.confirming.resume()
        self.rejecting.resume()
        if self._mailbox is not None:
            self._mailbox.begin()
            self._ask(self._mailbox)

    def fail(self, failure: PosthouseError) -> None:
        """End everything: quietly when the client was closed, else with the error."""
        self.confirming.fail(failure)
        self.rejecting.fail(failure)
        if self._mailbox is not None:
            self._mailbox.fail(failure)

    async def settle(self) -> None:
        """Give the answers to the last confirmations and rejections a moment to come."""
        try:
            async with asyncio.timeout(_SETTLE_S if self._is_up() else 0):
                await self.confirming.settled()
                await self.rejecting.settled()
        except TimeoutError:
            pass  # what was not answered is delivered again

    def take_lost(self, code: int | None, reason: str) -> None:
        """Look why the present connection ended: a mailbox that somebody else has opened is theirs."""
        if self._mailbox is not None and (code == CODE_REPLACED or reason == REASON_REPLACED):
            self._mailbox.fail(error("mailbox_replaced", mesh=self._mailbox.mesh))

    def take_mail(self, mail: MessageCommand | InvalidMessage) -> None:
        """Handle DELIVER and CONFIRMED."""
        mailbox = self._mailbox
        if mailbox is None:
            return
        if isinstance(mail, InvalidMessage):
            self._refuse(mailbox, mail.delivery_id, mail.fault)
        elif isinstance(mail, DeliverCommand):
            self._deliver(mailbox, mail)
        elif (confirmed := self._read_confirmed(mailbox, mail)) is not None:
            mailbox.take_confirmed(confirmed)

    def _deliver(self, mailbox: Mailbox, mail: DeliverCommand) -> None:
        event, about = mail.event, mail.about
        if event.id in self.confirming or event.id in self.rejecting:
            return
        if self._is_verifying and (fault := self._fault(mailbox, event)) is not None:
            self._refuse(mailbox, event.id, fault)
            return
        key = self._signer.key
        mailbox.take_delivery(Delivery(event, mail.seq, was_stored=about.was_stored, attempt=about.attempt, key=key))

    def _fault(self, mailbox: Mailbox, event: Event) -> PosthouseError | None:
        """Return why an event is no message for this mailbox; its signature was looked at before."""
        try:
            message = read_message(event) if event.kind == MESSAGE else None
        except PosthouseError as fault:
            return fault
        is_ours = message is not None and message.mesh == mailbox.mesh
        if message is None or not is_ours or message.recipient not in (None, self._signer.key.node):
            return error("answer_invalid", relay=self._relay, reason=f"{event.id} is no message for this mailbox")
        return None

    def _refuse(self, mailbox: Mailbox, delivery_id: str | None, fault: PosthouseError) -> None:
        log.warning("mail of %s is refused: %s", self._relay, fault)
        mailbox.forged += 1
        if delivery_id is not None:
            self.rejecting.reject(delivery_id, fault.code)

    def _read_confirmed(self, mailbox: Mailbox, mail: ConfirmedCommand) -> list[Confirmed] | None:
        event = mail.event
        try:
            confirmation = read_confirmation(event)
        except PosthouseError as fault:
            self._refuse(mailbox, None, fault)
            return None
        ids = set(confirmation.ids)
        if confirmation.sender != self._signer.key.node or not all(item.id in ids for item in mail.items):
            reason = f"{event.id} does not confirm what it is said to"
            self._refuse(mailbox, None, error("answer_invalid", relay=self._relay, reason=reason))
            return None
        return [Confirmed(item.id, confirmation.reader, item.was_stored, item.at_ns, event) for item in mail.items]

    def _ask(self, mailbox: Mailbox) -> None:
        self._send(write_command("RECEIVE", mailbox.mesh, {"window": mailbox.window, "instance": mailbox.instance}))

    def _sign_confirmation(self, mesh: str, sender: str, ids: Sequence[str]) -> Event:
        return self._signer.sign(CONFIRMATION, "", with_mesh([("p", sender), *(("e", id_) for id_ in ids)], mesh))

    def _take_ok(self, arguments: Sequence[msgspec.Raw]) -> None:
        answered = value_of(arguments[0])
        if isinstance(answered, str) and (answered in self.rejecting or self.confirming.expects(answered)):
            is_accepted, body = value_of(arguments[1]) is True, value_of(arguments[2])
            self.confirming.take_ok(answered, is_accepted, body)
            self.rejecting.take_ok(answered, is_accepted, body)

    def _take_queue_status(self, arguments: Sequence[msgspec.Raw]) -> None:
        count = value_of(arguments[0])
        if self._mailbox is not None and isinstance(count, int):
            self._mailbox.waiting = count

    def _take_roster(self, arguments: Sequence[msgspec.Raw]) -> None:
        if self._mailbox is not None and text_of(arguments[0]) == self._mailbox.mesh:
            self._mailbox.waiting = 0  # the count follows, if anything waits
            self._mailbox.take_roster(_ROSTER.decode(arguments[1]))

    def _take_presence(self, arguments: Sequence[msgspec.Raw]) -> None:
        mesh, node, word = (text_of(argument) for argument in arguments)
        if self._mailbox is not None and mesh == self._mailbox.mesh:
            self._mailbox.take_presence(Presence(node, word == "online"))

    def _take_notice(self, arguments: Sequence[msgspec.Raw]) -> None:
        code, text = (text_of(argument) for argument in arguments)
        mailbox = self._mailbox
        if mailbox is None or mailbox.is_open or code not in _REFUSALS:
            return
        problem: dict[str, Any] = {"code": code, "detail": text, "status": 403, "mesh": mailbox.mesh, "verb": "RECEIVE"}
        failure = error_from(problem, self._relay)
        if not isinstance(failure, Transient):
            mailbox.fail(failure)
