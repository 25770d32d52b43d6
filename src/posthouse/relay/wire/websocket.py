"""The WebSocket below a connection of either protocol: the handshake, its write buffer, and a certain end.

Reading uses the HTTP library's parser. Frames go straight to the transport, which keeps references to shared bytes.
The write buffer remembers where each frame with events ends and asks the transport how many bytes are unsent, so a
slow reader is measured, not guessed. The bound holds for events; replies to commands are bounded by not reading the
next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

from aiohttp import WSCloseCode, web

from posthouse.model.errors import error
from posthouse.model.limits import KIB
from posthouse.relay.wire.edge_limits import EdgeLimits
from posthouse.relay.wire.frames import text_frame

CLOSE_S = 2.0  # for the closing handshake: whoever does not answer it is gone
HELD_BACK_BYTES = 256 * KIB  # unsent above it, the connection's next command waits


class WriteBuffer:
    """Writes frames to one transport and knows how much of them its reader has not taken."""

    def __init__(
        self,
        transport: asyncio.Transport,
        drain: Callable[[], Awaitable[None]],
        *,
        max_events: int,
        max_bytes: int,
    ) -> None:
        self._transport = transport
        self._drain = drain
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._written = 0
        #: (bytes written up to the end of the frame, events in it), oldest first
        self._ledger: deque[tuple[int, int]] = deque()
        self._unsent_events = 0
        # with no water mark each write is tried at once, so what is unsent is what the kernel would not take
        # (one and not zero: a TLS transport pauses at the high mark itself, and would never resume from zero)
        transport.set_write_buffer_limits(1, 0)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """How many bytes the kernel has taken: grows while the peer reads."""
        return self._written - self._transport.get_write_buffer_size()

    @property
    def unsent_events(self) -> int:
        self._settle()
        return self._unsent_events

    def send(self, text: bytes) -> None:
        """Write one text frame."""
        self.write(text_frame(text))

    def write(self, frame: bytes, events: int = 0) -> None:
        """Write a frame that is ready for the wire and carries so many events."""
        if self._transport.is_closing():
            return
        self._transport.write(frame)
        self._written += len(frame)
        if events:
            self._ledger.append((self._written, events))
            self._unsent_events += events

    def has_room(self, size: int, events: int) -> bool:
        """Tell whether so many more events fit into the bounded buffer; an empty one takes any frame."""
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0:
            return True
        self._settle()
        return self._unsent_events + events <= self._max_events and unsent + size <= self._max_bytes

    async def drain(self) -> None:
        """Wait until the kernel has taken everything that was written, or the peer is gone."""
        await self._drain()

    def abort(self) -> None:
        """Drop the connection and everything unsent."""
        self._transport.abort()

    def abort_soon(self) -> None:
        """Drop the connection in a moment: closing it in good order waits for ever for a peer that does not read."""
        asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def _settle(self) -> None:
        sent = self._written - self._transport.get_write_buffer_size()
        ledger = self._ledger
        while ledger and ledger[0][0] <= sent:
            self._unsent_events -= ledger.popleft()[1]


class WebSocket(web.WebSocketResponse[Literal[False]]):
    """A WebSocket that tells of a frame that is too large before the library closes it for that."""

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(
            timeout=CLOSE_S, autoping=False, compress=False, max_msg_size=max_frame_bytes, decode_text=False
        )
        self.on_too_large: Callable[[], None] | None = None

    async def open(self, request: web.BaseRequest, limits: EdgeLimits) -> WriteBuffer | None:
        """Shake hands and return where to write; None when the peer has gone already."""
        try:
            writer = await self.prepare(request)
        except web.HTTPException as refusal:
            raise error("upgrade_required", reason=(refusal.text or "the handshake is not valid")[:200]) from refusal
        transport = request.transport
        if transport is None:
            return None
        return WriteBuffer(transport, writer.drain, max_events=limits.buffer_events, max_bytes=limits.buffer_bytes)

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and self.on_too_large is not None and not self.closed:
            self.on_too_large()
        return await super().close(code=code, message=message, drain=drain)
