"""A reader session: a cursor over one reader's queue, on one connection.

Behind the tail it reads pages; at the tail it sends what was just committed, from memory: one path, so nothing
overtakes and nothing is sent twice. At most `window` deliveries are unconfirmed; a full window or a slow peer puts
the cursor behind. A second cursor carries confirmations to the sender; a ping behind each batch proves that it was
read, and only then its rows go. The time of the last progress decides when a reader counts as stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import DELIVERY_BATCH
from posthouse.relay.accept.authorize import Meshes, Right
from posthouse.relay.accept.submission import Confirmed
from posthouse.relay.store.delivery_protocol import SessionReads
from posthouse.relay.wire.delivery_rows import ConfirmationPage, DeliveryPage


class Peer(Protocol):
    """One connection, whatever its wire."""

    #: what stands between commands that go out together
    separator: bytes

    def deliver(self, text: bytes, count: int) -> None:
        """Send commands, given as one text or joined by the separator; must not wait."""
        ...

    def tell(self, frame: bytes) -> None:
        """Send a frame that is ready for the wire and shared with others."""
        ...

    def has_room(self, size: int, count: int) -> bool:
        """Tell whether so many more messages may be written without waiting."""
        ...

    async def drain(self) -> None:
        """Wait until what was written is taken."""
        ...

    @property
    def taken_bytes(self) -> int:
        """How many bytes the peer has taken so far, as long as some are left; else a number that stands still."""
        ...

    def ping(self, on_pong: Callable[[], None]) -> None:
        """Send a ping; `on_pong` is called once the peer has read everything before it."""
        ...

    def end(self, code: int, reason: str) -> None:
        """Close the connection."""
        ...


class SessionHost(Protocol):
    """What a session needs of the registry that opened it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def reads(self) -> SessionReads: ...

    async def settled(self, name: tuple[str, str]) -> None: ...

    async def introduce(self, mailbox: ReaderSession) -> None: ...

    async def tell_waiting(self, mailbox: ReaderSession) -> bool: ...

    async def read(self, mailbox: ReaderSession, after: int, limit: int) -> DeliveryPage: ...

    def may_read(self, mailbox: ReaderSession) -> bool: ...

    def note_sent(self, mailbox: ReaderSession, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None: ...

    def note_read(self, mailbox: ReaderSession, seqs: Sequence[int]) -> None: ...

    def note_flushed(self, elapsed_ns: int) -> None: ...

    def forget_told(self, name: tuple[str, str], through_seq: int) -> None: ...


class InFlight:
    """The rows in flight, and when something last happened to them; times are boot time."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._seqs: dict[int, None] = {}
        self._progress_ns = 0

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def room(self) -> int:
        """How many more rows may be sent."""
        return self.window - len(self._seqs)

    @property
    def seqs(self) -> list[int]:
        return list(self._seqs)

    @property
    def oldest(self) -> int | None:
        """The row that was sent first."""
        return next(iter(self._seqs), None)

    def add(self, seqs: Iterable[int], now_ns: int) -> None:
        """Note rows as sent."""
        if not self._seqs:
            self._progress_ns = now_ns
        self._seqs.update(dict.fromkeys(seqs))

    def land(self, seqs: Iterable[int], now_ns: int) -> bool:
        """Take rows out that have ended; return whether one of them was in flight."""
        before = len(self._seqs)
        for seq in seqs:
            self._seqs.pop(seq, None)
        if len(self._seqs) == before:
            return False
        self._progress_ns = now_ns
        return True

    def touch(self, now_ns: int) -> None:
        """Count something else as progress."""
        self._progress_ns = now_ns

    def stuck_ns(self, now_ns: int) -> int:
        """Return for how long nothing has happened while rows were in flight."""
        return now_ns - self._progress_ns if self._seqs else 0


MAX_UNANSWERED = 8  # batches
_BATCH = 50
ReadConfirmations = Callable[[int, int], Awaitable[ConfirmationPage]]


class ConfirmationFeed:
    """What one open mailbox tells its node about its own messages."""

    def __init__(
        self, peer: Peer, read: ReadConfirmations, forget: Callable[[int], None], wake: Callable[[], None]
    ) -> None:
        self._peer = peer
        self._read = read
        self._forget = forget
        self._wake = wake
        self._seq = 0
        self._unanswered = 0
        self._is_at_tail = False
        self._is_passed = False
        self._is_closed = False

    @property
    def is_behind(self) -> bool:
        """Whether something waits, or is on its way."""
        return not self._is_at_tail or self._unanswered > 0

    def offer(self, news: Sequence[Confirmed]) -> None:
        """Take confirmations that were just committed, in order."""
        fresh = [each for each in news if each.seq > self._seq]
        size = sum(len(each.text) for each in fresh)
        if not self._is_at_tail:
            self._is_passed = True
        elif fresh and self._unanswered < MAX_UNANSWERED and self._peer.has_room(size, len(fresh)):
            self._send(self._peer.separator.join([each.text for each in fresh]), len(fresh), fresh[-1].seq)
        elif fresh:
            self._is_at_tail = False
            self._wake()

    async def catch_up(self) -> None:
        """Send what waits, as far as pings are answered."""
        while self._may_send():
            self._is_passed = False
            page = await self._read(self._seq, _BATCH)
            await self._peer.drain()
            if not self._may_send():
                return
            if page.size:
                self._send(page.text, page.size, page.through_seq)
            elif not self._is_passed:
                self._is_at_tail = True

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True

    def _may_send(self) -> bool:
        return not self._is_closed and not self._is_at_tail and self._unanswered < MAX_UNANSWERED

    def _send(self, text: bytes, count: int, through_seq: int) -> None:
        self._seq = through_seq
        self._unanswered += 1
        self._peer.deliver(text, count)
        self._peer.ping(lambda: self._answered(through_seq))

    def _answered(self, through_seq: int) -> None:
        self._unanswered -= 1
        self._forget(through_seq)
        if not self._is_at_tail:
            self._wake()


_GATHER_S = 0.002  # a moment for more confirmations, so that a page is worth its read


class Offer(NamedTuple):
    """A message that was just committed, as it goes to every reader at the tail."""

    seq: int
    id: str
    #: the DELIVER command, or whatever the reader's wire has for it
    text: bytes
    #: whether nobody confirms it: then it leaves once it was provably read
    is_leaving: bool = False


class ReaderSession:
    """One RECEIVE on one connection."""

    def __init__(
        self, mailboxes: SessionHost, peer: Peer, mesh: str, node: str, window: int, instance: str | None = None
    ) -> None:
        self.mesh = mesh
        self.node = node
        self.instance = instance
        self.peer = peer
        #: where its rows are read
        self.reads: SessionReads = mailboxes.reads
        self.flight = InFlight(window)
        #: whether its ROSTER was sent: only then it hears of others
        self.is_introduced = False
        self.is_closed = False
        self._mailboxes = mailboxes
        self._position = 0
        self._is_at_tail = False
        self._is_passed = False
        #: rows that ended while a page was read
        self._ended_meanwhile: set[int] | None = None
        self._has_work = asyncio.Event()
        self._taken_bytes = peer.taken_bytes
        self._opened_ns = mailboxes.clock.boot_ns()
        self._had_backlog = False
        self.told = ConfirmationFeed(peer, self._read_told, self._forget_told, self._has_work.set)

    @property
    def name(self) -> tuple[str, str]:
        return self.mesh, self.node

    @property
    def is_behind(self) -> bool:
        """Whether something waits that could be sent now."""
        return (not self._is_at_tail and self.flight.room > 0) or self.told.is_behind

    async def run(self) -> None:
        """Send what waits and what comes, until the mailbox is closed."""
        await self._mailboxes.settled(self.name)
        self._had_backlog = await self._begin()
        self._has_work.set()
        while not self.is_closed:
            await self._has_work.wait()
            self._has_work.clear()
            await self.told.catch_up()
            await self._catch_up()

    def missing_right(self, meshes: Meshes) -> PosthouseError | None:
        """Return why the reader may not go on, or None when it may."""
        return meshes.missing(self.node, self.mesh, Right.READ)

    def close(self) -> None:
        """Send nothing more; called by the mailboxes."""
        self.is_closed = True
        self.told.close()
        self._has_work.set()

    def offer(self, offers: Sequence[Offer]) -> None:
        """Take messages that were just committed for this reader, in order."""
        if not self._is_at_tail:
            self._is_passed = True
            return
        fresh = [each for each in offers if each.seq > self._position]
        sendable = fresh[: self.flight.room]
        if sendable and not self.peer.has_room(sum(len(each.text) for each in sendable), len(sendable)):
            sendable = []
        for start in range(0, len(sendable), DELIVERY_BATCH):
            self._send_fresh(sendable[start : start + DELIVERY_BATCH])
        if len(sendable) < len(fresh):
            self._fall_behind()

    def tell(self, news: Sequence[Confirmed]) -> None:
        """Take confirmations of this node's own messages that were just committed."""
        self.told.offer(news)

    def land(self, seqs: Sequence[int]) -> None:
        """Take rows out of flight that have ended, however they did."""
        if self._ended_meanwhile is not None:
            self._ended_meanwhile.update(seqs)
        if self.flight.land(seqs, self._mailboxes.clock.boot_ns()) and not self._is_at_tail:
            self._has_work.set()

    def reopen(self) -> None:
        """Look again: rows were put at the tail of the queue."""
        self._is_passed = True
        if self._is_at_tail:
            self._fall_behind()

    def is_stuck(self, timeout_ns: int) -> bool:
        """Tell whether rows have been in flight without any progress for longer than a time."""
        now_ns, taken = self._mailboxes.clock.boot_ns(), self.peer.taken_bytes
        if taken != self._taken_bytes:  # slowly, but it reads
            self._taken_bytes = taken
            self.flight.touch(now_ns)
        return self.flight.stuck_ns(now_ns) > timeout_ns

    async def _begin(self) -> bool:
        """Send what comes before all messages; return whether some wait."""
        await self._mailboxes.introduce(self)
        return await self._mailboxes.tell_waiting(self)

    async def _catch_up(self) -> None:
        """Send pages until the tail is reached or the window is full."""
        while not self.is_closed and not self._is_at_tail and self.flight.room > 0:
            if 0 < self.flight.room < min(DELIVERY_BATCH, self.flight.window) and len(self.flight):
                await asyncio.sleep(_GATHER_S)
            limit = min(DELIVERY_BATCH, self.flight.room)
            page = await self._read(limit)
            if not self._mailboxes.may_read(self):
                return
            if page.size:
                self._send_page(page)
            self._ended_meanwhile = None
            if page.size < limit and not self._is_passed:
                self._reach_tail()

    async def _read(self, limit: int) -> DeliveryPage:
        self._is_passed = False
        self._ended_meanwhile = set()
        page = await self._mailboxes.read(self, self._position, limit)
        await self.peer.drain()
        return page

    def _send_page(self, page: DeliveryPage) -> None:
        self._position = page.positions[-1]
        ended = self._ended_meanwhile
        seqs = [seq for seq in page.seqs if seq not in ended] if ended else page.seqs
        self.flight.add(seqs, self._mailboxes.clock.boot_ns())
        self.peer.deliver(page.text, page.size)
        self._mailboxes.note_sent(self, page.seqs, was_stored=True, record_body=page.record_body)
        if page.leaving:
            self._await_reading(page.leaving)

    def _send_fresh(self, offers: Sequence[Offer]) -> None:
        self._position = offers[-1].seq
        seqs = [each.seq for each in offers]
        self.flight.add(seqs, self._mailboxes.clock.boot_ns())
        self.peer.deliver(self.peer.separator.join([each.text for each in offers]), len(offers))
        self._mailboxes.note_sent(self, seqs, was_stored=False, record_body=_fresh_body(offers))
        if leaving := [each.seq for each in offers if each.is_leaving]:
            self._await_reading(leaving)

    def _await_reading(self, seqs: Sequence[int]) -> None:
        """Let rows leave that nobody confirms, once the peer has answered a ping behind them."""
        self.peer.ping(lambda: self._mailboxes.note_read(self, seqs))

    def _reach_tail(self) -> None:
        self._is_at_tail = True
        if self._had_backlog:
            self._had_backlog = False
            self._mailboxes.note_flushed(self._mailboxes.clock.boot_ns() - self._opened_ns)

    def _fall_behind(self) -> None:
        self._is_at_tail = False
        self._has_work.set()

    async def _read_told(self, after_seq: int, limit: int) -> ConfirmationPage:
        return await self.reads.confirmations(self.mesh, self.node, after_seq, limit)

    def _forget_told(self, through_seq: int) -> None:
        self._mailboxes.forget_told(self.name, through_seq)


def _fresh_body(offers: Sequence[Offer]) -> str:
    ids = '","'.join(each.id for each in offers)
    count = len(offers)
    return f'{{"ids":["{ids}"],"was_stored":[{_join("false", count)}],"attempts":[{_join("1", count)}]}}'


def _join(word: str, count: int) -> str:
    return ",".join([word] * count)
