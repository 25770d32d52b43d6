"""One subscription: the stored matches, EOSE, then live ones; no gap, no duplicate, ascending commit order.

How the two meet: pages are read by keyset until one reaches the end of the store. Then the subscription joins the live
index and keeps what is committed from there on; one more round of pages closes the distance, up to the seq S that
the last of them saw. EOSE names S; what was kept, or is still announced, up to S has been sent already and is
dropped, the rest follows. If more is committed in that time than the buffer holds, what was kept is let go and the
pages go on.

No read is open while the socket is slow: a page is values, and the next is read after this one was taken.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.journal.cursor import parse_cursor
from posthouse.model.errors import PosthouseError, error
from posthouse.model.filters import Filter
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.relay.live import Delivery
from posthouse.relay.store.interface import StoredEvent
from posthouse.relay.stream.frame import command_text, event_prefix, event_tail, events_text, text_frame

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection


class _Phase(enum.Enum):
    STORED = "stored"
    JOINING = "joining"
    LIVE = "live"
    CLOSED = "closed"


class Subscription:
    """The state of one REQ on one connection."""

    def __init__(
        self,
        connection: Connection,
        sub: str,
        node: str,
        filters: Sequence[Filter],
        cursor: str | None,
        limit: int | None,
    ) -> None:
        self.sub = sub
        self.node = node
        self.filters = filters
        self.prefix = event_prefix(sub)
        self._connection = connection
        self._outbox = connection.outbox
        self._edge = connection.edge
        #: where the client asked to begin, until a page was sent
        self._given = cursor
        #: everything up to here was sent, or is not to be
        self._seq: int | None = None
        self._limit = limit
        self._phase = _Phase.STORED
        self._kept: list[Delivery] = []
        self._kept_events = 0
        self._kept_bytes = 0
        self._is_overtaken = False

    async def run(self) -> None:
        """Send what is stored, then go live; a failure closes the subscription and says why."""
        try:
            async with self._connection.stored_turn:
                if self._limit is None:
                    await self._send_all()
                else:
                    await self._send_newest(self._limit)
        except PosthouseError as failure:
            self.close(failure)

    def push(self, delivery: Delivery) -> None:
        """Take committed events: keep them while joining, else send them, unless the reader is too slow."""
        if self._phase is _Phase.JOINING:
            self._keep(delivery)
            return
        # a page can see a commit before the loop hears of it: what comes late was sent already
        fresh = self._unsent(delivery)
        if fresh is not None:
            self._push(fresh)

    def _unsent(self, delivery: Delivery) -> Delivery | None:
        first, sent = delivery.pieces[0].committed.seq, self._seq or 0
        return delivery if first is not None and first > sent else delivery.after(sent)

    def _push(self, delivery: Delivery) -> None:
        count = len(delivery.pieces)
        if not self._outbox.has_room(delivery.size, count):
            self._refuse_slow(delivery)
            return
        self._outbox.write(delivery.frame(self.prefix), count)
        last = delivery.last_seq()
        if last is not None:
            self._seq = last

    def close(self, failure: PosthouseError | None = None) -> None:
        """End the subscription; with a failure the client is told, with the cursor to go on from."""
        if self._phase is _Phase.CLOSED:
            return
        self._phase = _Phase.CLOSED
        self._edge.live.remove(self)
        self._drop_kept()
        self._connection.forget(self)
        if failure is not None:
            self._outbox.send(command_text("CLOSED", self.sub, failure.problem(), self.cursor))

    @property
    def cursor(self) -> str | None:
        """Where to go on after what was sent so far."""
        return self._given if self._seq is None else self._edge.core.cursor(self._seq)

    async def _send_all(self) -> None:
        while self._phase is not _Phase.CLOSED:
            await self._send_pages()
            if self._phase is _Phase.JOINING and not self._is_overtaken:
                self._go_live()
                return
            self._join()

    async def _send_pages(self) -> None:
        """Send every page from the cursor to the end of the store."""
        while self._phase is not _Phase.CLOSED:
            page = await self._edge.core.query(self.node, self.filters, cursor=self.cursor, limit=QUERY_MAX_LIMIT)
            await self._send_events(page.events)
            self._seq = page.through_seq
            if page.is_end:
                return

    async def _send_newest(self, limit: int) -> None:
        """Send the newest matches, at most `limit`, oldest of them first."""
        floor = await self._floor()
        self._join()
        # what is published from here on is kept, so everything up to this seq is to be found in the store
        head = self._edge.live.head
        events, is_whole = await self._find_newest(limit, floor)
        if not is_whole:
            self._seq = events[-1].seq - 1
            await self._send_all()
            return
        await self._send_events(events[::-1])
        self._seq = max(head, floor, events[0].seq if events else 0)
        if self._is_overtaken:
            await self._send_all()
        elif self._phase is not _Phase.CLOSED:
            self._go_live()

    async def _find_newest(self, limit: int, floor: int) -> tuple[list[StoredEvent], bool]:
        """Return the newest matches above `floor`, newest first, and whether all of them are in the list.

        If they are too large to be held at once, only the oldest is returned: from there they are read again in pages.
        """
        core = self._edge.core
        events: list[StoredEvent] = []
        place, found, size = None, 0, 0
        while found < limit:
            page = await core.query(
                self.node, self.filters, cursor=place, limit=min(QUERY_MAX_LIMIT, limit - found), order="desc"
            )
            above = [event for event in page.events if event.seq > floor]
            events += above
            found += len(above)
            size += sum(len(event.raw) for event in above)
            if size > self._edge.limits.buffer_bytes:
                del events[:-1]
            if page.is_end or page.through_seq <= floor or len(above) < len(page.events):
                break
            place = core.cursor(page.through_seq)
        return events, len(events) == found

    async def _floor(self) -> int:
        """Return the seq of the cursor, or 0 without one; a cursor that is not valid here is refused."""
        if self._given is None:
            return 0
        await self._edge.core.query(self.node, self.filters, cursor=self._given, limit=1)
        return parse_cursor(self._given).seq

    async def _send_events(self, events: Sequence[StoredEvent]) -> None:
        tails: list[bytes] = []
        size = 0
        for event in events:
            tail = event_tail(event.raw, event.seq)
            if tails and size + len(tail) > self._edge.limits.stored_frame_bytes:
                await self._send_frame(tails)
                tails, size = [], 0
            tails.append(tail)
            size += len(tail)
        if tails:
            await self._send_frame(tails)

    async def _send_frame(self, tails: Sequence[bytes]) -> None:
        await self._outbox.drain()
        if self._phase is _Phase.CLOSED:
            return
        self._outbox.write(text_frame(events_text(self.prefix, tails)), len(tails))
        self._edge.meters.count("posthouse_relay_stored_deliveries_total", by=len(tails))

    def _join(self) -> None:
        if self._phase is _Phase.CLOSED:
            return
        self._drop_kept()
        self._is_overtaken = False
        if self._phase is _Phase.STORED:
            self._phase = _Phase.JOINING
            self._edge.live.add(self, self.filters)

    def _go_live(self) -> None:
        # nothing is awaited here, so no batch can come between EOSE and the first live event
        kept = self._kept
        self._drop_kept()
        self._phase = _Phase.LIVE
        self._outbox.send(command_text("EOSE", self.sub, self.cursor))
        for delivery in kept:
            if self._phase is _Phase.LIVE:
                self.push(delivery)

    def _keep(self, delivery: Delivery) -> None:
        if self._is_overtaken:
            return
        self._kept.append(delivery)
        self._kept_events += len(delivery.pieces)
        self._kept_bytes += delivery.size
        limits = self._edge.limits
        if self._kept_events > limits.buffer_events or self._kept_bytes > limits.buffer_bytes:
            self._drop_kept()
            self._is_overtaken = True

    def _drop_kept(self) -> None:
        self._kept = []
        self._kept_events = self._kept_bytes = 0

    def _refuse_slow(self, delivery: Delivery) -> None:
        self._edge.meters.count("posthouse_relay_slow_readers_total")
        events = self._outbox.unsent_events + len(delivery.pieces)
        self.close(error("reader_too_slow", events=events, bytes=self._outbox.unsent_bytes + delivery.size))
