"""One WebSocket connection under both protocols, the posthouse stream and Pinch: handshake, reading, writing, its end.

The HTTP library parses what comes in; frames go out through the write buffer. Its bound applies to events; replies to
commands are bounded because the next frame is read only while there is room; the account of the server bounds all
connections together.
A peer is alive while it answers pings or keeps reading. What a frame means is up to the subclass.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, Literal, NamedTuple, TypeVar

import structlog
from aiohttp import EofStream, WSCloseCode, WSMsgType
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_ws import WebSocketResponse

from posthouse.http.outbound import OutboundAccount
from posthouse.http.server import HttpConnection
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import KIB, SECOND_NS
from posthouse.relay.wire.edge_limits import EdgeLimits, StrangersParser
from posthouse.relay.wire.frames import CLOSE_S, Flag, WriteBuffer, close_frame, ping_frame, pong_frame

log = structlog.get_logger(__name__)
HELD_BACK_BYTES = 256 * KIB  # the connection's next frame waits while more than this is unsent
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
STOPPING = "relay_stopping"  # the reason of every connection's end when the relay stops
_KEEP_ALIVE = b"keep-alive"  # one payload for all: only the last such ping is waited for
_CHECKS_PER_INTERVAL = 5  # pings, and the end of dead peers, are late by at most a fifth of the shorter interval


class WebSocket(WebSocketResponse[Literal[False]]):
    """The library's WebSocket, with a callback for a frame that is too large, before the library closes for it.

    A connection that ends writes the close frame itself, after everything that it has buffered; then the library
    sends none.
    """

    # the library's own attributes nearly fill the small dictionaries that instances of a class share the keys of
    __slots__ = ("_protocol", "_strangers_parser", "has_sent_close", "on_too_large")

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(
            timeout=CLOSE_S,
            autoclose=False,
            autoping=False,
            compress=False,
            max_msg_size=max_frame_bytes,
            decode_text=False,
        )
        self.on_too_large: Callable[[], None] | None = None
        self.has_sent_close = False
        self._protocol: Any = None
        self._strangers_parser: StrangersParser | None = None

    async def open(self, request: BaseRequest, limits: EdgeLimits, outbound: OutboundAccount) -> WriteBuffer | None:
        """Do the handshake and return the write buffer, or None if the peer is gone already."""
        try:
            writer = await self.prepare(request)
        except HTTPException as refusal:
            raise error("upgrade_required", reason=(refusal.text or "the handshake is not valid")[:200]) from refusal
        self.headers.clear()  # the peer has them
        transport = request.transport
        if transport is None:
            return None
        self._protocol = request.protocol
        outlet = outbound.open(transport)
        bounds = {"max_events": limits.buffer_events, "max_bytes": limits.buffer_bytes}
        return WriteBuffer(transport, writer.drain, outlet, **bounds)

    def limit_stranger(self, max_bytes: int, on_exceeded: Callable[[], None]) -> None:
        """Call `on_exceeded` if more than this many bytes wait unhandled; until `accept_member`."""
        parser = StrangersParser(self._protocol._payload_parser, max_bytes, on_exceeded)
        self._strangers_parser = self._protocol._payload_parser = parser

    def note_handled(self) -> None:
        """Record that the connection has handled everything that has arrived."""
        if self._strangers_parser is not None:
            self._strangers_parser.waiting_bytes = 0

    def accept_member(self, node: str) -> PosthouseError | None:
        """Lift the limits for strangers because the peer is a member; return an error if there is no room."""
        self._lift_limits()
        return self._protocol.promote(node) if isinstance(self._protocol, HttpConnection) else None

    def accept_guest(self) -> PosthouseError | None:
        """Lift the limits for strangers because the peer has proved a key; return an error if there is no room."""
        self._lift_limits()
        return self._protocol.admit_guest() if isinstance(self._protocol, HttpConnection) else None

    def _lift_limits(self) -> None:
        limited = self._strangers_parser
        if limited is not None and self._protocol._payload_parser is limited:
            self._protocol._payload_parser = limited.parser
        self._strangers_parser = None

    async def wait_for_peer_close(self) -> bool:
        """Wait up to CLOSE_S until the peer has closed the connection; return True if it did so in order."""
        reader = self._reader
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                try:
                    while reader is not None:
                        await reader.read()
                except EofStream:
                    return not getattr(self._protocol, "was_reset", True)
        return False

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and self.on_too_large is not None and not self.closed:
            self.on_too_large()
        if self.has_sent_close and not self.closed:
            self._set_closed()
            self._close_transport()
            return True
        return await super().close(code=code, message=message, drain=drain)


class Frame(NamedTuple):
    """A data frame of a peer."""

    data: bytes
    is_text: bool


def _loop_ns() -> int:
    return int(asyncio.get_running_loop().time() * SECOND_NS)


class WebSocketConnection(ABC):
    """One open connection; it also is the peer that a reader session delivers to."""

    __slots__ = (
        "__weakref__",
        "_alive_at_ns",
        "_now_ns",
        "_ping_ns",
        "_ping_numbers",
        "_pong_s",
        "_pongs",
        "_resumed",
        "_sent_at_ping",
        "_socket",
        "_tasks",
        "ended",
        "ending",
        "is_held_back",
        "pinged_at_ns",
        "write_buffer",
    )

    #: True: every frame proves that the peer is alive, so only a silent one is pinged. False: only a pong proves it.
    is_any_frame_alive = True

    def __init__(
        self,
        socket: WebSocket,
        write_buffer: WriteBuffer,
        ping_s: float,
        pong_s: float,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self.write_buffer = write_buffer
        #: close code and reason, once the relay has decided to end this connection
        self.ending: tuple[int, str] | None = None
        #: set when everything that belongs to this connection has been released
        self.ended = Flag()
        #: when the last keep-alive ping was sent, if the peer has not answered it yet
        self.pinged_at_ns: int | None = None
        self._socket = socket
        self._ping_ns = ping_s * 1e9
        self._pong_s = pong_s
        self._now_ns = now_ns or _loop_ns
        self._alive_at_ns = self._now_ns()
        self._sent_at_ping = 0
        self._pongs: dict[bytes, Callable[[], None]] = {}
        self._ping_numbers = itertools.count(1)
        #: whether the relay reads no frame because too many submissions are unanswered
        self.is_held_back = False
        #: done when frames are read again; None while they are read
        self._resumed: asyncio.Future[None] | None = None
        #: a list, because an empty set takes 0.2 KB of each idle connection
        self._tasks: list[asyncio.Task[None]] = []

    def greet(self) -> None:  # noqa: B027 - not every protocol has a greeting
        """Send the first frame, if the protocol has one."""

    async def run(self) -> None:
        """Serve the connection until the peer is gone."""
        self.greet()
        await self.read_frames()

    @abstractmethod
    def take_frame(self, frame: Frame) -> None:
        """Handle one data frame; frames may still arrive after `end`."""

    @abstractmethod
    def refuse_size(self) -> None:
        """Answer a frame that is too large; the library closes the connection next."""

    @property
    @abstractmethod
    def identity(self) -> str | None:
        """The node or address that the peer has proved, for the log; None before that."""

    def drop_dead(self) -> None:
        """End a connection whose peer neither answers nor reads."""
        self.drop("dead")

    async def read_frames(self) -> None:
        """Handle data frames in order until the peer is gone."""
        while (frame := await self.next_frame()) is not None:
            self.take_frame(frame)

    async def next_frame(self) -> Frame | None:
        """Return the next data frame once there is room, or None if the peer is gone; answer pings, match pongs."""
        while True:
            if self.ending is None:
                await self._wait_for_room()
            message = await self._socket.receive()
            kind = message.type
            if self.is_any_frame_alive:
                self._note_alive()
            if kind is WSMsgType.TEXT or kind is WSMsgType.BINARY:
                return Frame(message.data, kind is WSMsgType.TEXT)
            if kind is WSMsgType.PING:
                self.write_buffer.write(pong_frame(message.data))
            elif kind is WSMsgType.PONG:
                self._take_pong(message.data)
            else:
                if kind is WSMsgType.CLOSE:
                    await self.answer_close()
                return None

    async def answer_close(self) -> None:
        """Answer the close frame of the peer and close the connection."""
        await self._socket.close(drain=False)

    def accept_member(self, node: str) -> PosthouseError | None:
        """Lift the limits for strangers, or return why the relay has no room for another connection of a member."""
        return self._socket.accept_member(node)

    def accept_guest(self) -> PosthouseError | None:
        """Lift the limits for strangers, or return why the relay has no room for another guest."""
        return self._socket.accept_guest()

    def hold_back(self, is_held_back: bool) -> None:
        """Stop or resume reading frames."""
        if is_held_back == self.is_held_back:
            return
        self.is_held_back = is_held_back
        if self._resumed is None:
            self._resumed = asyncio.get_running_loop().create_future()
            return
        if not self._resumed.done():  # a cancelled reader has cancelled it
            self._resumed.set_result(None)
        self._resumed = None

    def has_room(self, size: int, count: int) -> bool:
        """Return True if this many more messages may be written without waiting."""
        return not self.write_buffer.was_behind or self.write_buffer.has_room(size, count)

    async def drain(self) -> None:
        """Wait until the peer has taken everything that was written, or is gone."""
        await self.write_buffer.drain()

    @property
    def taken_bytes(self) -> int:
        """How many bytes the peer has taken while some are unsent; else a constant."""
        return self.write_buffer.sent_bytes if self.write_buffer.unsent_bytes else -1

    def ping(self, on_pong: Callable[[], None]) -> None:
        """Send a ping; `on_pong` is called once the peer has read everything before it."""
        payload = b"%d" % next(self._ping_numbers)
        self._pongs[payload] = on_pong
        self.write_buffer.write(ping_frame(payload))

    async def answers_ping(self) -> bool:
        """Ping the peer at once and return True if it answers in time."""
        if self.ending is not None or self.ended.is_set():
            return False
        answered = asyncio.Event()
        self.ping(answered.set)
        waits = [asyncio.ensure_future(answered.wait()), asyncio.ensure_future(self.ended.wait())]
        await asyncio.wait(waits, timeout=self._pong_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return answered.is_set() and not self.ended.is_set()

    def check_alive(self) -> None:
        """Ping the peer when it is due; drop a peer that neither answered the last ping nor has read since."""
        now_ns, sent = self._now_ns(), self.write_buffer.sent_bytes
        if self.is_held_back:  # the pong may be among the bytes that the relay does not read
            self._note_alive()
        if self.pinged_at_ns is None:
            if now_ns - self._alive_at_ns >= self._ping_ns:
                self.pinged_at_ns, self._sent_at_ping = now_ns, sent
                self._pongs[_KEEP_ALIVE] = self._note_alive
                self.write_buffer.write(ping_frame(_KEEP_ALIVE))
        elif now_ns - self.pinged_at_ns >= self._pong_s * 1e9:
            if sent > self._sent_at_ping and self.write_buffer.unsent_bytes:  # a slow reader is alive
                self.pinged_at_ns, self._sent_at_ping = now_ns, sent
            else:
                self.drop_dead()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in parallel with the reading of frames; it ends with the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._task_done)

    def end(self, code: int, reason: str) -> None:
        """Close with a code and a reason, after everything written before.

        The peer has CLOSE_S to read and to answer the close frame; then the connection is dropped.
        """
        if self.ending is None:
            self.ending = (code, reason)
            self.write_buffer.write(close_frame(code, reason))
            self._socket.has_sent_close = True
            self.write_buffer.abort_soon()

    def drop(self, reason: str) -> None:
        """End the connection at once, without a close frame, for a peer that would not read one."""
        if self.ending is None:
            self.ending = (WSCloseCode.ABNORMAL_CLOSURE, reason)
        self.write_buffer.abort()

    def log_end(self, open_s: float) -> None:
        """Log why the relay ended this connection, if it did; strangers are too many to be logged by default."""
        if self.ending is not None:
            code, reason = self.ending
            write = log.debug if self.identity is None or reason == STOPPING else log.info
            write("connection_ended", reason=reason, close_code=int(code), peer=self.identity, open_s=round(open_s, 3))

    async def close(self) -> None:
        """Release everything that belongs to this connection; subclasses release their part first."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ended.set()

    async def _wait_for_room(self) -> None:
        while self._resumed is not None:
            await self._resumed
        if self.write_buffer.was_behind and self.write_buffer.unsent_bytes > HELD_BACK_BYTES:
            await self.write_buffer.drain()

    def _note_alive(self) -> None:
        self._alive_at_ns = self._now_ns()
        self.pinged_at_ns = None

    def _take_pong(self, payload: bytes) -> None:
        on_pong = self._pongs.pop(bytes(payload), None)
        if on_pong is not None:
            on_pong()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("stream_task_failed", reason=repr(failure), exc_info=failure)
            self.end(INTERNAL_ERROR, "internal")
            self.write_buffer.abort()


ConnectionT = TypeVar("ConnectionT", bound=WebSocketConnection)


async def serve_websocket(
    request: BaseRequest,
    limits: EdgeLimits,
    max_frame_bytes: int,
    connections: MutableMapping[ConnectionT, None],
    outbound: OutboundAccount,
    make_connection: Callable[[WebSocket, WriteBuffer], ConnectionT],
    address: str | None,
) -> StreamResponse:
    """Run one connection from the handshake to its end; until then it is among `connections`.

    `address` is the caller's, which behind a proxy is not the connection's.
    """
    socket = WebSocket(max_frame_bytes)
    write_buffer = await socket.open(request, limits, outbound)
    if write_buffer is None:
        return socket
    connection = make_connection(socket, write_buffer)
    socket.on_too_large = connection.refuse_size
    protocol = request.protocol
    if isinstance(protocol, HttpConnection):
        protocol.on_displaced = lambda failure: connection.end(WSCloseCode.TRY_AGAIN_LATER, failure.code)
        protocol.become_stranger_of(address)
    connections[connection] = None
    loop = asyncio.get_running_loop()
    opened_s = loop.time()
    try:
        await connection.run()
    finally:
        del connections[connection]
        connection.log_end(loop.time() - opened_s)
        await connection.close()
        write_buffer.abort_soon()
    return socket


async def keep_alive(connections: MutableMapping[ConnectionT, None], ping_s: float, pong_s: float) -> None:
    """Check all connections regularly until cancelled: one task instead of a timer for each connection.

    A late check waits another round: if this process was stopped or starved, the answers to its pings are still in the
    sockets and have to be read first.
    """
    loop = asyncio.get_running_loop()
    interval_s = min(ping_s, pong_s) / _CHECKS_PER_INTERVAL
    while True:
        due_s = loop.time() + interval_s
        await asyncio.sleep(interval_s)
        if loop.time() - due_s > interval_s:
            await asyncio.sleep(interval_s)
        for connection in list(connections):
            connection.check_alive()
