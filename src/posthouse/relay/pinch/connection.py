"""One Pinch connection after its login: envelopes in by type, answers out, and the reader session of its address.

Frames are taken in order, and the next one is read only while few submissions are unanswered. A refusal names the
message it refuses. Types without a handler are tolerated: heartbeats, handshakes, and what a later Pinch will send.
The address was proved by a signature, so no mesh decides about its right to read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from posthouse.keys import verify
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS, PINCH_ENVELOPE_MAX_BYTES, PINCH_MESSAGE_ID_MAX_BYTES
from posthouse.model.node import PINCH_MESH, node_from_key
from posthouse.model.pinch import confirm_bytes, parse_address
from posthouse.relay.accept.authorize import Meshes
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.sessions import CODE_CONFIRM_TIMEOUT, ReaderSessions, SessionEnd
from posthouse.relay.pinch.envelopes import (
    BLOCK,
    CONFIRM,
    MESSAGE,
    ROUTED,
    UNBLOCK,
    decode_envelope,
    queue_full,
    queue_status,
    rate_limited,
)
from posthouse.relay.pinch.line import POLICY, Line
from posthouse.relay.pinch.schema.pinch_pb2 import DeliveryConfirm, Envelope
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.pinch.settings import TOKENS_PER_ENVELOPE, PinchSettings
from posthouse.relay.pinch.submissions import Confirming, Outcome, PinchSubmission, Posting
from posthouse.relay.wire.frames import binary_frame
from posthouse.relay.wire.websocket import WriteBuffer


class PinchPeer:
    """Implements posthouse.relay.deliver.peer.Peer."""

    separator = b""

    def __init__(self, connection: PinchConnection) -> None:
        self._connection = connection
        self._outbox = connection.outbox

    def deliver(self, text: bytes, count: int) -> None:
        if self._connection.ending is None:  # nothing follows a close frame
            self._outbox.write(text)

    def tell(self, frame: bytes) -> None:
        """Say nothing: this wire knows no presence."""

    def has_room(self, size: int, count: int) -> bool:
        return self._outbox.has_room(size, count)

    async def drain(self) -> None:
        await self._outbox.drain()

    @property
    def taken_bytes(self) -> int:
        return self._outbox.sent_bytes if self._outbox.unsent_bytes else -1

    def ping(self, on_pong: Callable[[], None]) -> None:
        self._connection.ping(on_pong)

    def end(self, code: int, reason: str) -> None:
        self._connection.end(code, reason)


class PinchReaderSession(ReaderSession):
    """One login of an address."""

    def __init__(self, mailboxes: ReaderSessions, peer: PinchPeer, address: str, settings: PinchSettings) -> None:
        super().__init__(mailboxes, peer, PINCH_MESH, address, settings.window)
        self.reads = mailboxes.store.pinch
        self._boxes = mailboxes
        self._greeting_s = settings.greeting_s

    def missing_right(self, meshes: Meshes) -> PosthouseError | None:
        return None

    async def _begin(self) -> bool:
        await self._greeted()
        count = await self._boxes.count_waiting(self)
        if count and not self.is_closed:
            now_ms = self._boxes.clock.wall_ns() // MILLISECOND_NS
            self.peer.deliver(binary_frame(queue_status(now_ms, self.node, count)), 1)
        return count > 0

    async def _greeted(self) -> None:
        read = asyncio.Event()
        self.peer.ping(read.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._greeting_s):
                await read.wait()


def take_envelope(connection: PinchConnection, envelope: Envelope, raw: bytes) -> None:
    """Do what an envelope asks for."""
    handler = _HANDLERS.get(envelope.type)
    if handler is not None:
        handler(connection, envelope, raw)


def _post(connection: PinchConnection, envelope: Envelope, raw: bytes) -> None:
    """Queue an envelope for another agent."""
    if envelope.from_address != connection.address:
        connection.refuse(envelope, error("pinch_sender_spoofed"))
    elif not _is_here(envelope.to_address, connection.settings.host):
        connection.refuse(envelope, error("pinch_address_unknown"))
    elif not _is_message_id(envelope.message_id) and (envelope.message_id or envelope.type == MESSAGE):
        connection.refuse(envelope, error("pinch_message_id_invalid"))
    elif connection.pay(envelope):
        tell = partial(connection.settle, envelope)
        ends = (connection.address, envelope.to_address)
        connection.submit(Posting(*ends, envelope.message_id, envelope.type, raw, tell))


def _confirm(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    """Take a reader's confirm; one that is not its own, or not signed, changes nothing and is not answered."""
    given = envelope.delivery_confirm
    is_own = envelope.from_address == connection.address and _is_message_id(given.message_id)
    if is_own and _is_signed(connection.address, given):
        tell = partial(connection.settle, envelope)
        connection.submit(Confirming(connection.address, envelope.to_address, envelope, tell))
    else:
        connection.pinch.note_outcome(CONFIRM, Outcome.IGNORED)


def _take_block(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    """Block an address for the one that is logged in, whoever the payload names as the blocker."""
    _change(connection, envelope, envelope.block_notification.blocked_address)


def _take_unblock(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    _change(connection, envelope, envelope.unblock_notification.unblocked_address)


def _change(connection: PinchConnection, envelope: Envelope, other: str) -> None:
    if not _is_here(other, connection.settings.host):
        connection.refuse(envelope, error("pinch_address_unknown"))
    elif connection.pay(envelope):
        connection.pinch.start(_change_block(connection, envelope, other))


async def _change_block(connection: PinchConnection, envelope: Envelope, other: str) -> None:
    blocks = connection.pinch.blocks
    change = blocks.block if envelope.type == BLOCK else blocks.unblock
    try:
        await change(connection.address, other)
    except PosthouseError as refusal:
        connection.refuse(envelope, refusal)


def _is_here(address: str, host: str) -> bool:
    try:
        return parse_address(address).host == host
    except PosthouseError:
        return False


def _is_message_id(message_id: bytes) -> bool:
    if not 0 < len(message_id) <= PINCH_MESSAGE_ID_MAX_BYTES:
        return False
    try:
        return message_id.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _is_signed(address: str, given: DeliveryConfirm) -> bool:
    node = node_from_key(parse_address(address).key)
    try:
        verify(node, confirm_bytes(given.message_id, given.timestamp), given.signature.hex())
    except PosthouseError:
        return False
    return True


log = structlog.get_logger(__name__)
REPLACED = "replaced by a newer connection"
_JOBS_ON_THE_WAY = 256
_FAULTS = 50  # frames in a row that are no envelope, after which a connection is closed
_RETRY_MS = 1_000  # for a store that takes nothing now


class PinchConnection(Line):
    """The connection of one address."""

    def __init__(self, pinch: Pinch, outbox: WriteBuffer) -> None:
        super().__init__(outbox, pinch.core.clock, pinch.settings)
        self.pinch = pinch
        #: empty until its login
        self.address = ""
        self._mailbox: PinchReaderSession | None = None
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
        mailboxes = self.pinch.core.sessions
        self._mailbox = PinchReaderSession(mailboxes, PinchPeer(self), self.address, self.settings)
        mailboxes.open(self._mailbox)
        self._reading = asyncio.get_running_loop().create_task(self._run(self._mailbox))

    def take_frame(self, data: bytes) -> None:
        """Take one binary frame."""
        envelope = decode_envelope(data)
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

    def submit(self, job: PinchSubmission) -> None:
        """Hand a job to the writer; its outcome comes back to `settle`."""
        self._jobs += 1
        if self._jobs >= _JOBS_ON_THE_WAY:
            self._has_room.clear()
        self.pinch.submissions.submit(job)

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
            self.pinch.core.sessions.close(self._mailbox, self._mailbox_end())

    async def close(self) -> None:
        """Release everything."""
        self.release_mailbox()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self.ended.set()

    async def _run(self, mailbox: PinchReaderSession) -> None:
        try:
            await mailbox.run()
        except PosthouseError as failure:  # the store cannot be read now: the agent comes again
            self.end(1011, failure.code)
        except Exception:
            log.exception("pinch_mailbox_failed")
            self.end(1011, "internal")

    def _mailbox_end(self) -> SessionEnd:
        if self.pinch.is_stopping or (self.ending is not None and self.ending[1] == REPLACED):
            return SessionEnd.HARMLESS
        return (
            SessionEnd.TIMEOUT
            if self.ending is not None and self.ending[0] == CODE_CONFIRM_TIMEOUT
            else SessionEnd.LOST
        )

    def _delay(self, envelope: Envelope, retry_after_ms: int, reason: str) -> None:
        self.send(rate_limited(self.now_ms, self.address, envelope.message_id, retry_after_ms, reason))


_HANDLERS: dict[int, Callable[[PinchConnection, Envelope, bytes], None]] = {
    **dict.fromkeys(ROUTED, _post),
    CONFIRM: _confirm,
    BLOCK: _take_block,
    UNBLOCK: _take_unblock,
}
