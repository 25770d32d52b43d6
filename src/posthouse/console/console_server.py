"""The console's server: a socket on loopback, the routes of pages and actions, and the headers that confine them.

Every page is the same empty shell; its script asks for the content with the token in a header, so an address alone
shows nothing. There is no cookie, hence nothing that another site could make a browser send along. Every change
requires an Origin of this server. The content security policy allows scripts, styles, pictures and connections of this
server only: no inline code, no eval, no frame around a page.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib.resources import files

import msgspec
from aiohttp import web

from posthouse.console import conversation_pages, health_page, live_page, lock_page, queue_page, team_page
from posthouse.console.access import Access, foreign_user_error
from posthouse.console.context import ConsoleCall, ConsoleContext
from posthouse.console.rendering import HTML, Renderer
from posthouse.console.upstream import Upstream
from posthouse.http.admission import AdmissionLimits
from posthouse.http.call import BodyLimits
from posthouse.http.dispatch import Dispatcher, RequestLimits, ServerCodes
from posthouse.http.guard import LOCAL, Guard, bearer_token
from posthouse.http.response import SAFETY_HEADERS, HttpResponse, json_response
from posthouse.http.router import Handler, Route, Router
from posthouse.http.server import ConnectionLimits, HttpServer, listen_tcp
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import MIB

LOOPBACK = "127.0.0.1"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    **SAFETY_HEADERS,
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_CODES = ServerCodes(busy="console_busy", stopping="console_stopping")
_BODY = BodyLimits(MIB, 30.0, requires_json=False)
_CONNECTIONS = ConnectionLimits(
    header_bytes=16_384, headers=128, header_s=10.0, admission=AdmissionLimits(connections=256)
)
_CLOSE_S = 1.0  # for running requests when the console stops
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
_SHELLS = (
    "/",
    "/team",
    "/conversations",
    "/conversations/{id}",
    "/messages/{id}",
    "/queues",
    "/locks",
    "/live",
    "/health",
)


class _LinkBody(msgspec.Struct, forbid_unknown_fields=True):
    code: str


async def show_shell(call: ConsoleCall) -> HttpResponse:
    """Return the page without content."""
    return call.page("shell.html", mesh=call.upstream.mesh)


async def show_asset(call: ConsoleCall) -> HttpResponse:
    """Return a script, style sheet or picture of the package."""
    name = call.params["name"]
    path = files("posthouse.console") / "static" / name
    media_type = _MEDIA_TYPES.get(name[name.rfind(".") :])
    if "/" in name or name.startswith(".") or media_type is None or not path.is_file():
        raise error("route_unknown", path=call.target.path[:200])
    return HttpResponse(200, path.read_bytes(), f"{media_type}; charset=utf-8")


async def exchange_link(call: ConsoleCall) -> HttpResponse:
    """Exchange the code of a one-time link for a token."""
    return json_response({"token": call.context.access.exchange((await call.body(_LinkBody)).code)})


def _data(path: str, handler: Handler[ConsoleCall]) -> Route[ConsoleCall]:
    return Route("GET", f"/data{path}", handler)


def _action(path: str, handler: Handler[ConsoleCall]) -> Route[ConsoleCall]:
    return Route("POST", f"/act{path}", handler)


ROUTES: tuple[Route[ConsoleCall], ...] = (
    *(Route("GET", path, show_shell, is_public=True) for path in _SHELLS),
    Route("GET", "/static/{name}", show_asset, is_public=True),
    Route("POST", "/session", exchange_link, is_public=True),
    _data("/", team_page.show_team),
    _data("/team", team_page.show_team),
    _data("/conversations", conversation_pages.list_conversations),
    _data("/conversations/{id}", conversation_pages.show_conversation),
    _data("/messages/{id}", conversation_pages.show_trace),
    _action("/send", conversation_pages.send_message),
    _data("/queues", queue_page.show_queues),
    _action("/queues/requeue", queue_page.requeue_deliveries),
    _action("/queues/purge", queue_page.purge_deliveries),
    _action("/outbox/requeue", queue_page.requeue_rows),
    _action("/outbox/drop", queue_page.drop_rows),
    _data("/locks", lock_page.show_locks),
    _action("/locks/break", lock_page.break_lock),
    _action("/reservations/release", lock_page.release_reservation),
    _data("/live", live_page.show_live),
    Route("GET", "/stream/live", live_page.stream_rows, may_wait=True),
    Route("GET", "/stream/changes", live_page.stream_changes, may_wait=True),
    _data("/health", health_page.show_health),
)


class ConsoleServer:
    """A running console."""

    def __init__(self, upstream: Upstream, clock: Clock, port: int = 0) -> None:
        self.context = ConsoleContext(Access(clock), upstream, Renderer(clock), clock)
        #: the port it listens on, once it is started
        self.port = port
        self._opened = AsyncExitStack()
        self._dispatcher = Dispatcher(
            self.context,
            Router(ROUTES),
            ConsoleCall,
            RequestLimits(64, _BODY),
            _CODES,
            self._error,
            _NoObserver(),
            authorize,
        )

    @property
    def origin(self) -> str:
        """The address of the console without a path."""
        return f"http://{LOOPBACK}:{self.port}"

    def new_link(self) -> str:
        """Return a link that opens the console once."""
        return f"{self.origin}/#link={self.context.access.issue_link()}"

    async def start(self) -> None:
        """Listen, and follow daemon and relay; raises listen_failed."""
        server = _ConfinedServer(
            self._dispatcher, _CONNECTIONS, guard=Guard(LOCAL, clock=self.context.clock),
            check_peer=foreign_user_error, cancels_handlers=True,
        )  # fmt: skip
        listening, self.port = await listen_tcp(server, LOOPBACK, self.port)
        self._opened.push_async_callback(self._close, listening, server)
        await self.context.upstream.start()
        self._opened.push_async_callback(self.context.upstream.close)

    async def stop(self) -> None:
        """End every stream and stop listening."""
        self.context.is_stopping = True
        await self._opened.aclose()

    async def _close(self, listening: asyncio.Server, server: HttpServer) -> None:
        listening.close()
        server.pre_shutdown()
        await server.shutdown(_CLOSE_S)

    def _error(self, failure: PosthouseError) -> HttpResponse:
        """Return a failure as a fragment of a page."""
        text = self.context.renderer.text("failure.html", failure=failure)
        return HttpResponse(failure.spec.status, text.encode(errors="replace"), HTML)


def authorize(call: ConsoleCall) -> None:
    """Refuse a request without the token, and a change without an Origin; the guard has compared the Origin."""
    if call.request.method not in ("GET", "HEAD") and "Origin" not in call.request.headers:
        raise error("origin_refused", origin="")
    if not call.route.is_public:
        call.context.access.check(bearer_token(call.request.headers.get("Authorization", "")))


class _ConfinedServer(HttpServer):
    """Adds the security headers to every response."""

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await super()._answer(request)
        if not response.prepared:
            response.headers.update(SECURITY_HEADERS)
        return response


class _NoObserver:
    """Counts nothing."""

    def answered(self, route: str, response: HttpResponse, elapsed_s: float) -> None:
        """Do nothing."""

    def refused(self, code: str) -> None:
        """Do nothing."""
