"""A reader session: a cursor over one reader's queue, on one connection.

A session has two cursors. One carries messages: at most `window` deliveries are unconfirmed, and the time of the last
progress decides when a reader counts as stuck. The other carries confirmations to the sender: a ping after each batch
proves that the sender has read it, and only then does the store drop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from posthouse.model.clock import Clock
from posthouse.model.event import Event
from posthouse.model.limits import DELIVERY_BATCH, FLAP_ATTEMPTS_MAX, TIMEOUT_ATTEMPTS_MAX
from posthouse.relay.accept.submission import Confirmed
from posthouse.relay.messages.tail_cursor import Peer, TailCursor
from posthouse.relay.store.delivery_protocol import SessionReads
from posthouse.relay.wire.delivery_rows import AttemptBounds, ConfirmationPage, DeliveryPage
from posthouse.relay.wire.frames import Flag
from posthouse.tracing import TRACEPARENT, Role, Span, Tracer, valid_traceparent

_encode = msgspec.json.Encoder().encode
_GATHER_S = 0.002  # a moment for more confirmations, so that a page is worth its read
_CONFIRMATIONS_PER_PAGE = 50
_ROOMY = 10_000  # confirmations sent at once: more than one commit brings
MAX_UNANSWERED = 8  # batches of confirmations without a pong


class SessionHost(Protocol):
    """The part of ReaderSessions that a session uses: reads, deferred writes and the roster."""

    @property
    def clock(self) -> Clock: ...

    @property
    def reads(self) -> SessionReads: ...

    async def prepare(self, session: ReaderSession) -> None: ...

    async def send_greeting(self, session: ReaderSession) -> bool: ...

    async def send_gaps(self, session: ReaderSession) -> None: ...

    async def read_page(self, session: ReaderSession, after: int, limit: int) -> DeliveryPage: ...

    async def ended_elsewhere(self, session: ReaderSession) -> list[int]: ...

    def may_read(self, session: ReaderSession) -> bool: ...

    def note_sent(self, session: ReaderSession, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None: ...

    def note_read(self, session: ReaderSession, seqs: Sequence[int]) -> None: ...

    def note_flushed(self, elapsed_ns: int) -> None: ...

    def drop_confirmations(self, name: tuple[str, str], through_seq: int) -> None: ...


class SessionPeer(Peer, Protocol):
    """A connection that reader sessions send to."""

    def start_session(self, session: ReaderSession) -> None:
        """Run a session in a task, because it has something to send."""
        ...


class InFlight:
    """The deliveries that were sent and not confirmed, and when something last happened to them, in boot time."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._seqs: dict[int, None] = {}
        self._progress_ns = 0

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def room(self) -> int:
        """How many more deliveries may be sent."""
        return self.window - len(self._seqs)

    @property
    def seqs(self) -> list[int]:
        return list(self._seqs)

    @property
    def oldest(self) -> int | None:
        """The delivery that was sent first."""
        return next(iter(self._seqs), None)

    def add(self, seqs: Iterable[int], now_ns: int) -> None:
        """Add deliveries that were sent."""
        if not self._seqs:
            self._progress_ns = now_ns
        self._seqs.update(dict.fromkeys(seqs))

    def settle(self, seqs: Iterable[int], now_ns: int) -> bool:
        """Remove deliveries that have ended; return True if one of them was in flight."""
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
        """Return for how long nothing has happened while deliveries were in flight."""
        return now_ns - self._progress_ns if self._seqs else 0


_TAG = f'"{TRACEPARENT}"'.encode()
#: failure of an attempt whose connection ended before the reader answered
CONNECTION_ENDED = "connection_ended"
#: of DELIVER commands: verb, seq, event, about the attempt
_decode_commands = msgspec.json.Decoder(list[tuple[str, int, Event, dict[str, Any]]]).decode


class DeliverySpans:
    """The spans of one session: its attempts to deliver traced messages, until they end.

    Only while the relay exports traces, and only for messages whose senders trace them: every other delivery costs a
    search in the bytes that are sent anyway.
    """

    def __init__(self, tracer: Tracer, mesh: str, reader: str) -> None:
        self._tracer = tracer
        self._about: dict[str, str | int] = {"posthouse.mesh": mesh, "posthouse.reader": reader}
        self._open: dict[int, Span] = {}

    def begin(self, seqs: Sequence[int], commands: bytes) -> None:
        """Begin the spans of deliveries that are sent now, in DELIVER commands joined by commas."""
        if _TAG not in commands:
            return
        for _verb, seq, event, attempt in _decode_commands(b"[%b]" % commands):
            parent = valid_traceparent(event.value(TRACEPARENT))
            if parent is not None and seq in seqs:
                about = self._about | {"messaging.message.id": event.id, "posthouse.attempt": attempt["attempt"]}
                self._open[seq] = self._tracer.start("deliver", Role.SENDER, parent, about)

    def end(self, seqs: Iterable[int], failure: str | None = None) -> None:
        """End the spans of deliveries that have ended; `failure` is the state of those that were not confirmed."""
        for seq in seqs:
            if (span := self._open.pop(seq, None)) is not None:
                span.end(failure)

    def close(self) -> None:
        """End all remaining spans, because the connection has ended."""
        self.end(list(self._open), CONNECTION_ENDED)


class Offer(NamedTuple):
    """A message that was just committed, as every reader at the tail gets it."""

    seq: int
    id: str
    #: the DELIVER command, or the frame of the reader's wire
    text: bytes
    #: readers do not confirm it: it is closed once it was provably read
    needs_no_confirm: bool = False


class ConfirmationCursor(TailCursor[Confirmed, ConfirmationPage]):
    """Carries confirmations of a node's own messages to the node."""

    page_limit = _CONFIRMATIONS_PER_PAGE

    def __init__(self, session: ReaderSession) -> None:
        super().__init__(session.peer)
        self._session = session
        self._unanswered = 0

    @property
    def is_behind(self) -> bool:
        """Whether confirmations wait, or are not provably read."""
        return not self.is_at_tail or self._unanswered > 0

    @property
    def room(self) -> int:
        return _ROOMY if self._unanswered < MAX_UNANSWERED else 0

    def wake(self) -> None:
        self._session.wake()

    async def read_page(self, limit: int) -> ConfirmationPage:
        return await self._session.reads.confirmations(*self._session.name, self.position, limit)

    def may_continue(self) -> bool:
        return not self.is_closed and self.room > 0

    def send_page(self, page: ConfirmationPage) -> None:
        if page.size:
            self._send(page.text, page.size, page.through_seq)

    def send_fresh(self, fresh: Sequence[Confirmed]) -> None:
        self._send(self.peer.separator.join([each.text for each in fresh]), len(fresh), fresh[-1].seq)

    def _send(self, text: bytes, count: int, through_seq: int) -> None:
        self.position = through_seq
        self._unanswered += 1
        self.peer.deliver(text, count)
        self.peer.ping(lambda: self._on_read(through_seq))

    def _on_read(self, through_seq: int) -> None:
        self._unanswered -= 1
        self._session.host.drop_confirmations(self._session.name, through_seq)
        if not self.is_at_tail:
            self.wake()


class ReaderSession(TailCursor[Offer, DeliveryPage]):
    """One RECEIVE on one connection: the messages of a reader, and its confirmations."""

    page_limit = DELIVERY_BATCH
    #: whether the node must have the right to read the mesh all the time
    needs_mesh_right = True
    #: whether its messages are events that may carry a trace
    has_traces = True
    #: attempts after which a delivery is parked
    attempt_bounds = AttemptBounds(TIMEOUT_ATTEMPTS_MAX, FLAP_ATTEMPTS_MAX)

    def __init__(
        self, host: SessionHost, peer: SessionPeer, mesh: str, node: str, window: int, instance: str | None = None
    ) -> None:
        super().__init__(peer)
        self.peer: SessionPeer = peer
        self.host = host
        self.mesh = mesh
        self.node = node
        self.name = (mesh, node)
        self.instance = instance
        #: reads deliveries as the reader's wire wants them
        self.reads: SessionReads = host.reads
        self.in_flight = InFlight(window)
        #: whether its ROSTER was sent: only then it gets PRESENCE
        self.has_roster = False
        #: whether the queue may have had no room for messages of topics
        self.has_gap = True
        #: agents of the node that are online
        self.agents: tuple[str, ...] = ()
        self.confirmations = ConfirmationCursor(self)
        #: None: the relay does not export traces
        self.spans: DeliverySpans | None = None
        #: deliveries that ended while a page was read
        self._ended_meanwhile: set[int] | None = None
        #: another relay has closed deliveries of this reader
        self._must_check_flight = False
        self._has_begun = False
        self._has_work = False
        self._is_running = False
        self._is_idle = Flag()
        self._taken_bytes = peer.taken_bytes
        self._opened_ns = host.clock.boot_ns()
        self._had_backlog = False

    @property
    def is_behind(self) -> bool:
        """Whether something waits that could be sent now."""
        return (not self.is_at_tail and self.room > 0) or self.confirmations.is_behind

    @property
    def room(self) -> int:
        return self.in_flight.room

    async def run(self) -> None:
        """Send what waits, and end when nothing is left to do: a task that waits takes a kilobyte of an idle session.

        The first run opens the session.
        """
        if not self._has_begun:
            self._has_begun = True
            await self.host.prepare(self)
            self._had_backlog = await self._begin()
        while self._has_work and not self.is_closed:
            self._has_work = False
            if self._must_check_flight:
                self._must_check_flight = False
                self.settle(await self.host.ended_elsewhere(self))
            await self.confirmations.catch_up()
            await self.catch_up()
            if self.has_gap and self.is_at_tail:
                self.has_gap = False
                await self.host.send_gaps(self)
        self._is_running = False
        self._is_idle.set()

    def on_sent(self, seqs: Sequence[int], needs_no_confirm: Sequence[int]) -> None:
        """Note that deliveries were written to the peer."""

    def attempted(self, *, is_timeout: bool) -> list[int]:
        """Return the deliveries that count an attempt because the connection has ended."""
        seqs = self.in_flight.seqs
        return seqs if is_timeout else seqs[:1]

    async def idle(self) -> None:
        """Wait until the session has sent everything it can send now."""
        await self._is_idle.wait()

    def close(self) -> None:
        """Send nothing more; called by the host."""
        self.is_closed = self.confirmations.is_closed = True
        if self.spans is not None:
            self.spans.close()
        self.wake()

    def wake(self) -> None:
        self._has_work = True
        if not self._is_running and not self.is_closed:
            self._is_running = True
            self._is_idle.clear()
            self.peer.start_session(self)

    def settle(self, seqs: Sequence[int], failure: str | None = None) -> None:
        """Take deliveries out of flight that have ended; `failure` is the state of those that were not confirmed."""
        if self.spans is not None:
            self.spans.end(seqs, failure)
        if self._ended_meanwhile is not None:
            self._ended_meanwhile.update(seqs)
        if self.in_flight.settle(seqs, self.host.clock.boot_ns()) and not self.is_at_tail:
            self.wake()

    def check_in_flight(self) -> None:
        """Ask the store which deliveries in flight have ended, because another relay has closed some."""
        self._must_check_flight = True
        self.wake()

    def is_stuck(self, timeout_ns: int) -> bool:
        """Return True if deliveries have been in flight without any progress for longer than the timeout."""
        now_ns, taken = self.host.clock.boot_ns(), self.peer.taken_bytes
        if taken != self._taken_bytes:  # the peer reads, although slowly
            self._taken_bytes = taken
            self.in_flight.touch(now_ns)
        return self.in_flight.stuck_ns(now_ns) > timeout_ns

    async def wait_for_room(self) -> None:
        if 0 < self.room < min(DELIVERY_BATCH, self.in_flight.window) and len(self.in_flight):
            await asyncio.sleep(_GATHER_S)

    async def read_page(self, limit: int) -> DeliveryPage:
        while True:
            ended: set[int] = set()
            self._ended_meanwhile = ended
            page = await self.host.read_page(self, self.position, limit)
            if ended.isdisjoint(page.seqs):  # a reader that knows that one is confirmed must not get it again
                self._ended_meanwhile = None
                return page

    def may_continue(self) -> bool:
        return self.host.may_read(self)

    def send_page(self, page: DeliveryPage) -> None:
        if not page.size:
            return
        self.position = page.positions[-1]
        self._deliver(page.seqs, page.text, page.size)
        self.host.note_sent(self, page.seqs, was_stored=True, record_body=page.record_body)
        self.on_sent(page.seqs, page.needs_no_confirm)

    def send_fresh(self, fresh: Sequence[Offer]) -> None:
        for start in range(0, len(fresh), DELIVERY_BATCH):
            self._send_batch(fresh[start : start + DELIVERY_BATCH])

    def on_tail(self) -> None:
        if self._had_backlog:
            self._had_backlog = False
            self.host.note_flushed(self.host.clock.boot_ns() - self._opened_ns)

    async def _begin(self) -> bool:
        """Send the notices that precede all messages; return True if messages wait."""
        return await self.host.send_greeting(self)

    def _send_batch(self, offers: Sequence[Offer]) -> None:
        self.position, count = offers[-1].seq, len(offers)
        seqs = [each.seq for each in offers]
        needs_no_confirm = [each.seq for each in offers if each.needs_no_confirm]
        body = {"ids": [each.id for each in offers], "was_stored": [False] * count, "attempts": [1] * count}
        text = self.peer.separator.join([each.text for each in offers])
        self._deliver(seqs, text, count)
        self.host.note_sent(self, seqs, was_stored=False, record_body=_encode(body).decode())
        self.on_sent(seqs, needs_no_confirm)

    def _deliver(self, seqs: Sequence[int], text: bytes, count: int) -> None:
        self.in_flight.add(seqs, self.host.clock.boot_ns())
        if self.spans is not None:
            self.spans.begin(seqs, text)
        self.peer.deliver(text, count)
