"""Listening sockets of the local interface: the Unix socket always, loopback TCP where it is wanted.

The Unix socket lies in a private directory and has its mode before it listens. The kernel names the user at the
other end; a peer of another user is refused before it is read. In a container TCP is off unless asked for. What
aiohttp's parser refuses is answered like any other refusal.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from posthouse.daemon.ipc.dispatch import Service, refusal
from posthouse.http.response import to_aiohttp
from posthouse.model.errors import error

log = structlog.get_logger(__name__)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_HEADER_BYTES = 16_384
_KEEPALIVE_S = 75.0
_LINGER_S = 2.0  # to let a client read the refusal of a body it is still sending


class IpcServer(web.Server):
    """Makes a protocol for every connection of one way in."""

    def __init__(self, service: Service, *, is_tcp: bool) -> None:
        super().__init__(
            self._answer,
            access_log=None,
            logger=_QuietLogger(),
            keepalive_timeout=_KEEPALIVE_S,
            lingering_time=_LINGER_S,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            auto_decompress=False,
            handler_cancellation=True,
        )
        self.service = service
        self.is_tcp = is_tcp

    def __call__(self) -> RequestHandler:
        return Protocol(self, loop=asyncio.get_running_loop(), **self._kwargs)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.service.answer(request, is_tcp=self.is_tcp)


class Protocol(RequestHandler):
    """One connection."""

    def __init__(self, server: IpcServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._is_tcp = server.is_tcp
        self._service = server.service

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._is_tcp and (uid := peer_uid(transport)) != os.geteuid():
            log.warning("security", security="peer_refused", uid=uid)
            self._refuse(cast(asyncio.Transport, transport))
        elif self._service.is_stopping:  # it came after those that are hung up were counted
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the library refuses, or what broke outside of every route."""
        if status >= 500:
            log.error("request_failed", exc_info=exc)
            failure = error("internal", reason=type(exc).__name__)
        else:
            failure = error("http_malformed", reason=(message or "it cannot be parsed").splitlines()[0][:200])
        response = to_aiohttp(refusal(failure))
        response.force_close()
        return response

    def _refuse(self, transport: asyncio.Transport) -> None:
        answer = refusal(error("peer_refused"))
        head = (
            f"HTTP/1.1 {answer.status} Forbidden\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode("ascii") + answer.body)
        self.force_close()


def peer_uid(transport: asyncio.BaseTransport) -> int:
    """Return the user at the other end of a Unix socket; -1 when the kernel does not tell."""
    peer = transport.get_extra_info("socket")
    if peer is None or not hasattr(socket, "SO_PEERCRED"):
        return -1
    _pid, uid, _gid = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


class _QuietLogger:
    """The library's log: what matters of it is answered and logged by handle_error."""

    def debug(self, *args: object, **fields: object) -> None:
        """Say nothing."""

    exception = warning = info = error = debug


_BACKLOG = 1_024
_SOCKET_MODE = 0o600
_PATH_MAX_BYTES = 107  # of a Unix socket's address
_MARKS = ("/.dockerenv", "/run/.containerenv")
_CGROUP_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc")


async def listen_unix(path: Path, server: IpcServer) -> asyncio.Server:
    """Listen on a Unix socket that only this user can reach."""
    if len(os.fsencode(path)) > _PATH_MAX_BYTES:
        raise error("listen_failed", listen=str(path), reason=f"its path is longer than {_PATH_MAX_BYTES} bytes")
    bound = _bind(path)
    try:
        return await asyncio.get_running_loop().create_unix_server(server, sock=bound, backlog=_BACKLOG)
    except BaseException:
        bound.close()
        raise


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(bound.fileno(), _SOCKET_MODE)  # the file bind() makes has the mode of the socket, less the umask
        bound.bind(str(path))
        path.chmod(_SOCKET_MODE)
    except OSError as failure:
        bound.close()
        raise error("listen_failed", listen=str(path), reason=failure.strerror or str(failure)) from failure
    return bound


async def listen_tcp(server: IpcServer) -> tuple[asyncio.Server, int]:
    """Listen on a free port of loopback; return the port too."""
    try:
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=_BACKLOG)
    except OSError as failure:
        raise error("listen_failed", listen="127.0.0.1:0", reason=failure.strerror or str(failure)) from failure
    return listening, int(listening.sockets[0].getsockname()[1])


def is_container(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container."""
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    if any((root / mark.lstrip("/")).exists() for mark in _MARKS):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text()
    except OSError:
        return False
    return any(word in groups for word in _CGROUP_WORDS)
