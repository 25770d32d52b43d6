"""One Pinch connection after its login: frames in, answers out, and the mailbox of its address.

What an agent sends is taken in order, and the next frame is read only while few jobs are on their way to the writer. A
refusal names the message it refuses. What an envelope of which type does is in posthouse.relay.pinch.envelopes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS, PINCH_ENVELOPE_MAX_BYTES
from posthouse.relay.deliver.mailboxes import CODE_CONFIRM_TIMEOUT, End
from posthouse.relay.pinch.envelopes import take_envelope
from posthouse.relay.pinch.jobs import Job, Outcome
from posthouse.relay.pinch.line import POLICY, Line
from posthouse.relay.pinch.mailbox import PinchMailbox
from posthouse.relay.pinch.peer import PinchPeer
from posthouse.relay.pinch.schema.pinch_pb2 import Envelope
from posthouse.relay.pinch.settings import TOKENS_PER_ENVELOPE
from posthouse.relay.pinch.wire import CONFIRM, decode, queue_full, rate_limited
from posthouse.relay.stream.outbox import Outbox

if TYPE_CHECKING:
    from posthouse.relay.pinch.service import Pinch

log = structlog.get_logger(__name__)

REPLACED = "replaced by a newer connection"
_JOBS_ON_THE_WAY = 256
_FAULTS = 50  # frames in a row that are no envelope, after which a connection is closed
_RETRY_MS = 1_000  # for a store that takes nothing now


class PinchConnection(Line):
    """The connection of one address."""

    def __init__(self, pinch: Pinch, outbox: Outbox) -> None:
        super().__init__(outbox, pinch.core.clock, pinch.settings)
        self.pinch = pinch
        #: empty until its login
        self.address = ""
        self._mailbox: PinchMailbox | None = None
        self._reading: asyncio.Task[None] | None = None
        self._jobs = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._faults = 0

    @property
    def is_held_back(self) -> bool:
        return not self._has_room.is_set()

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ns() // MILLISECOND_NS

    def open_mailbox(self) -> None:
        """Begin to deliver."""
        mailboxes = self.pinch.core.mailboxes
        self._mailbox = PinchMailbox(mailboxes, PinchPeer(self), self.address, self.settings)
        mailboxes.open(self._mailbox)
        self._reading = asyncio.get_running_loop().create_task(self._run(self._mailbox))

    def take_frame(self, data: bytes) -> None:
        """Take one binary frame."""
        envelope = decode(data)
        if len(data) > PINCH_ENVELOPE_MAX_BYTES:
            limit = PINCH_ENVELOPE_MAX_BYTES
            self.refuse(envelope or Envelope(), error("pinch_envelope_too_large", size=len(data), limit=limit))
        elif envelope is None:
            self.fault()
        elif self.ending is None or envelope.type == CONFIRM:  # a confirm may cross the close frame
            self._faults = 0
            take_envelope(self, envelope, data)

    def fault(self) -> None:
        """Pass over a frame that is no envelope; who sends nothing else is closed."""
        self._faults += 1
        if self._faults >= _FAULTS:
            self.end(POLICY, "not an envelope")

    def refuse(self, envelope: Envelope, failure: PosthouseError) -> None:
        """Tell the sender that an envelope goes nowhere."""
        self.pinch.note_refused(self.address, envelope.type, failure.code)
        self.send(queue_full(self.now_ms, self.address, envelope.message_id, envelope.to_address, str(failure)))

    def pay(self, envelope: Envelope) -> bool:
        """Take the rate of one envelope; when there is none, tell the sender and return False."""
        wait_ns = self.pinch.rates.take(self.address, self.clock.boot_ns(), TOKENS_PER_ENVELOPE)
        if wait_ns:
            self.pinch.note_refused(self.address, envelope.type, "rate_limited")
            self._delay(envelope, -(-wait_ns // MILLISECOND_NS), "rate limit exceeded")
        return not wait_ns

    def submit(self, job: Job) -> None:
        """Hand a job to the writer; its outcome comes back to `settle`."""
        self._jobs += 1
        if self._jobs >= _JOBS_ON_THE_WAY:
            self._has_room.clear()
        self.pinch.gathering.submit(job)

    def settle(self, envelope: Envelope, outcome: Outcome) -> None:
        """Take the outcome of a job."""
        self._jobs -= 1
        self._has_room.set()
        self.pinch.note_outcome(envelope.type, outcome)
        if envelope.type == CONFIRM:
            return
        if outcome in (Outcome.DUPLICATE, Outcome.BUSY):
            self.pinch.rates.give_back(self.address, TOKENS_PER_ENVELOPE)
        if outcome is Outcome.BUSY:
            self._delay(envelope, _RETRY_MS, "the relay takes nothing now")
        elif outcome is Outcome.QUEUE_FULL:
            self.refuse(envelope, error("queue_full", id=envelope.message_id.decode(), recipient=envelope.to_address))

    async def wait_for_room(self) -> None:
        await self._has_room.wait()
        await super().wait_for_room()

    def release_mailbox(self) -> None:
        """Deliver nothing more on this connection."""
        if self._mailbox is not None:
            self.pinch.core.mailboxes.close(self._mailbox, self._mailbox_end())

    async def close(self) -> None:
        """Release everything."""
        self.release_mailbox()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self.ended.set()

    async def _run(self, mailbox: PinchMailbox) -> None:
        try:
            await mailbox.run()
        except PosthouseError as failure:  # the store cannot be read now: the agent comes again
            self.end(1011, failure.code)
        except Exception:
            log.exception("pinch_mailbox_failed")
            self.end(1011, "internal")

    def _mailbox_end(self) -> End:
        if self.pinch.is_stopping or (self.ending is not None and self.ending[1] == REPLACED):
            return End.HARMLESS
        return End.TIMEOUT if self.ending is not None and self.ending[0] == CODE_CONFIRM_TIMEOUT else End.LOST

    def _delay(self, envelope: Envelope, retry_after_ms: int, reason: str) -> None:
        self.send(rate_limited(self.now_ms, self.address, envelope.message_id, retry_after_ms, reason))
