"""The HTTP server: listening sockets and connections, with the bounds that aiohttp lacks.

Connections are counted, in all and per address (posthouse.http.admission), from accept on, before any TLS handshake;
handshake and headers of the first request must arrive in time; whatever aiohttp's parser refuses gets an error
response in the server's format. One HttpServer serves one listening socket; several may share a Dispatcher, each with
its own guard. `freeze_heap` is for a process that is ready to serve.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from posthouse.http.admission import NO_LIMITS, Admission, AdmissionLimits
from posthouse.http.caller_address import AddressRule
from posthouse.http.dispatch import Dispatcher
from posthouse.http.guard import Guard
from posthouse.http.outbound import OutboundAccount
from posthouse.http.response import to_aiohttp, to_bytes
from posthouse.model.errors import PosthouseError, error

log = structlog.get_logger(__name__)
_LINGER_S = 2.0  # a client that is still sending its body can read why it was refused
_BACKLOG = 1_024
_SOCKET_MODE = 0o600
_SOCKET_PATH_MAX_BYTES = 107  # of sockaddr_un
_OPEN_FILES = Path("/proc/self/fd")
_SOCKET_NAME_MAX_BYTES = 80  # leaves room for the path of an open directory
_GC_THRESHOLD = 50_000  # objects made and not yet freed, some megabytes of them
_OWN_ADDRESS = AddressRule()  # no proxy: a connection counts for its own address
_LOG_EVERY_S = 60.0  # one line for all connections that made room: a flood must not fill the log


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of connections."""

    #: of the request line, and of each header
    header_bytes: int
    headers: int
    keepalive_s: float = 75.0
    #: from the connection to the last header of its first request; None: not limited
    header_s: float | None = None
    admission: AdmissionLimits = NO_LIMITS


class HttpServer(Server):
    """Makes and counts the connections of one listening socket."""

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        limits: ConnectionLimits,
        *,
        guard: Guard | None = None,
        addresses: AddressRule = _OWN_ADDRESS,
        check_peer: Callable[[asyncio.BaseTransport], PosthouseError | None] | None = None,
        cancels_handlers: bool = False,
        outbound: OutboundAccount | None = None,
    ) -> None:
        """Make a server; `check_peer` may refuse a connection, `cancels_handlers` ends one when its client leaves.

        `outbound` bounds the responses that clients have not read.
        """
        super().__init__(
            self._answer,
            access_log=None,
            logger=_QuietLogger(),
            keepalive_timeout=limits.keepalive_s,
            lingering_time=_LINGER_S,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            auto_decompress=False,
            handler_cancellation=cancels_handlers,
        )
        self.dispatcher = dispatcher
        self.limits = limits
        self.check_peer = check_peer
        self.addresses = addresses
        self.admission: Admission[HttpConnection | TlsHandshake] = Admission(limits.admission)
        #: callback(code) when a connection is refused before its first request
        self.on_refused: Callable[[str], None] = lambda _code: None
        self.outbound = outbound
        #: checks every request; may be replaced while the server runs
        self.guard = guard
        self._displaced = 0
        self._logged_at_s = float("-inf")

    def __call__(self) -> RequestHandler:
        return self.connection()

    def connection(self, handshake: TlsHandshake | None = None) -> HttpConnection:
        """Return a connection that is not open yet; its TLS handshake, if any, counts until then."""
        return HttpConnection(self, handshake, loop=asyncio.get_running_loop(), **self._kwargs)

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return len(self.admission)

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        connection = cast(HttpConnection, request.protocol)
        connection.end_deadline()
        address = connection.address
        if address is None:
            headers = request.headers
            given = headers.getall("Forwarded", ()), headers.getall("X-Forwarded-For", ())
            address = self.addresses.caller(connection.peer, *given)
        response = await self.dispatcher.answer(request, self.guard, address)
        transport = request.transport
        if self.outbound is not None and transport is not None and isinstance(response, Response):
            self.outbound.open(transport).count_response(response)
        return response

    def enter(self, connection: HttpConnection | TlsHandshake, address: str | None) -> None:
        """Count a connection of a stranger; older strangers make room for it."""
        for displaced in self.admission.enter(connection, address):
            self.on_refused("connections_exhausted")
            self._displaced += 1
            displaced.displace()
        now_s = asyncio.get_running_loop().time()
        if self._displaced and now_s - self._logged_at_s >= _LOG_EVERY_S:
            log.warning("connections_displaced", count=self._displaced, open=self.open, address=address)
            self._displaced, self._logged_at_s = 0, now_s


class HttpConnection(RequestHandler):
    """One connection."""

    def __init__(self, server: HttpServer, handshake: TlsHandshake | None = None, **options: Any) -> None:
        super().__init__(server, **options)
        #: the other end, as the kernel names it
        self.peer = ""
        #: the address that the connection counts for; None: of a trusted proxy, or not counted
        self.address: str | None = None
        #: ends the WebSocket, or whatever uses this connection, when it has to make room
        self.on_displaced: Callable[[PosthouseError], None] | None = None
        #: ends a stream on this connection when its client leaves
        self.on_lost: Callable[[], None] | None = None
        #: whether the connection broke instead of being closed
        self.was_reset = False
        self._server = server
        self._handshake = handshake
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self.peer = _peer_of(transport)
        self.address = server.addresses.peer(self.peer)
        refusal = None if server.check_peer is None else server.check_peer(transport)
        super().connection_made(transport)
        if self._handshake is not None:
            server.admission.leave(self._handshake)
        server.enter(self, self.address)
        stream = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        if refusal is not None:
            self._refuse(stream, refusal)
        elif server.dispatcher.context.is_stopping:  # it arrived after the open connections were closed
            self.force_close()
        elif server.limits.header_s is not None:
            self._deadline = self._loop.call_later(server.limits.header_s, self._expire, stream)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.was_reset = exc is not None
        self.end_deadline()
        self._server.admission.leave(self)
        if self._server.outbound is not None and self.transport is not None:
            self._server.outbound.close(self.transport)
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def end_deadline(self) -> None:
        """Note that the headers of the first request have arrived."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def become_stranger_of(self, address: str | None) -> None:
        """Count the connection for the address of its only caller, because a proxy opened it for that caller."""
        if self.address is None and address is not None:
            self._server.enter(self, address)

    def promote(self, node: str = "") -> PosthouseError | None:
        """Count the connection as one whose caller is a member, or return why there is no room for it."""
        return self._server.admission.promote(self, node)

    def admit_guest(self) -> PosthouseError | None:
        """Count the connection as one whose caller has proved some key, or return why there is no room for it."""
        return self._server.admission.admit_guest(self)

    def displace(self) -> None:
        """Close the connection to make room for a newer one."""
        failure = error("connections_exhausted", limit=len(self._server.admission))
        if self.on_displaced is not None:
            self.on_displaced(failure)
        elif self._request_count == 0 and self.transport is not None:
            self._write_error(self.transport, failure)
        self.force_close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what aiohttp's parser refuses, or an exception outside of the dispatcher."""
        if isinstance(exc, ConnectionError):  # the client left in the middle of its request: no answer can reach it
            failure = error("http_malformed", reason="the connection was lost")
        elif status >= 500:
            log.error("request_failed", exc_info=exc)
            failure = error("internal", reason=type(exc).__name__)
        elif isinstance(exc, LineTooLong):
            failure = error("header_too_large", limit=self.max_field_size)
        else:
            failure = error("http_malformed", reason=(message or "it cannot be parsed").splitlines()[0][:200])
        response = to_aiohttp(self._server.dispatcher.error_format(failure))
        response.force_close()
        return response

    def _expire(self, transport: asyncio.Transport) -> None:
        if self._request_count == 0 and not transport.is_closing():
            self._refuse(transport, error("request_too_slow", seconds=self._server.limits.header_s))

    def _refuse(self, transport: asyncio.Transport, failure: PosthouseError) -> None:
        self._server.on_refused(failure.code)
        self._write_error(transport, failure)
        self.force_close()

    def _write_error(self, transport: asyncio.Transport, failure: PosthouseError) -> None:
        transport.write(to_bytes(self._server.dispatcher.error_format(failure), failure.spec.title))


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake is complete.

    The event loop's TLS listener shows a connection to the server only after the handshake, so peers that never begin
    one would hold descriptors that no limit counts. Here the loop accepts plain connections, and each socket is taken
    from its transport, before anything is read, for the handshake.
    """

    def __init__(self, server: HttpServer, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls
        self._socket: socket.socket
        self._task: asyncio.Task[None]
        self._has_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = self._server.addresses.peer(_peer_of(transport))
        self._socket = transport.get_extra_info("socket").dup()
        cast(asyncio.Transport, transport).abort()  # of its own descriptor only
        self._server.enter(self, address)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())
        self._task.add_done_callback(self._finish)

    def displace(self) -> None:
        """Drop the peer to make room for a newer connection; without TLS it could read no answer."""
        self._task.cancel()

    async def _shake_hands(self) -> None:
        self._has_begun = True
        with suppress(OSError):  # the peer is gone, too slow, or speaks no TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._server.connection, self),
                self._socket,
                ssl=self._tls,
                ssl_handshake_timeout=self._server.limits.header_s,
            )

    def _finish(self, _task: asyncio.Task[None]) -> None:
        self._server.admission.leave(self)
        if not self._has_begun:  # displaced at once: nothing else owns the socket
            self._socket.close()


def _peer_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "local"


class _QuietLogger:
    """Silences aiohttp's log: handle_error answers and logs what matters."""

    def debug(self, *args: object, **fields: object) -> None:
        """Do nothing."""

    exception = warning = info = error = debug


async def listen_tcp(
    server: HttpServer, host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Server, int]:
    """Listen on TCP; return the port too, because port 0 becomes a free one. Raises listen_failed."""
    loop = asyncio.get_running_loop()
    make: Callable[[], asyncio.Protocol] = server if tls is None else partial(TlsHandshake, server, tls)
    try:
        listening = await loop.create_server(make, host, port, backlog=_BACKLOG)
    except OSError as failure:
        listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # asyncio puts the address into the text of the system, which stays plain here
        number = failure.errno or 0  # negative if a name has no address
        reason = os.strerror(number) if number > 0 else failure.strerror or str(failure)
        raise error("listen_failed", listen=listen, reason=reason) from failure
    return listening, int(listening.sockets[0].getsockname()[1])


async def listen_unix(server: HttpServer, path: Path) -> asyncio.Server:
    """Listen on a Unix socket that has its private mode before it listens. Raises listen_failed."""
    address = _short_address(path)
    if address is None:
        reason = f"its path is longer than {_SOCKET_PATH_MAX_BYTES} bytes"
        hint = "Choose a directory with a shorter path: POSTHOUSE_HOME, or `--dir` for a daemon."
        raise error("listen_failed", listen=str(path), reason=reason, hint=hint)
    bound = _bind_unix(path, address)
    try:
        return await asyncio.get_running_loop().create_unix_server(server, sock=bound, backlog=_BACKLOG)
    except BaseException:
        bound.close()
        raise


def _short_address(path: Path) -> str | None:
    """Return an address of a socket within the length limit: its path, or on Linux one below /proc/self/fd.

    The directory of a longer path stays open as long as the process: the event loop looks at the address again when it
    stops listening.
    """
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX_BYTES:
        return str(path)
    if len(os.fsencode(path.name)) > _SOCKET_NAME_MAX_BYTES or not _OPEN_FILES.exists():
        return None
    return f"{_OPEN_FILES}/{os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}/{path.name}"


def _bind_unix(path: Path, address: str) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(bound.fileno(), _SOCKET_MODE)  # the file that bind() makes has the socket's mode, less the umask
        bound.bind(address)
        path.chmod(_SOCKET_MODE)
    except OSError as failure:
        bound.close()
        raise error("listen_failed", listen=str(path), reason=failure.strerror or str(failure)) from failure
    return bound


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop, if the extra `fast` is installed, else one of asyncio."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def freeze_heap() -> None:
    """Exempt everything that exists now from garbage collection, and collect less often from here on.

    Objects that exist when a server is ready live as long as the process. A batch of messages makes thousands of
    short-lived tuples and no cycles; with the default threshold the collector would run several times within it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
