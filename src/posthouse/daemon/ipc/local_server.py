"""The daemon's local API on its sockets: always a Unix socket, loopback TCP where it is wanted.

The Unix socket lies in a private directory; the kernel names the user at the other end, and a peer of another user is
refused before a byte is read. Over TCP every request needs the local token. Both sockets share one dispatcher, so the
limits hold for the daemon as a whole. In a container TCP is off unless asked for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from posthouse.daemon.context import DaemonContext, LocalCall, check_agent, check_token_scope
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.metrics import Meters
from posthouse.daemon.settings import DaemonSettings
from posthouse.http.admission import AdmissionLimits
from posthouse.http.call import BodyLimits
from posthouse.http.dispatch import Dispatcher, RequestLimits, ServerCodes
from posthouse.http.guard import LOCAL, UNIX, Guard, TokenRule
from posthouse.http.response import HttpResponse, error_object_format
from posthouse.http.router import Route, Router
from posthouse.http.server import ConnectionLimits, HttpConnection, HttpServer, listen_tcp, listen_unix
from posthouse.keys import same_token
from posthouse.mcp.streamable_http import PATH as MCP_PATH
from posthouse.model.errors import PosthouseError, error

log = structlog.get_logger(__name__)
LOOPBACK = "127.0.0.1"
_CONNECTIONS = ConnectionLimits(header_bytes=16_384, headers=128)
#: any user of the machine can connect to loopback: connections that never showed the token make room for newer ones
_TCP_CONNECTIONS = replace(
    _CONNECTIONS, header_s=10.0, admission=AdmissionLimits(connections=512, strangers_per_address=64)
)
_CODES = ServerCodes(busy="daemon_busy", stopping="daemon_stopping")
_TOO_LARGE_HINT = "A message has at most 48 KiB."
_CLOSE_S = 2.0  # for running requests when the daemon stops
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
#: of macOS, which Python has no names for; its struct xucred begins with its version and the user
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1
_XUCRED, _XUCRED_BYTES, _XUCRED_VERSION = struct.Struct("=II"), 76, 0
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_CONTAINER_CGROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")


class LocalServer:
    """Serves the local API of one daemon."""

    def __init__(self, context: DaemonContext, directory: DaemonDirectory, routes: Sequence[Route[LocalCall]]) -> None:
        self._context = context
        self._settings: DaemonSettings = context.settings
        self._directory = directory
        self._opened = AsyncExitStack()
        limits = context.settings.limits
        body = BodyLimits(limits.body_bytes, limits.body_s, requires_json=False, too_large_hint=_TOO_LARGE_HINT)
        self.dispatcher = Dispatcher(
            context,
            Router(routes, serves_head=False),
            LocalCall,
            RequestLimits(limits.requests, body, unfinished_per_address=limits.requests),
            _CODES,
            error_object_format("posthouse daemon"),
            _RequestCounter(context.meters),
            _admit,
        )
        #: port on loopback, if it listens there
        self.port: int | None = None

    async def start(self) -> None:
        """Listen, and write down the port; raises listen_failed with nothing left open."""
        try:
            await self._listen_unix()
            self._directory.token()  # created even without TCP, for programs that expect it
            tcp = self._settings.tcp
            if tcp == "on" or (tcp == "auto" and not is_container()):
                await self._listen_tcp()
            self._opened.push_async_callback(self._context.mcp.close)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self._opened.aclose()

    async def _listen_unix(self) -> None:
        server = self._make_server(Guard(UNIX), _CONNECTIONS, check_peer=True)
        self._close_later(await listen_unix(server, self._directory.socket), server)

    async def _listen_tcp(self) -> None:
        tokens, local, tools = self._context.tokens, self._directory.token, self._directory.mcp_token
        # read for each request: `daemon rotate-token` replaces the file of a running daemon
        rule = TokenRule(
            lambda given: same_token(given, local()) or tokens.find(given) is not None,
            "local_token_missing",
            "local_token_wrong",
        )
        tools()  # created at the start, for the configuration of a client
        tools_rule = TokenRule(lambda given: same_token(given, tools()), "mcp_token_missing", "mcp_token_wrong")
        limits = self._settings.limits
        guard = Guard(LOCAL, rule, path_tokens={MCP_PATH: tools_rule}, rate=limits.tcp_rate, clock=self._settings.clock)
        server = self._make_server(guard, _TCP_CONNECTIONS)
        listening, self.port = await listen_tcp(server, LOOPBACK, self._settings.port)
        self._close_later(listening, server)
        self._directory.write_port(self.port)

    def _make_server(self, guard: Guard, limits: ConnectionLimits, *, check_peer: bool = False) -> HttpServer:
        # a waiting request ends as soon as its client leaves
        return HttpServer(
            self.dispatcher,
            limits,
            guard=guard,
            check_peer=foreign_peer_error if check_peer else None,
            cancels_handlers=True,
        )

    def _close_later(self, listening: asyncio.Server, server: HttpServer) -> None:
        async def close() -> None:
            listening.close()
            server.pre_shutdown()
            await server.shutdown(_CLOSE_S)

        self._opened.push_async_callback(close)


def _admit(call: LocalCall) -> None:
    """Count the connection as one that the guard has admitted, and check the agent of the request."""
    connection = call.request.protocol
    refusal = connection.promote() if isinstance(connection, HttpConnection) else None
    if refusal is not None:
        raise refusal
    check_token_scope(call)
    check_agent(call)


class _RequestCounter:
    """Counts the requests of a daemon."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def answered(self, route: str, response: HttpResponse, _elapsed_s: float) -> None:
        self._meters.count("posthouse_daemon_requests_total", route, str(response.status))

    def refused(self, code: str) -> None:
        self._meters.count("posthouse_daemon_requests_refused_total", code)


def foreign_peer_error(transport: asyncio.BaseTransport) -> PosthouseError | None:
    """Return why the peer of a Unix socket is refused: it is a process of another user."""
    uid = peer_uid(transport)
    if uid == os.geteuid():
        return None
    log.warning("security", security="peer_refused", uid=uid)
    return error("peer_refused")


def peer_uid(transport: asyncio.BaseTransport) -> int:
    """Return the user at the other end of a Unix socket; -1 if the kernel does not say."""
    peer = transport.get_extra_info("socket")
    if peer is None:
        return -1
    if hasattr(socket, "SO_PEERCRED"):
        given = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(given)[1])
    try:
        version, uid = _XUCRED.unpack_from(peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES))
    except OSError:
        return -1
    return int(uid) if version == _XUCRED_VERSION else -1


def is_container(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Return True if this process runs in a container."""
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    if any((root / name).exists() for name in _CONTAINER_FILES):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text()
    except OSError:
        return False
    return any(word in groups for word in _CONTAINER_CGROUPS)
