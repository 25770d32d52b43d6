"""All open reader sessions of a relay: they get the effects of each commit, and defer their own writes.

Called on the event loop with what each transaction did, in commit order. Deferred writes (sent, read, attempt
counted) are applied in order, in the background, batched per event-loop iteration; only the next session of the
same node waits for them. A store without room makes them wait for a retry, within a bound; losing one costs a
reader at most a count of attempts.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient
from posthouse.relay.accept.authorize import Meshes
from posthouse.relay.accept.submission import CommitEffects, Confirmed
from posthouse.relay.messages.presence import MAX_PROFILES, PresenceTracker, roster, statuses
from posthouse.relay.messages.reader_session import Offer, ReaderSession
from posthouse.relay.messages.settings import ConnectionPolicy, DeliverySettings
from posthouse.relay.store.delivery_protocol import DeliveryReads
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.delivery_rows import ClosedDeliveries, DeliveryPage
from posthouse.relay.wire.frames import command_text

log = structlog.get_logger(__name__)
Name = tuple[str, str]
Then = Callable[[Any], None]
_MAX_DEFERRED = 10_000  # debts that wait for a store without room


class _DeferredWrite(NamedTuple):
    name: Name
    work: Callable[[Unit], Any]
    then: Then | None


class _DeferredBatch:
    """What one turn of the loop owes."""

    __slots__ = ("debts", "is_over")

    def __init__(self) -> None:
        self.debts: list[_DeferredWrite] = []
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class DeferredWrites:
    """Writes that are on their way or wait for their retry."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._turn: _DeferredBatch | None = None
        self._running: dict[Name, dict[_DeferredBatch, None]] = {}
        self._refused: deque[_DeferredWrite] = deque(maxlen=_MAX_DEFERRED)

    def write(self, name: Name, work: Callable[[Unit], Any], then: Then | None = None) -> None:
        """Have work done by the writer; `then` is called with its result after the commit."""
        turn = self._turn
        if turn is None:
            turn = self._turn = _DeferredBatch()
            asyncio.get_running_loop().call_soon(self._hand_over)
        turn.debts.append(_DeferredWrite(name, work, then))
        self._running.setdefault(name, {})[turn] = None

    async def settled(self, name: Name) -> None:
        """Wait until what is owed for a name is committed, or refused."""
        while turns := self._running.get(name):
            await asyncio.wait([turn.is_over for turn in turns])

    async def drain(self) -> None:
        """Wait until everything that is owed is committed, or refused."""
        while self._running:
            await asyncio.wait([turn.is_over for turns in self._running.values() for turn in turns])

    def retry(self) -> None:
        """Try again what was refused."""
        refused = list(self._refused)
        self._refused.clear()
        for debt in refused:
            self.write(*debt)

    def _hand_over(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        works = [debt.work for debt in turn.debts]
        try:
            future = self._store.submit(lambda unit: [work(unit) for work in works])
        except PosthouseError as failure:
            self._fail(turn, failure)
        else:
            future.add_done_callback(partial(self._written, turn))

    def _written(self, turn: _DeferredBatch, future: asyncio.Future[list[Any]]) -> None:
        failure = future.exception()
        if failure is not None:
            self._fail(turn, failure)
            return
        self._finish(turn)
        for debt, result in zip(turn.debts, future.result(), strict=True):
            if debt.then is not None:
                debt.then(result)

    def _fail(self, turn: _DeferredBatch, failure: BaseException) -> None:
        if isinstance(failure, Transient):
            self._refused.extend(turn.debts)
        elif isinstance(failure, PosthouseError):  # the store is closed or failed: nothing can be owed to it any more
            log.warning("deliveries_not_noted", reason=str(failure))
        else:
            log.error("deliveries_not_noted", reason=repr(failure), exc_info=failure)
        self._finish(turn)

    def _finish(self, turn: _DeferredBatch) -> None:
        for debt in turn.debts:
            turns = self._running.get(debt.name)
            if turns is not None:
                turns.pop(turn, None)
                if not turns:
                    del self._running[debt.name]
        turn.is_over.set_result(None)


REPLACED = "replaced_by_newer_connection"
CONFIRM_TIMEOUT = "confirm_timeout"
CODE_REPLACED = 4003
CODE_CONFIRM_TIMEOUT = 4008
CODE_SAME_INSTANCE = 1000
CODE_POLICY = 1008


class SessionEnd(enum.Enum):
    """Why a mailbox closed: what counts as an attempt depends on it."""

    #: no progress: counts for every row in flight
    TIMEOUT = "timeout"
    #: whatever else ends a connection: counts for the oldest row in flight
    LOST = "lost"
    #: a newer connection of the same node, or the relay stops: counts for nothing
    HARMLESS = "harmless"


class ReaderSessions:
    """Open mailboxes by mesh and node."""

    def __init__(self, store: RelayStore, meshes: Meshes, clock: Clock, settings: DeliverySettings) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self._meshes = meshes
        self._open: dict[Name, list[ReaderSession]] = {}
        self._owed = DeferredWrites(store)
        self._presences = PresenceTracker()
        #: seconds each backlog took from RECEIVE to the tail; taken by whoever shows metrics
        self.on_flushed: Callable[[float], None] = lambda _seconds: None
        #: told how many rows were sent, and whether from the queue
        self.on_sent: Callable[[int, bool], None] = lambda _count, _was_stored: None
        #: told how many rows ended, and in which state
        self.on_closed: Callable[[str, int], None] = lambda _state, _count: None

    @property
    def reads(self) -> DeliveryReads:
        return self.store.deliveries

    def open(self, mailbox: ReaderSession) -> None:
        """Take a mailbox in; under prefer_newest the older ones of its node are closed."""
        others = self._open.setdefault(mailbox.name, [])
        is_first = not others
        others.append(mailbox)
        self._presences.add(mailbox, is_first=is_first)
        if self.settings.policy is ConnectionPolicy.PREFER_NEWEST:
            for older in others[:-1]:
                self._replace(older, mailbox)

    def close(self, mailbox: ReaderSession, end: SessionEnd) -> None:
        """Forget a mailbox whose connection has ended, and count the attempt."""
        if mailbox.is_closed:
            return
        mailbox.close()
        others = self._open[mailbox.name]
        others.remove(mailbox)
        if not others:
            del self._open[mailbox.name]
        self._presences.remove(mailbox, is_last=not others)
        self._count_attempts(mailbox, end)

    def apply_effects(self, mail: CommitEffects) -> None:
        """Carry what one transaction did to the mailboxes it concerns."""
        offers: dict[Name, list[Offer]] = {}
        for opening in mail.openings:
            present = [(opening.mesh, node) for node in opening.readers if (opening.mesh, node) in self._open]
            if present:
                offer = Offer(opening.seq, opening.id, _deliver_text(opening.seq, opening.raw))
                for name in present:
                    offers.setdefault(name, []).append(offer)
        for name, given in offers.items():
            self.offer(name, given)
        for closed in mail.closed:
            self.apply_closed(closed)
        self._take_confirmed(mail.confirmed)

    def offer(self, name: Name, offers: Sequence[Offer]) -> None:
        """Give messages that were just committed to the mailboxes of a reader, in order."""
        for mailbox in self._open.get(name, ()):
            if self.may_read(mailbox):
                mailbox.offer(offers)

    def apply_closed(self, closed: ClosedDeliveries) -> None:
        """Tell the mailboxes of a reader that rows have ended."""
        if closed.state:
            self.on_closed(closed.state, len(closed.seqs))
        for mailbox in self._open.get((closed.mesh, closed.node), ()):
            mailbox.land(closed.seqs)

    def apply_reopened(self, mesh: str, node: str) -> None:
        """Tell the mailboxes of a reader that rows were opened again."""
        for mailbox in self._open.get((mesh, node), ()):
            mailbox.reopen()

    def may_read(self, mailbox: ReaderSession) -> bool:
        """Tell whether a mailbox may go on; one whose node lost its right is ended."""
        if mailbox.is_closed:
            return False
        refusal = mailbox.missing_right(self._meshes)
        if refusal is None:
            return True
        mailbox.peer.end(CODE_POLICY, refusal.code)
        return False

    async def introduce(self, mailbox: ReaderSession) -> None:
        """Send the ROSTER; from then on the mailbox hears of others."""
        mesh = self._meshes.find(mailbox.mesh)
        nodes = [*mesh.members, *self._presences.online(mailbox.mesh)][:MAX_PROFILES]
        profiles = await self.reads.profiles(mailbox.mesh, list(dict.fromkeys(nodes)), self.clock.wall_ns())
        status = statuses(profiles)
        if not mailbox.is_closed:
            entries = roster(mesh, self._presences.online(mailbox.mesh), status)
            mailbox.peer.deliver(command_text("ROSTER", mailbox.mesh, entries), 1)
            mailbox.is_introduced = True

    async def count_waiting(self, mailbox: ReaderSession) -> int:
        """Return how many messages wait for the reader of a mailbox."""
        return await self.reads.waiting(mailbox.mesh, mailbox.node, self._opened_since_ns())

    async def tell_waiting(self, mailbox: ReaderSession) -> bool:
        """Send QUEUE_STATUS when something waits; return whether it does."""
        count = await self.count_waiting(mailbox)
        if count and not mailbox.is_closed:
            mailbox.peer.deliver(command_text("QUEUE_STATUS", count), 1)
        return count > 0

    async def read(self, mailbox: ReaderSession, after: int, limit: int) -> DeliveryPage:
        """Return the next rows of a mailbox."""
        if len(self._open.get(mailbox.name, ())) > 1:
            await self.settled(mailbox.name)  # what another mailbox just sent must be seen as sent
        now_ns = self.clock.wall_ns()
        return await mailbox.reads.page(*mailbox.name, after, self._opened_since_ns(), now_ns, limit)

    def note_sent(self, mailbox: ReaderSession, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        """Have it written that rows were sent; nobody waits for it."""
        mesh, node = mailbox.name
        self.on_sent(len(seqs), was_stored)
        self._owed.write(
            mailbox.name,
            lambda unit: unit.deliveries.mark_sent(mesh, node, seqs, was_stored=was_stored, record_body=record_body),
        )

    def note_read(self, mailbox: ReaderSession, seqs: Sequence[int]) -> None:
        """Have rows closed that nobody confirms and that were provably read."""
        mesh, node = mailbox.name
        self._owed.write(mailbox.name, lambda unit: unit.deliveries.note_read(mesh, node, seqs), self.apply_closed)

    def forget_told(self, name: Name, through_seq: int) -> None:
        """Have confirmations dropped that their sender has read."""
        self._owed.write(name, lambda unit: unit.deliveries.forget_told(*name, through_seq))

    def note_flushed(self, elapsed_ns: int) -> None:
        """Count the time a backlog took."""
        self.on_flushed(elapsed_ns / 1e9)

    async def settled(self, name: Name) -> None:
        """Wait until everything former mailboxes of a node owe is written."""
        await self._owed.settled(name)

    def check_sessions(self) -> None:
        """End the mailboxes that are stuck, and try again what could not be written; called every now and then."""
        timeout_ns = round(self.settings.confirm_timeout_s * 1e9)
        for mailbox in [each for boxes in self._open.values() for each in boxes]:
            if mailbox.is_stuck(timeout_ns):
                mailbox.peer.end(CODE_CONFIRM_TIMEOUT, CONFIRM_TIMEOUT)
        self._owed.retry()

    def statistics(self) -> dict[str, int]:
        """Return how many mailboxes are open, how many of them are behind, and how many rows are in flight."""
        boxes = [each for same in self._open.values() for each in same]
        in_flight = sum(len(each.flight) for each in boxes)
        return {"open": len(boxes), "behind": sum(each.is_behind for each in boxes), "in_flight": in_flight}

    async def drain(self) -> None:
        """Wait until everything owed is written; before the store closes."""
        await self._owed.drain()

    def _take_confirmed(self, news: Sequence[Confirmed]) -> None:
        told: dict[Name, list[Confirmed]] = {}
        for each in news:
            self.on_closed("confirmed", len(each.seqs))
            for mailbox in self._open.get((each.mesh, each.reader), ()):
                mailbox.land(each.seqs)
            if (each.mesh, each.sender) in self._open:
                told.setdefault((each.mesh, each.sender), []).append(each)
        for name, given in told.items():
            for mailbox in self._open[name]:
                mailbox.tell(given)

    def _replace(self, older: ReaderSession, newer: ReaderSession) -> None:
        is_same = older.instance is not None and older.instance == newer.instance
        older.peer.end(CODE_SAME_INSTANCE if is_same else CODE_REPLACED, REPLACED)
        self.close(older, SessionEnd.HARMLESS)

    def _count_attempts(self, mailbox: ReaderSession, end: SessionEnd) -> None:
        seqs = mailbox.flight.seqs
        if end is SessionEnd.HARMLESS or not seqs:
            return
        counted = seqs if end is SessionEnd.TIMEOUT else seqs[:1]
        mesh, node = mailbox.name
        self._owed.write(
            mailbox.name,
            lambda unit: unit.deliveries.count_attempts(mesh, node, counted, is_timeout=end is SessionEnd.TIMEOUT),
            self.apply_closed,
        )

    def _opened_since_ns(self) -> int:
        return self.clock.wall_ns() - self.settings.queue_ttl_ns


def _deliver_text(seq: int, raw: bytes) -> bytes:
    return b'["DELIVER",%d,%b,{"was_stored":false,"attempt":1}]' % (seq, raw)
