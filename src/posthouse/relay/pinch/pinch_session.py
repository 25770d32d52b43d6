"""The reader session of a Pinch address: when delivery starts, which messages were read, and which to send again.

A message counts as read once a later pong arrives, or once a clean close arrives a round trip after it. It never sends
a read message again, because the agent may have stored it and would fail on a second copy. If the message stays
unconfirmed it is parked; a later confirm still counts. Everything else is sent again, at most twice without any
confirm. Only one page at a time is in flight without a stored proof, so a killed agent or relay leaves few messages
that may arrive twice. An agent that closes before delivery has started is a short command-line tool: it gets only
control envelopes and confirms, between its close frame and the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from posthouse.model.limits import DELIVERY_BATCH, MILLISECOND_NS, PINCH_ATTEMPTS_MAX
from posthouse.model.node import PINCH_MESH
from posthouse.model.pinch import SentMessage, read_by_close, sent_without_progress
from posthouse.relay.messages.reader_session import ReaderSession, SessionPeer
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.pinch.envelopes import queue_status
from posthouse.relay.pinch.pinch_settings import PinchSettings
from posthouse.relay.store.delivery_protocol import PinchReads
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import (
    NO_DELIVERIES,
    AttemptBounds,
    ClosedDeliveries,
    DeliveryPage,
    PendingEnvelopes,
)
from posthouse.relay.wire.frames import binary_frame


class ClosingBatch(NamedTuple):
    """Envelopes that a short-lived tool got while it closed."""

    seqs: list[int]
    #: the last confirm; 0 if there was none
    confirms_through: int


class PinchPeer(SessionPeer, Protocol):
    """A Pinch connection."""

    def cork(self) -> None:
        """Collect what is sent until `uncork`."""
        ...

    def uncork(self) -> None:
        """Send what was collected in one write."""
        ...


class PinchReaderSession(ReaderSession):
    """The reader session of a logged-in address."""

    #: the address was proved by a signature; rights in meshes do not matter
    needs_mesh_right = False
    has_traces = False
    attempt_bounds = AttemptBounds(PINCH_ATTEMPTS_MAX, PINCH_ATTEMPTS_MAX)

    def __init__(self, sessions: ReaderSessions, peer: PinchPeer, address: str, settings: PinchSettings) -> None:
        super().__init__(sessions, peer, PINCH_MESH, address, settings.window)
        self.peer: PinchPeer = peer
        self.reads: PinchReads = sessions.store.pinch
        #: whether delivery has started
        self.has_begun = False
        self._sessions = sessions
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        #: deliveries that were sent and are not provably read, by seq
        self._unread: dict[int, SentMessage] = {}
        #: those of them that readers do not confirm
        self._controls: set[int] = set()
        #: deliveries that were sent and whose end or proof is not committed
        self._unproved: set[int] = set()
        self._has_confirmed = False

    @property
    def room(self) -> int:
        return 0 if self._unproved else min(super().room, DELIVERY_BATCH)

    def note_confirm(self) -> None:
        """Note that the address has confirmed a message: attempts of messages that are sent again count from zero."""
        if not self._has_confirmed:
            self._has_confirmed = True
            self._sessions.defer(self.name, lambda unit: _forget_attempts(unit, self.name))

    def note_close(self, round_trip_s: float | None) -> None:
        """Note that the agent has closed the connection cleanly."""
        self._note_read(read_by_close(self._unread.values(), self._loop.time(), round_trip_s))

    def on_sent(self, seqs: Sequence[int], needs_no_confirm: Sequence[int]) -> None:
        written_s = self._loop.time()
        self._unread.update((seq, SentMessage(seq, written_s)) for seq in seqs)
        self._controls.update(needs_no_confirm)
        self._unproved.update(seqs)
        self.peer.ping(lambda: self._note_read(seqs))

    def send_page(self, page: DeliveryPage) -> None:
        # The skill waits for as many envelopes as QUEUE_STATUS announces, and closes with the last one, before it
        # confirms. If the first page arrives together with QUEUE_STATUS, the skill confirms the page before it checks.
        # A ping in the same write is answered even by an agent that the page makes fail.
        self.peer.cork()
        super().send_page(page)
        self.peer.uncork()

    def settle(self, seqs: Sequence[int], failure: str | None = None) -> None:
        for seq in seqs:
            self._unread.pop(seq, None)
            self._controls.discard(seq)
        super().settle(seqs, failure)
        self._note_proved(seqs)

    def attempted(self, *, is_timeout: bool) -> list[int]:
        return sent_without_progress(self._unread.values(), has_confirmed=self._has_confirmed)

    async def send_while_closing(self) -> ClosingBatch:
        """Send a tool that closes the control envelopes and confirms that wait for it."""
        await self._sessions.settled(self.name)
        page = await self.reads.controls(*self.name, self._sessions.opened_since_ns(), DELIVERY_BATCH)
        confirms = await self.reads.confirmations(*self.name, 0, DELIVERY_BATCH)
        if page.size:
            self.peer.deliver(page.text, page.size)
            self._sessions.note_sent(self, page.seqs, was_stored=True, record_body=page.record_body)
        if confirms.size:
            self.peer.deliver(confirms.text, confirms.size)
        return ClosingBatch(page.seqs, confirms.through_seq if confirms.size else 0)

    def note_closing_batch_read(self, batch: ClosingBatch) -> None:
        """Close the deliveries that a tool got while it closed: it has answered the close frame that followed them."""
        if batch.seqs:
            self._sessions.note_read(self, batch.seqs)
        if batch.confirms_through:
            self._sessions.drop_confirmations(self.name, batch.confirms_through)

    def park_read(self) -> None:
        """Park messages that were read but not confirmed, in the background."""
        self._sessions.defer(self.name, lambda unit: unit.pinch.park_read(*self.name))

    async def _begin(self) -> bool:
        before = await self._pending()
        await self._wait_until_agent_stays()
        if self.is_closed:
            return False
        self.has_begun = True
        pending = await self._pending()
        if pending.read:  # the relay was killed before it could park them
            self.park_read()
        count = pending.deliveries + pending.confirmations
        # messages that arrive after the login are live, and the skill expects no QUEUE_STATUS for them
        if count and before.deliveries + before.confirmations and not self.is_closed:
            self.peer.cork()
            now_ms = self._sessions.clock.wall_ns() // MILLISECOND_NS
            self.peer.deliver(binary_frame(queue_status(now_ms, self.node, count)), 1)
        return count > 0

    async def _pending(self) -> PendingEnvelopes:
        return await self.reads.pending(*self.name, self._sessions.opened_since_ns())

    async def _wait_until_agent_stays(self) -> None:
        """Wait until pongs prove that the agent has read AUTH_RESULT and is still there a moment later."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.greeting_s):
                await self._answers_ping()
                if self._settings.settle_s:
                    await asyncio.sleep(self._settings.settle_s)
                    await self._answers_ping()

    async def _answers_ping(self) -> None:
        answered = asyncio.Event()
        self.peer.ping(answered.set)
        await answered.wait()

    def _note_read(self, seqs: Sequence[int]) -> None:
        """Close control envelopes that were read, and mark messages so that they are not sent again."""
        read = [seq for seq in seqs if self._unread.pop(seq, None) is not None]
        controls = [seq for seq in read if seq in self._controls]
        messages = [seq for seq in read if seq not in self._controls]
        self._controls.difference_update(controls)

        def write(unit: Unit) -> ClosedDeliveries:
            if messages:
                unit.pinch.mark_read(*self.name, messages)
            return unit.deliveries.note_read(*self.name, controls) if controls else NO_DELIVERIES

        if read:
            self._sessions.defer(self.name, write, lambda _closed: self._note_proved(read))

    def _note_proved(self, seqs: Sequence[int]) -> None:
        """Send the next page once no delivery in flight lacks a stored proof."""
        self._unproved.difference_update(seqs)
        if not self._unproved and not self.is_at_tail:
            self.wake()


def _forget_attempts(unit: Unit, name: tuple[str, str]) -> ClosedDeliveries:
    unit.pinch.forget_attempts(*name)
    return NO_DELIVERIES
