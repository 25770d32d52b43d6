"""MCP over streamable HTTP, on loopback only: token, guard, server.

Every request needs the token, this machine's own name as Host, and no foreign Origin; the guard runs before anything
of a request is read and answers {error, hint} as the daemon does. The token is a secret of its own in the daemon's
directory that opens the tools and nothing else; it survives restarts. The socket is bound before the server starts,
so a port in use is an error with a code.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from posthouse.client.daemon import DaemonPlace
from posthouse.daemon.ipc.guard import is_own_origin
from posthouse.files import create_atomic, private_dir, read_private
from posthouse.keys import new_token, same_token
from posthouse.log import get_log
from posthouse.mcp.server import ToolServer
from posthouse.model.errors import PosthouseError, error

TOKEN_NAME = "mcp_token"


def keep_token(directory: Path) -> str:
    """Return the token that lies in a directory; the first time it is made."""
    path = private_dir(directory) / TOKEN_NAME
    with suppress(FileExistsError):
        create_atomic(path, f"{new_token()}\n".encode())
    return read_private(path).decode().strip()


log = get_log(__name__)
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_BEARER = "Bearer "
_SAFETY = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Guard:
    """Stands before the application of the SDK."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer why not."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._check(Headers(scope=scope), QueryParams(scope["query_string"]))
        except PosthouseError as failure:
            # neither query nor headers: they may hold the secret
            log.warning("security", security=failure.code, method=scope.get("method"), path=scope.get("path"))
            await _refusal_response(failure)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, query: QueryParams) -> None:
        if "token" in query:
            raise error("token_in_query")
        host = headers.get("host", "")
        if _HOST.fullmatch(host) is None or len(headers.getlist("host")) > 1:
            raise error("host_refused", host=host[:200])
        origin = headers.get("origin")
        if origin is not None and not is_own_origin(origin, host):
            raise error("origin_refused", origin=origin[:200])
        self._check_token(headers.getlist("authorization"))

    def _check_token(self, given: list[str]) -> None:
        if not given:
            raise error("mcp_token_missing")
        if len(given) > 1 or not given[0].startswith(_BEARER):
            raise error("mcp_token_wrong")
        if not same_token(given[0][len(_BEARER) :], self._token):
            raise error("mcp_token_wrong")


def _refusal_response(failure: PosthouseError) -> Response:
    body = msgspec.json.encode({"error": failure.code, "hint": failure.hint, "detail": str(failure)})
    headers = dict(_SAFETY)
    if failure.spec.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="posthouse mcp"'
    return Response(body, failure.spec.status, headers, "application/json")


LOOPBACK = "127.0.0.1"
PATH = "/mcp"
BODY_MAX_BYTES = 1 << 20
SESSIONS_MAX = 64
SESSION_IDLE_S = 30 * 60
CONNECTIONS_MAX = 256
STOP_S = 2  # for calls that wait, when the process is told to end


@dataclass(frozen=True)
class Listening:
    """Where the server is."""

    url: str
    #: file that holds the token
    token_file: str


def serve_http(place: DaemonPlace, wait_max_s: int, port: int, ready: Callable[[Listening], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told once connections are taken."""
    token = keep_token(place.directory)
    bound = _bind(port)
    where = Listening(f"http://{LOOPBACK}:{bound.getsockname()[1]}{PATH}", str(place.directory / TOKEN_NAME))
    server = _Server(_config(place, wait_max_s, token), lambda: ready(where))
    with bound:
        anyio.run(server.serve, [bound])


def _config(place: DaemonPlace, wait_max_s: int, token: str) -> uvicorn.Config:
    app = ToolServer(place, wait_max_s).server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_MAX_BYTES,
        session_idle_timeout=SESSION_IDLE_S,
        max_sessions=SESSIONS_MAX,
        # the guard has looked at Host and Origin, and knows the port
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return uvicorn.Config(
        Guard(app, token),
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
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
