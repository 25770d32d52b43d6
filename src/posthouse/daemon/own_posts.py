"""Give a host's own topic posts to its other agents that follow the topic.

The relay never delivers a post to its author's host. Once the relay has answered a post with its seq, the daemon puts
the post into the inboxes of the host's other followers, in seq order with what the relay delivers: a post waits until
a later delivery arrives, or until everything that has arrived is stored and nothing more came for QUIET_S. A post is
marked in the outbox after it is in the inbox, so a crash in between repeats the insert, which the inbox recognizes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.inbox_items import NewItem
from posthouse.daemon.mailroom import Mailroom, new_item
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.outbox_rows import OwnPost
from posthouse.model.errors import Transient
from posthouse.model.event import decode_event
from posthouse.model.message import read_message

log = structlog.get_logger(__name__)
QUIET_S = 0.1  # after this time, an earlier message that the relay committed with the post has arrived
_RETRY_S = 2.0
_PAGE = 100
#: a message with its seq at the relay
Sequenced = tuple[int, NewItem]


class OwnPosts:
    """The topic posts of one host that its other agents have not received yet."""

    def __init__(
        self, outbox: Outbox, inbox: Inbox, mailroom: Mailroom, node: str, name_of: Callable[[str], str | None]
    ) -> None:
        self._outbox = outbox
        self._inbox = inbox
        self._mailroom = mailroom
        self._node = node
        self._name_of = name_of
        self._lock = asyncio.Lock()
        self._wakeup = asyncio.Event()
        self._wakeup.set()  # posts may have waited since the last run
        self._has_waiting = True
        self._delivered_s = 0.0
        self._is_expecting = False

    def expect(self, *, is_expecting: bool) -> None:
        """Note that deliveries have arrived and will be stored next, or that they will not be stored."""
        self._is_expecting = is_expecting

    def wake(self) -> None:
        """Give the posts that the relay has just answered to the other agents."""
        self._has_waiting = True
        self._wakeup.set()

    async def run(self) -> None:
        """Give posts to the other agents after a quiet moment, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            await asyncio.sleep(QUIET_S)
            if self._is_expecting or self._lock.locked() or loop.time() < self._delivered_s + QUIET_S:
                self._wakeup.set()
                continue
            try:
                await self.put_with(None)
            except Transient as failure:
                log.warning("own_posts_wait", code=failure.code)
                self.wake()
                await asyncio.sleep(_RETRY_S)

    async def put_with(self, delivered: Sequence[Sequenced] | None) -> None:
        """Store deliveries in the inbox, and before each the own posts with a lower seq; None: all posts."""
        async with self._lock:
            try:
                if delivered is None:
                    await self._put([], None)
                elif delivered:
                    await self._put(delivered, max(seq for seq, _item in delivered))
            finally:
                if delivered is not None:
                    self._is_expecting = False
                    self._delivered_s = asyncio.get_running_loop().time()

    async def _put(self, delivered: Sequence[Sequenced], before: int | None) -> None:
        if self._has_waiting:
            self._has_waiting = before is not None  # before the first read: the relay may answer a post meanwhile
            while posts := await self._outbox.own_posts(before, _PAGE):
                merged = sorted([*delivered, *self._items(posts)], key=lambda pair: pair[0])
                await self._inbox.put([item for _seq, item in merged])
                await self._outbox.mark_given(posts)
                delivered = []
        if delivered:
            await self._inbox.put([item for _seq, item in delivered])

    def _items(self, posts: Sequence[OwnPost]) -> list[Sequenced]:
        """Return the posts that other agents of this host follow."""
        items: list[Sequenced] = []
        for post in posts:
            event = decode_event(post.event)
            message = read_message(event)
            agents = self._mailroom.other_followers(message.destination_ref, message.from_agent)
            if agents:
                item = new_item(
                    event, message, self._inbox.minter.mint(), self._name_of(self._node), event.content, None
                )
                items.append((post.history_id, item._replace(agents=agents, message_id=post.message_id)))
        return items
