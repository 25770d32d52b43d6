"""Serving over streamable HTTP, on loopback alone: there is no option to listen anywhere else.

Requests, sessions and bodies are bounded. The socket is bound here, before the server starts, so that the address can
be told when connections are taken and a port that is in use is an error with a name.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from posthouse.client.daemon import DaemonPlace
from posthouse.mcp.http.guard import Guard
from posthouse.mcp.http.token import TOKEN_NAME, keep_token
from posthouse.mcp.server import ToolServer
from posthouse.model.errors import error

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
