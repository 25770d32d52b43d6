"""MCP over streamable HTTP, on loopback only: token, guard, server.

The shared guard checks every request before the MCP SDK sees it; refusals look like those of the daemon. The token is
a secret of its own in the daemon's directory: it opens the tools and nothing else, and survives restarts. The socket
is bound before the server starts, so a port in use is an error with a code.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from posthouse.client.daemon import DaemonAddress
from posthouse.files import create_atomic, private_dir, read_private
from posthouse.http.guard import LOCAL, Guard, RequestHead, TokenRule, has_token_in_query
from posthouse.http.response import SAFETY_HEADERS, HttpResponse, error_object_format
from posthouse.keys import new_token, same_token
from posthouse.mcp.server import ToolServer
from posthouse.model.errors import PosthouseError, error

TOKEN_NAME = "mcp_token"


def keep_token(directory: Path) -> str:
    """Return the token in a directory; create it the first time."""
    path = private_dir(directory) / TOKEN_NAME
    with suppress(FileExistsError):
        create_atomic(path, f"{new_token()}\n".encode())
    return read_private(path).decode().strip()


_format_error = error_object_format("posthouse mcp")


class GuardedApp:
    """An ASGI application behind a guard: a refused request never reaches the MCP SDK."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why it is refused."""
        if scope["type"] != "lifespan":
            try:
                self._guard.check(_head_of(scope))
            except PosthouseError as failure:
                await _to_starlette(_format_error(failure))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _head_of(scope: Scope) -> RequestHead:
    headers = Headers(scope=scope)
    return RequestHead(
        method=scope.get("method", ""),
        path=scope.get("path", ""),
        has_token_in_query=has_token_in_query(QueryParams(scope["query_string"]).multi_items()),
        hosts=headers.getlist("host"),
        origins=headers.getlist("origin"),
        authorizations=headers.getlist("authorization"),
    )


def _to_starlette(response: HttpResponse) -> Response:
    headers = {**SAFETY_HEADERS, **response.headers}
    return Response(response.body, response.status, headers, response.media_type)


LOOPBACK = "127.0.0.1"
PATH = "/mcp"
BODY_MAX_BYTES = 1 << 20
SESSIONS_MAX = 64
SESSION_IDLE_S = 30 * 60
CONNECTIONS_MAX = 256
STOP_S = 2  # for waiting calls when the process ends


@dataclass(frozen=True)
class Listening:
    """The address of the server."""

    url: str
    #: file that holds the token
    token_file: str


def serve_http(place: DaemonAddress, wait_max_s: int, port: int, ready: Callable[[Listening], None]) -> None:
    """Serve until SIGINT or SIGTERM; call `ready` once connections are accepted."""
    token = keep_token(place.directory)
    bound = _bind(port)
    address = Listening(f"http://{LOOPBACK}:{bound.getsockname()[1]}{PATH}", str(place.directory / TOKEN_NAME))
    server = _Server(_config(place, wait_max_s, token), lambda: ready(address))
    with bound:
        anyio.run(server.serve, [bound])


def _config(place: DaemonAddress, wait_max_s: int, token: str) -> uvicorn.Config:
    app = ToolServer(place, wait_max_s).server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_MAX_BYTES,
        session_idle_timeout=SESSION_IDLE_S,
        max_sessions=SESSIONS_MAX,
        # the guard checks Host and Origin, and knows the port
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    rule = TokenRule(lambda given: same_token(given, token), "mcp_token_missing", "mcp_token_wrong")
    return uvicorn.Config(
        GuardedApp(app, Guard(LOCAL, rule)),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S,
        proxy_headers=False,
    )


def _bind(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((LOOPBACK, port))
    except OSError as failure:
        bound.close()
        raise error("listen_failed", listen=f"{LOOPBACK}:{port}", reason=failure.strerror or str(failure)) from failure
    return bound


class _Server(uvicorn.Server):
    """Calls back once it accepts connections."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
