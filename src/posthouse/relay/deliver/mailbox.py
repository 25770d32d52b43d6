"""An open mailbox: a cursor over the reader's rows, on one connection.

Behind the tail it reads pages, at the tail it sends what was just committed from memory: one path, so nothing
overtakes and nothing is sent twice. A row that is committed while the cursor is behind is only noted: a page will hold
it. At most `window` rows are unconfirmed; a full window, or a peer that reads slowly, puts the cursor behind.

A row can end while the page that holds it is on its way; it is sent, but nothing waits for its confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from posthouse.model.errors import PosthouseError
from posthouse.model.limits import DELIVERY_BATCH
from posthouse.relay.deliver.flight import Flight
from posthouse.relay.deliver.interface import MailboxReads
from posthouse.relay.deliver.mail import Confirmed
from posthouse.relay.deliver.peer import Peer
from posthouse.relay.deliver.rows import ConfirmationPage, Page
from posthouse.relay.deliver.told import Told
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.meshes.rights import Right

if TYPE_CHECKING:
    from posthouse.relay.deliver.mailboxes import Mailboxes

_GATHER_S = 0.002  # a moment for more confirmations, so that a page is worth its read


class Offer(NamedTuple):
    """A message that was just committed, as it goes to every reader at the tail."""

    seq: int
    id: str
    #: the DELIVER command, or whatever the reader's wire has for it
    text: bytes
    #: whether nobody confirms it: then it leaves once it was provably read
    is_leaving: bool = False


class Mailbox:
    """One RECEIVE on one connection."""

    def __init__(
        self, mailboxes: Mailboxes, peer: Peer, mesh: str, node: str, window: int, instance: str | None = None
    ) -> None:
        self.mesh = mesh
        self.node = node
        self.instance = instance
        self.peer = peer
        #: where its rows are read
        self.reads: MailboxReads = mailboxes.store.deliveries
        self.flight = Flight(window)
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
        self.told = Told(peer, self._read_told, self._forget_told, self._has_work.set)

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

    async def _read(self, limit: int) -> Page:
        self._is_passed = False
        self._ended_meanwhile = set()
        page = await self._mailboxes.read(self, self._position, limit)
        await self.peer.drain()
        return page

    def _send_page(self, page: Page) -> None:
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
