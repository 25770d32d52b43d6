"""One Pinch connection: handles envelopes by type, answers them, and owns the reader session of its address.

Frames are handled in order, and the next one is read only while few submissions are unanswered. A refusal names the
message it refuses. Envelopes of types that it does not know are routed like any other if they have a recipient.
Before the relay answers the agent's close frame, it sends the envelopes that a short-lived tool still has to get.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from aiohttp import WSCloseCode

from posthouse.keys import verify
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MILLISECOND_NS, PINCH_ENVELOPE_MAX_BYTES, PINCH_MESSAGE_ID_MAX_BYTES
from posthouse.model.node import node_from_key
from posthouse.model.pinch import confirm_bytes, parse_address
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.sessions import CODE_CONFIRM_TIMEOUT, SessionEnd
from posthouse.relay.pinch.envelopes import (
    BLOCK,
    CONFIRM,
    MESSAGE,
    NOT_ROUTED,
    UNBLOCK,
    decode_envelope,
    queue_full,
    rate_limited,
)
from posthouse.relay.pinch.pinch_session import PinchReaderSession
from posthouse.relay.pinch.pinch_settings import TOKENS_PER_ENVELOPE
from posthouse.relay.pinch.schema.pinch_pb2 import DeliveryConfirm, Envelope
from posthouse.relay.pinch.service import Pinch
from posthouse.relay.pinch.submissions import ConfirmSubmission, EnvelopeSubmission, Outcome, PinchSubmission
from posthouse.relay.wire.frames import CLOSE_S, RoundTrip, WriteBuffer, binary_frame, close_frame
from posthouse.relay.wire.websocket import INTERNAL_ERROR, POLICY_VIOLATION, Frame, WebSocket, WebSocketConnection


def take_envelope(connection: PinchConnection, envelope: Envelope, raw: bytes) -> None:
    """Handle an envelope by its type; every type that is not the relay's own and has a recipient is routed."""
    handler = _HANDLERS.get(envelope.type)
    if handler is not None:
        handler(connection, envelope, raw)
    elif envelope.type == MESSAGE or (envelope.to_address and envelope.type not in NOT_ROUTED):
        _post(connection, envelope, raw)


def _post(connection: PinchConnection, envelope: Envelope, raw: bytes) -> None:
    """Submit an envelope for another agent."""
    if envelope.from_address != connection.address:
        connection.refuse(envelope, error("pinch_sender_spoofed"))
    elif not _is_local_address(envelope.to_address, connection.settings.host):
        connection.refuse(envelope, error("pinch_address_unknown"))
    elif envelope.message_id and not _is_message_id(envelope.message_id):
        connection.refuse(envelope, error("pinch_message_id_invalid"))
    elif connection.spend_rate(envelope):
        on_outcome = partial(connection.settle, envelope)
        ends = (connection.address, envelope.to_address)
        connection.submit(EnvelopeSubmission(*ends, envelope.message_id, envelope.type, raw, on_outcome))


def _confirm(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    """Submit a reader's confirm; ignore one in the name of another address or without a valid signature."""
    given = envelope.delivery_confirm
    is_own = envelope.from_address == connection.address and _is_message_id(given.message_id)
    if is_own and _is_signed(connection.address, given):
        on_outcome = partial(connection.settle, envelope)
        connection.submit(ConfirmSubmission(connection.address, envelope.to_address, envelope, on_outcome))
    else:
        connection.pinch.note_outcome(CONFIRM, Outcome.IGNORED)


def _take_block(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    """Block an address for the logged-in one, no matter which blocker the payload names."""
    _change_blocks(connection, envelope, envelope.block_notification.blocked_address)


def _take_unblock(connection: PinchConnection, envelope: Envelope, _raw: bytes) -> None:
    _change_blocks(connection, envelope, envelope.unblock_notification.unblocked_address)


def _change_blocks(connection: PinchConnection, envelope: Envelope, other: str) -> None:
    if not _is_local_address(other, connection.settings.host):
        connection.refuse(envelope, error("pinch_address_unknown"))
    elif connection.spend_rate(envelope):
        connection.pinch.start(_write_block_change(connection, envelope, other))


async def _write_block_change(connection: PinchConnection, envelope: Envelope, other: str) -> None:
    blocks = connection.pinch.blocks
    change = blocks.block if envelope.type == BLOCK else blocks.unblock
    try:
        await change(connection.address, other)
    except PosthouseError as refusal:
        connection.refuse(envelope, refusal)


def _is_local_address(address: str, host: str) -> bool:
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
NO_PONG = "no pong"
_MAX_UNANSWERED = 256  # submissions of one connection; with more, its next frame is not read
_MAX_FAULTS = 50  # frames in a row that are not envelopes, after which a connection is closed
_UNKNOWN = RoundTrip(0.0, 0.0)
_RETRY_MS = 1_000  # for a store that accepts nothing now


class PinchConnection(WebSocketConnection):
    """The connection of one address; the address is empty until the login."""

    is_any_frame_alive = False
    #: between frames that go out together: frames need none
    separator = b""

    def __init__(
        self,
        pinch: Pinch,
        socket: WebSocket,
        write_buffer: WriteBuffer,
        log_in: Callable[[PinchConnection], Awaitable[bool]],
        on_close: Callable[[PinchConnection], None],
    ) -> None:
        settings, clock = pinch.settings, pinch.engine.clock
        super().__init__(socket, write_buffer, settings.ping_s, settings.pong_s, clock.boot_ns)
        self.pinch = pinch
        self.settings = settings
        self.clock = clock
        self.address = ""
        self._log_in = log_in
        self._on_close = on_close
        self._session: PinchReaderSession | None = None
        self._unanswered = 0
        self._is_answered = asyncio.Event()
        self._is_answered.set()
        self._faults = 0
        self._shortest_ping_s: float | None = None
        #: whether the agent has sent a close frame
        self.is_closing = False

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ns() // MILLISECOND_NS

    @property
    def identity(self) -> str | None:
        return self.address or None

    async def run(self) -> None:
        """Log in, open the reader session of the address, then handle envelopes until the agent is gone."""
        if await self._log_in(self):
            sessions = self.pinch.engine.sessions
            self._session = PinchReaderSession(sessions, self, self.address, self.settings)
            sessions.open(self._session)
            self._session.wake()
        await self.read_frames()

    def send(self, envelope: bytes) -> None:
        """Send one envelope."""
        self.deliver(binary_frame(envelope), 1)

    def deliver(self, text: bytes, count: int) -> None:
        """Send encoded frames."""
        if self.ending is None:  # nothing follows a close frame
            self.write_buffer.write(text)

    def cork(self) -> None:
        """Collect what is sent until `uncork`."""
        self.write_buffer.cork()

    def uncork(self) -> None:
        """Send what was collected in one write."""
        self.write_buffer.uncork()

    def end(self, code: int, reason: str) -> None:
        self.uncork()  # a close frame must not wait
        super().end(code, reason)

    def send_frame(self, frame: bytes) -> None:
        """Send nothing: this wire has no presence."""

    def drop_dead(self) -> None:
        self.end(POLICY_VIOLATION, NO_PONG)

    def refuse_size(self) -> None:
        self.end(WSCloseCode.MESSAGE_TOO_BIG, "frame too large")

    def take_frame(self, frame: Frame) -> None:
        if not self.address:  # the login was refused: only the closing handshake matters now
            return
        data = frame.data
        envelope = None if frame.is_text else decode_envelope(data)
        if not frame.is_text and len(data) > PINCH_ENVELOPE_MAX_BYTES:
            limit = PINCH_ENVELOPE_MAX_BYTES
            self.refuse(envelope or Envelope(), error("pinch_envelope_too_large", size=len(data), limit=limit))
        elif envelope is None:
            self._fault()
        elif self.ending is None or envelope.type == CONFIRM:  # a confirm may cross the close frame
            self._faults = 0
            take_envelope(self, envelope, data)

    def refuse(self, envelope: Envelope, failure: PosthouseError) -> None:
        """Answer that an envelope is not accepted."""
        self.pinch.note_refused(self.address, envelope.type, failure.code)
        self.send(queue_full(self.now_ms, self.address, envelope.message_id, envelope.to_address, str(failure)))

    def spend_rate(self, envelope: Envelope) -> bool:
        """Spend one envelope of the rate limit; without any left, answer rate_limited and return False."""
        wait_ns = self.pinch.rates.take(self.address, self.clock.boot_ns(), TOKENS_PER_ENVELOPE)
        if wait_ns:
            self.pinch.note_refused(self.address, envelope.type, "rate_limited")
            self._delay(envelope, -(-wait_ns // MILLISECOND_NS), "rate limit exceeded")
        return not wait_ns

    def submit(self, submission: PinchSubmission) -> None:
        """Submit an envelope or a confirm; its outcome comes back to `settle`."""
        self._unanswered += 1
        self._is_answered.clear()
        if self._unanswered >= _MAX_UNANSWERED:
            self.hold_back(True)
        self.pinch.submissions.submit(submission)

    def settle(self, envelope: Envelope, outcome: Outcome) -> None:
        """Answer the sender of an envelope, unless it was accepted."""
        self._unanswered -= 1
        if not self._unanswered:
            self._is_answered.set()
        self.hold_back(False)
        self.pinch.note_outcome(envelope.type, outcome)
        if envelope.type == CONFIRM:
            if self._session is not None and outcome is Outcome.ACCEPTED:
                self._session.note_confirm()
            return
        if outcome in (Outcome.DUPLICATE, Outcome.BUSY):
            self.pinch.rates.give_back(self.address, TOKENS_PER_ENVELOPE)
        if outcome is Outcome.BUSY:
            self._delay(envelope, _RETRY_MS, "the relay takes nothing now")
        elif outcome is Outcome.QUEUE_FULL:
            self.refuse(envelope, error("queue_full", id=envelope.message_id.decode(), recipient=envelope.to_address))

    def ping(self, on_pong: Callable[[], None]) -> None:
        sent_s = asyncio.get_running_loop().time()

        def answered() -> None:
            elapsed_s = asyncio.get_running_loop().time() - sent_s
            self._shortest_ping_s = min(elapsed_s, self._shortest_ping_s or elapsed_s)
            on_pong()

        super().ping(answered)

    async def answer_close(self) -> None:
        """Answer the agent's close frame; a tool that leaves before delivery starts first gets a closing batch."""
        self.is_closing = True
        session = self._session
        self.uncork()
        if session is not None and self.ending is None:
            session.note_close(self._round_trip_s())
            if not session.has_begun:
                with contextlib.suppress(TimeoutError, PosthouseError):
                    await self._send_while_closing(session)
        await super().answer_close()

    async def _send_while_closing(self, session: PinchReaderSession) -> None:
        async with asyncio.timeout(CLOSE_S):
            await self._is_answered.wait()  # an answer of the agent decides which control envelopes it still needs
            batch = await session.send_while_closing()
        loop, floor_s = asyncio.get_running_loop(), (self.write_buffer.tcp_round_trip() or _UNKNOWN).shortest_s
        self.write_buffer.write(close_frame(WSCloseCode.OK, ""))
        self._socket.has_sent_close = True
        written_s = loop.time()
        # a tool closes once it has read the close frame; a close within less than a round trip cannot be that answer
        if await self._socket.wait_for_peer_close() and loop.time() - written_s >= floor_s:
            session.note_closing_batch_read(batch)

    def _round_trip_s(self) -> float | None:
        """Return how long a round trip takes; behind a proxy only a ping measures all of it."""
        measured = self.write_buffer.tcp_round_trip()
        known = [each for each in (measured and measured.smoothed_s, self._shortest_ping_s) if each is not None]
        return max(known, default=None)

    def close_session(self) -> None:
        """Stop delivering on this connection."""
        if self._session is not None:
            self.pinch.engine.sessions.close(self._session, self._session_end())
            self._session.park_read()

    async def close(self) -> None:
        self._on_close(self)
        self.close_session()
        await super().close()

    def start_session(self, session: ReaderSession) -> None:
        self.start(self._run_session(session))

    async def _run_session(self, session: ReaderSession) -> None:
        try:
            await session.run()
        except PosthouseError as failure:  # the store cannot be read now: the agent reconnects and tries again
            self.end(INTERNAL_ERROR, failure.code)
        except Exception:
            log.exception("pinch_mailbox_failed")
            self.end(INTERNAL_ERROR, "internal")

    def _session_end(self) -> SessionEnd:
        if self.pinch.is_stopping or (self.ending is not None and self.ending[1] == REPLACED):
            return SessionEnd.HARMLESS
        if self.ending is not None and self.ending[0] == CODE_CONFIRM_TIMEOUT:
            return SessionEnd.TIMEOUT
        return SessionEnd.LOST

    def _fault(self) -> None:
        self._faults += 1
        if self._faults >= _MAX_FAULTS:
            self.end(POLICY_VIOLATION, "not an envelope")

    def _delay(self, envelope: Envelope, retry_after_ms: int, reason: str) -> None:
        self.send(rate_limited(self.now_ms, self.address, envelope.message_id, retry_after_ms, reason))


_HANDLERS: dict[int, Callable[[PinchConnection, Envelope, bytes], None]] = {
    CONFIRM: _confirm,
    BLOCK: _take_block,
    UNBLOCK: _take_unblock,
}
