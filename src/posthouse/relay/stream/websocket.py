"""The WebSocket below a connection, of either wire: the handshake, the frame that is too large, and a sure end.

Reading uses the HTTP library's parser; writing goes through the outbox, straight to the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from aiohttp import WSCloseCode, web

from posthouse.model.errors import error
from posthouse.relay.limits import EdgeLimits
from posthouse.relay.stream.outbox import CLOSE_S, Outbox


class WebSocket(web.WebSocketResponse[Literal[False]]):
    """A WebSocket that tells of a frame that is too large before the library closes it for that."""

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(
            timeout=CLOSE_S, autoping=False, compress=False, max_msg_size=max_frame_bytes, decode_text=False
        )
        self.on_too_large: Callable[[], None] | None = None

    async def open(self, request: web.BaseRequest, limits: EdgeLimits) -> Outbox | None:
        """Shake hands and return where to write; None when the peer has gone already."""
        try:
            writer = await self.prepare(request)
        except web.HTTPException as refusal:
            raise error("upgrade_required", reason=(refusal.text or "the handshake is not valid")[:200]) from refusal
        transport = request.transport
        if transport is None:
            return None
        return Outbox(transport, writer.drain, max_events=limits.buffer_events, max_bytes=limits.buffer_bytes)

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and self.on_too_large is not None and not self.closed:
            self.on_too_large()
        return await super().close(code=code, message=message, drain=drain)
