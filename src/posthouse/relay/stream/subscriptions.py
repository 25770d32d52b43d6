"""Subscriptions on a stream: the commands REQ, COUNT and CLOSE, and the cursor of a REQ.

A subscription sends the stored matches, EOSE, then live ones: no gap, no duplicate, ascending commit order. It reads
pages until one reaches the end of the store, then joins the live index and buffers new commits, reads one more round of
pages up to seq S, and sends EOSE with S. If more is committed in the meantime than the buffer holds, it drops the
buffer and reads on in pages. No read is open while the socket is slow.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from posthouse.journal.cursor import parse_cursor
from posthouse.model.errors import PosthouseError, error
from posthouse.model.filters import Filter
from posthouse.model.limits import FILTERS_PER_SUBSCRIPTION, QUERY_MAX_LIMIT
from posthouse.relay.accept.mesh_registry import Right
from posthouse.relay.context import RelayContext
from posthouse.relay.filter_index import count_keys
from posthouse.relay.live import Delivery
from posthouse.relay.store.event_rows import StoredEvent
from posthouse.relay.stream.connection import Connection
from posthouse.relay.wire.edge_limits import EdgeLimits
from posthouse.relay.wire.frames import (
    EncodedEvent,
    SubscriptionFormat,
    WebSocketFormat,
    WriteBuffer,
    expect,
    read_filters,
    read_object,
    read_sub,
)


def count_values(filters: Sequence[Filter]) -> int:
    """Return the number of values in filters, or of the entries they make in the live index if that is more."""
    return sum([max(_count_conditions(each), count_keys(each)) for each in filters])


def check_filter_values(limits: EdgeLimits, values: int) -> None:
    """Raise subscriptions_exhausted if the filters of a connection have more values than are allowed."""
    if values > limits.filter_values_per_connection:
        raise error("subscriptions_exhausted", limit=limits.subscriptions_per_connection)


def _count_conditions(each: Filter) -> int:
    lists: list[Collection[object]] = [each.ids or (), each.authors or (), each.kinds or (), *each.tags.values()]
    return 1 + sum([len(values) for values in lists])


def reader_of(connection: Connection) -> str:
    """Return the node of this connection, or raise authentication_required."""
    if connection.node is None:
        raise error("authentication_required")
    return connection.node


class _Phase(enum.Enum):
    STORED = "stored"
    JOINING = "joining"
    LIVE = "live"
    CLOSED = "closed"


class Wanted(NamedTuple):
    """The selection of a subscription, and where it begins."""

    filters: Sequence[Filter]
    cursor: str | None = None
    #: only the newest so many stored events; None: all
    limit: int | None = None


class SubscriptionPeer(Protocol):
    """The connection that a subscription writes to."""

    @property
    def context(self) -> RelayContext: ...

    @property
    def write_buffer(self) -> WriteBuffer: ...

    @property
    def stored_events_lock(self) -> asyncio.Lock: ...


class Subscription:
    """The state of one subscription: a REQ on a WebSocket, or GET /v1/events/stream."""

    def __init__(
        self,
        peer: SubscriptionPeer,
        layout: SubscriptionFormat,
        node: str,
        wanted: Wanted,
        on_closed: Callable[[], None],
    ) -> None:
        self.node = node
        self.filters = wanted.filters
        self.filter_values = count_values(wanted.filters)
        self._layout = layout
        self._on_closed = on_closed
        self._stored_events_lock = peer.stored_events_lock
        self._write_buffer = peer.write_buffer
        self._context = peer.context
        #: the client's cursor; it counts until the first page was sent
        self._given = wanted.cursor
        #: all matches up to this seq were sent or need not be sent
        self._seq: int | None = None
        self._limit = wanted.limit
        self._phase = _Phase.STORED
        self._buffered: list[Delivery] = []
        self._buffered_events = 0
        self._buffered_bytes = 0
        self._has_overflowed = False

    async def run(self) -> None:
        """Send stored events, then go live; a failure closes the subscription and is reported."""
        try:
            async with self._stored_events_lock:
                if self._limit is None:
                    await self._send_all()
                else:
                    await self._send_newest(self._limit)
        except PosthouseError as failure:
            self.close(failure)

    def push(self, delivery: Delivery) -> None:
        """Buffer committed events while joining, else send them; a reader that is too slow is closed."""
        if self._phase is _Phase.JOINING:
            self._buffer(delivery)
            return
        # a page can read a commit before the loop is notified of it: those events were sent already
        fresh = self._unsent(delivery)
        if fresh is not None:
            self._push(fresh)

    def _unsent(self, delivery: Delivery) -> Delivery | None:
        first, sent = delivery.pieces[0].committed.seq, self._seq or 0
        return delivery if first is not None and first > sent else delivery.after(sent)

    def _push(self, delivery: Delivery) -> None:
        count = len(delivery.pieces)
        if not self._write_buffer.has_room(delivery.size, count):
            self._refuse_slow(delivery)
            return
        self._write_buffer.write(delivery.frame(self._layout), count)
        last = delivery.last_seq()
        if last is not None:
            self._seq = last

    def close(self, failure: PosthouseError | None = None) -> None:
        """End the subscription; a failure is sent to the client with the cursor to continue from."""
        if self._phase is _Phase.CLOSED:
            return
        self._phase = _Phase.CLOSED
        self._context.live.remove(self)
        self._drop_buffered()
        self._on_closed()
        if failure is not None:
            self._write_buffer.write(self._layout.closed(failure, self.cursor))

    def check_right(self, mesh: str) -> None:
        """End if a filter names a mesh that the node may no longer read; other filters check each event."""
        if any(each.mesh == mesh for each in self.filters):
            refusal = self._context.engine.meshes.authorization_error(self.node, mesh, Right.READ)
            if refusal is not None:
                self.close(refusal)

    @property
    def cursor(self) -> str | None:
        """The cursor after everything that was sent so far."""
        return self._given if self._seq is None else self._context.engine.cursor(self._seq)

    async def _send_all(self) -> None:
        while self._phase is not _Phase.CLOSED:
            await self._send_pages()
            if self._phase is _Phase.JOINING and not self._has_overflowed:
                self._go_live()
                return
            self._join()

    async def _send_pages(self) -> None:
        """Send all pages from the cursor to the end of the store."""
        while self._phase is not _Phase.CLOSED:
            await self._write_buffer.drain()
            page = await self._context.engine.query(
                self.node, self.filters, cursor=self.cursor, max_bytes=self._context.limits.stored_page_bytes
            )
            await self._send_events(page.events)
            self._seq = page.through_seq
            if page.is_end:
                return

    async def _send_newest(self, limit: int) -> None:
        """Send the newest `limit` matches, oldest first."""
        floor = await self._floor()
        self._join()
        # events published from here on are buffered, and the store has everything up to this seq
        head = self._context.live.head
        events, is_whole = await self._find_newest(limit, floor)
        if not is_whole:
            self._seq = events[-1].seq - 1
            await self._send_all()
            return
        await self._send_events(events[::-1])
        self._seq = max(head, floor, events[0].seq if events else 0)
        if self._has_overflowed:
            await self._send_all()
        elif self._phase is not _Phase.CLOSED:
            self._go_live()

    async def _find_newest(self, limit: int, floor: int) -> tuple[list[StoredEvent], bool]:
        """Return the newest matches above `floor`, newest first, and True if the list is complete.

        If they are too large to hold at once, only the oldest is returned: from there they are read again in pages.
        """
        engine = self._context.engine
        events: list[StoredEvent] = []
        cursor, found, size = None, 0, 0
        while found < limit:
            wanted, max_bytes = min(QUERY_MAX_LIMIT, limit - found), self._context.limits.stored_page_bytes
            page = await engine.query(
                self.node, self.filters, cursor=cursor, limit=wanted, order="desc", max_bytes=max_bytes
            )
            above = [event for event in page.events if event.seq > floor]
            events += above
            found += len(above)
            size += sum(len(event.raw) for event in above)
            if size > max_bytes:
                del events[:-1]
            if page.is_end or page.through_seq <= floor or len(above) < len(page.events):
                break
            cursor = engine.cursor(page.through_seq)
        return events, len(events) == found

    async def _floor(self) -> int:
        """Return the seq of the client's cursor, or 0 without one; raise if the cursor is not valid here."""
        if self._given is None:
            return 0
        await self._context.engine.query(self.node, self.filters, cursor=self._given, limit=1)
        return parse_cursor(self._given).seq

    async def _send_events(self, events: Sequence[StoredEvent]) -> None:
        held = sum([len(event.raw) for event in events])
        self._write_buffer.hold(held)
        try:
            await self._send_in_frames(events)
        finally:
            self._write_buffer.hold(-held)

    async def _send_in_frames(self, events: Sequence[StoredEvent]) -> None:
        frame: list[EncodedEvent] = []
        size = 0
        for event in events:
            encoded = EncodedEvent(event.raw, event.seq, is_suspect=event.is_suspect)
            if frame and size + len(encoded.tail) > self._context.limits.stored_frame_bytes:
                await self._send_frame(frame)
                frame, size = [], 0
            frame.append(encoded)
            size += len(encoded.tail)
        if frame:
            await self._send_frame(frame)

    async def _send_frame(self, events: Sequence[EncodedEvent]) -> None:
        await self._write_buffer.drain()
        if self._phase is _Phase.CLOSED:
            return
        self._write_buffer.write(self._layout.events(events), len(events))
        self._context.meters.count("posthouse_relay_stored_deliveries_total", by=len(events))

    def _join(self) -> None:
        if self._phase is _Phase.CLOSED:
            return
        self._drop_buffered()
        self._has_overflowed = False
        if self._phase is _Phase.STORED:
            self._phase = _Phase.JOINING
            self._context.live.add(self, self.filters)

    def _go_live(self) -> None:
        # nothing is awaited here, so no commit can happen between EOSE and the first live event
        buffered = self._buffered
        self._drop_buffered()
        self._phase = _Phase.LIVE
        self._write_buffer.write(self._layout.stored_end(self.cursor))
        for delivery in buffered:
            if self._phase is _Phase.LIVE:
                self.push(delivery)

    def _buffer(self, delivery: Delivery) -> None:
        if self._has_overflowed:
            return
        self._buffered.append(delivery)
        self._buffered_events += len(delivery.pieces)
        self._buffered_bytes += delivery.size
        self._write_buffer.hold(delivery.size)
        limits = self._context.limits
        if self._buffered_events > limits.buffer_events or self._buffered_bytes > limits.buffer_bytes:
            self._drop_buffered()
            self._has_overflowed = True

    def _drop_buffered(self) -> None:
        self._write_buffer.hold(-self._buffered_bytes)
        self._buffered = []
        self._buffered_events = self._buffered_bytes = 0

    def _refuse_slow(self, delivery: Delivery) -> None:
        self._context.meters.count("posthouse_relay_slow_readers_total")
        events = self._write_buffer.unsent_events + len(delivery.pieces)
        self.close(error("reader_too_slow", events=events, bytes=self._write_buffer.unsent_bytes + delivery.size))


_REQ_OPTIONS = frozenset({"cursor", "limit"})


def open_subscription(connection: Connection, arguments: Sequence[bytes]) -> None:
    """REQ: open a subscription."""
    expect(arguments, "REQ", '["REQ", sub, {cursor, limit}, filter...]', 2, 2 + FILTERS_PER_SUBSCRIPTION)
    sub = read_sub(arguments[0])
    try:
        _open_subscription(connection, sub, arguments)
    except PosthouseError as failure:
        connection.send("CLOSED", sub, failure.problem(), None)


def _open_subscription(connection: Connection, sub: str, arguments: Sequence[bytes]) -> None:
    node = reader_of(connection)
    limits = connection.context.limits
    options = read_object(arguments[1], _REQ_OPTIONS, "REQ")
    filters = read_filters(arguments[2:])
    if sub in connection.subscriptions:
        raise error("subscription_exists", sub=sub)
    wanted = Wanted(filters, _read_cursor(options), _read_limit(options))
    subscription = Subscription(connection, WebSocketFormat(sub), node, wanted, partial(connection.forget, sub))
    if len(connection.subscriptions) >= limits.subscriptions_per_connection:
        raise error("subscriptions_exhausted", limit=limits.subscriptions_per_connection)
    check_filter_values(limits, connection.filter_values + subscription.filter_values)
    connection.subscriptions[sub] = subscription
    connection.filter_values += subscription.filter_values
    connection.start(subscription.run())


def _read_cursor(options: dict[str, Any]) -> str | None:
    cursor = options.get("cursor")
    if cursor is not None and type(cursor) is not str:
        raise error("frame_malformed", reason="cursor is text, or absent")
    return cursor


def _read_limit(options: dict[str, Any]) -> int | None:
    limit = options.get("limit")
    if limit is not None and (type(limit) is not int or not 0 <= limit <= QUERY_MAX_LIMIT):
        raise error("frame_malformed", reason=f"limit is a number from 0 to {QUERY_MAX_LIMIT}, or absent")
    return limit


def count_events(connection: Connection, arguments: Sequence[bytes]) -> None:
    """COUNT: count stored events."""
    expect(arguments, "COUNT", '["COUNT", sub, filter]', 1, 1 + FILTERS_PER_SUBSCRIPTION)
    sub = read_sub(arguments[0])

    def refuse(failure: PosthouseError) -> None:
        connection.send("CLOSED", sub, failure.problem(), None)

    async def count() -> None:
        async with connection.stored_events_lock:  # after the stored events of earlier subscriptions
            number = await connection.context.engine.count(node, filters)
        connection.send("COUNT", sub, number)

    try:
        node, filters = reader_of(connection), read_filters(arguments[1:])
        connection.start_read(count, refuse)
    except PosthouseError as failure:
        refuse(failure)


def close_subscription(connection: Connection, arguments: Sequence[bytes]) -> None:
    """CLOSE: close a subscription."""
    expect(arguments, "CLOSE", '["CLOSE", sub]', 1, 1)
    sub = read_sub(arguments[0])
    subscription = connection.subscriptions.get(sub)
    if subscription is None:
        raise error("subscription_unknown", sub=sub)
    subscription.close()
