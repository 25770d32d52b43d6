"""Gaps: messages of topics that this node's queue had no room for, read from the history of the topic instead.

The relay names the gaps when the mailbox is opened and whenever its reader has caught up. In a mailbox that fills gaps,
the missing messages arrive among the others, marked as from the history; after the reader has confirmed all of a gap
the relay drops it. A gap that was not finished on one connection starts over on the next, and a message of the queue
may also arrive from the history, so a reader that fills gaps must recognize messages by their id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from posthouse.client.meshes import Meshes
from posthouse.client.messages.confirmations import Delivery
from posthouse.client.messages.receiver import Mailbox, Receiver
from posthouse.client.stored_events import Stored, StoredEvents
from posthouse.client.stream.connection import Link
from posthouse.client.stream.frames import Gap, GapNotice, write_command
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.model.event import MESSAGE

log = logging.getLogger(__name__)  # the standard logging: a library is silent unless its user configures it
_PAGE = 50


class GapFiller:
    """Reads the gaps of the open mailbox of a client."""

    def __init__(self, link: Link, receiver: Receiver, events: StoredEvents, meshes: Meshes, key: NodeKey) -> None:
        self._link = link
        self._receiver = receiver
        self._events = events
        self._meshes = meshes
        self._key = key
        self._task: asyncio.Task[None] | None = None
        link.join(
            {GapNotice: self._on_gaps},
            on_lost=lambda _code, _reason: self._stop(),
            on_end=lambda _failure: self._stop(),
        )

    def _on_gaps(self, notice: GapNotice) -> None:
        mailbox = self._receiver.mailbox
        if mailbox is None or not mailbox.fills_gaps or notice.mesh != mailbox.mesh:
            return
        self._stop()
        self._task = asyncio.create_task(self._fill_all(mailbox, notice.gaps))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _fill_all(self, mailbox: Mailbox, gaps: tuple[Gap, ...]) -> None:
        try:
            silenced = {self._key.node, *await self._meshes.blocks(mailbox.mesh)}
            for gap in gaps:
                await self._fill(mailbox, gap, silenced)
        except PosthouseError as failure:  # the relay names the gap again on the next connection
            log.warning("a gap of %s cannot be filled now: %s", mailbox.mesh, failure)

    async def _fill(self, mailbox: Mailbox, gap: Gap, silenced: set[str]) -> None:
        wanted = {"kinds": [MESSAGE], "#t": [gap.topic], "mesh": mailbox.mesh}
        cursor: str | None = gap.cursor
        while cursor is not None:
            page = await self._events.query(wanted, limit=_PAGE, cursor=cursor)
            missing = [each for each in page.events if each.seq <= gap.last_seq and each.event.pubkey not in silenced]
            await deliver_history(mailbox, missing, self._key)
            is_end = bool(page.events) and page.events[-1].seq >= gap.last_seq
            cursor = None if is_end else page.cursor
        self._link.send(write_command("FILLED", mailbox.mesh, gap.topic, gap.last_seq))


async def deliver_history(mailbox: Mailbox, missing: Sequence[Stored], key: NodeKey) -> None:
    """Give messages of the history to the reader of a mailbox; wait until it has confirmed or rejected all of them."""
    for start in range(0, len(missing), _PAGE):
        deliveries = [
            Delivery(each.event, each.seq, was_stored=True, attempt=1, key=key, is_from_history=True)
            for each in missing[start : start + _PAGE]
        ]
        for delivery in deliveries:
            mailbox.on_delivery(delivery)
        for delivery in deliveries:
            await delivery.settled.wait()
