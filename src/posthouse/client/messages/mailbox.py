"""The open mailbox of a node: its messages in commit order, as an async iterator over as many connections as it takes.

A message stays with the relay until it is confirmed (or rejected); what was not confirmed when a connection ended comes
again on the next one, so a reader must be able to see a message twice, never within one connection. The relay sends at
most `window` unconfirmed messages, and that bounds what is held here. A reader that confirms nothing for 30 seconds
loses its connection: confirm when the message is in good hands, not when its work is done.

When another process opens the mailbox of the same node, this one ends with mailbox_replaced and does not fight for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from posthouse.client.messages.delivery import Confirmed, Delivery, Presence, Receipt
from posthouse.client.stream.buffer import Buffer
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import CONFIRMATION_RESERVE, RECEIVE_WINDOW, RECEIVE_WINDOW_MAX

if TYPE_CHECKING:
    from posthouse.client.messages.receiving import Receiving


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
        receiving: Receiving,
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
