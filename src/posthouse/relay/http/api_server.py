"""The relay's HTTP servers: the shared server with the relay's limits, error codes, authorization and metrics.

The guard checks Host and Origin of every request; each route that is not public requires a token. Requests and
connections are counted here; the metrics read the numbers of the server that this module returns. A second listener,
for this machine only, may serve the metrics without a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from posthouse.http.admission import AdmissionLimits
from posthouse.http.call import BodyLimits, Call
from posthouse.http.dispatch import Dispatcher, RequestLimits, ServerCodes
from posthouse.http.guard import UNIX, Guard
from posthouse.http.response import HttpResponse, problem_response
from posthouse.http.router import Route, Router
from posthouse.http.server import ConnectionLimits, HttpConnection, HttpServer, listen_tcp, listen_unix
from posthouse.model.metric import CONTENT_TYPE
from posthouse.model.strict_json import write_ns_as_text
from posthouse.relay.context import METRICS_PATH, NS_HEADER, RelayCall, RelayContext, wants_ns_as_text
from posthouse.relay.http.operation_routes import LOCAL_METRICS_ROUTES
from posthouse.relay.listen import ListenAddress, Protection, site_of
from posthouse.relay.metrics import Meters
from posthouse.relay.wire.edge_limits import DEFAULT_LIMITS, EdgeLimits

_CODES = ServerCodes(busy="requests_exhausted", stopping="relay_stopping", timeout="relay_not_ready")
_METRICS_STOP_S = 1.0


def make_http_server(context: RelayContext, routes: Sequence[Route[RelayCall]], guard: Guard) -> HttpServer:
    """Return the HTTP server of a relay, ready to listen."""
    limits, meters = context.limits, context.meters
    dispatcher = _RelayDispatcher(
        context,
        Router(routes),
        RelayCall,
        _request_limits(limits),
        _CODES,
        problem_response,
        _RequestCounter(meters),
        authorize,
    )
    server = HttpServer(
        dispatcher,
        _connection_limits(limits),
        guard=guard,
        addresses=context.addresses,
        outbound=context.outbound,
    )
    server.on_refused = partial(meters.count, "posthouse_relay_connections_refused_total")
    return server


async def listen_for_metrics(context: RelayContext, where: ListenAddress | Path) -> MetricsListener:
    """Serve only /metrics, on a loopback port or a Unix socket, without a token."""
    return await _open_listener(where, lambda guard: make_http_server(context, LOCAL_METRICS_ROUTES, guard))


@dataclass(slots=True)
class FollowerContext:
    """The shared state of requests to a follower, which serves only metrics."""

    meters: Meters
    is_stopping: bool = False


async def listen_for_follower(meters: Meters, where: ListenAddress | Path) -> MetricsListener:
    """Serve the metrics of a follower in the same way as those of a relay."""
    dispatcher = Dispatcher(
        FollowerContext(meters),
        Router((Route("GET", METRICS_PATH, _render, is_public=True),)),
        Call[FollowerContext],
        _request_limits(DEFAULT_LIMITS),
        _CODES,
        problem_response,
        _RequestCounter(meters),
        lambda _call: None,
    )
    return await _open_listener(
        where, lambda guard: HttpServer(dispatcher, _connection_limits(DEFAULT_LIMITS), guard=guard)
    )


async def _render(call: Call[FollowerContext]) -> HttpResponse:
    return HttpResponse(200, call.context.meters.render(), CONTENT_TYPE)


async def _open_listener(where: ListenAddress | Path, make: Callable[[Guard], HttpServer]) -> MetricsListener:
    server = make(Guard(UNIX if isinstance(where, Path) else site_of(where, Protection())))
    if isinstance(where, Path):
        return MetricsListener(server, await listen_unix(server, where), where)
    listening, port = await listen_tcp(server, where.host, where.port)
    return MetricsListener(server, listening, ListenAddress(where.host, port))


@dataclass(frozen=True, slots=True)
class MetricsListener:
    """The open listener of the metrics."""

    server: HttpServer
    listening: asyncio.Server
    where: ListenAddress | Path

    async def close(self) -> None:
        """Stop listening, end open connections, and remove the socket."""
        self.listening.close()
        self.server.pre_shutdown()
        await self.server.shutdown(_METRICS_STOP_S)
        if isinstance(self.where, Path):
            self.where.unlink(missing_ok=True)


def authorize(call: RelayCall) -> None:
    """Raise authentication_required or token_invalid unless the route is public or the request has a valid token.

    A header with a value that the relay does not know is refused here too.

    The token of a member also protects its connection from making room for newer ones.
    """
    wants_ns_as_text(call.request)
    is_open = call.route.is_public or call.has_metrics_token
    node = call.known_node if is_open else call.node
    if node is not None and call.context.is_member(node) and isinstance(call.request.protocol, HttpConnection):
        call.request.protocol.promote(node)


class _RelayDispatcher(Dispatcher[RelayCall]):
    """Answers with nanoseconds as text if the caller asks for them."""

    def to_stream(self, request: BaseRequest, response: HttpResponse) -> StreamResponse:
        if response.response is None and NS_HEADER in request.headers and response.media_type.endswith("json"):
            response.body = write_ns_as_text(response.body)
        return super().to_stream(request, response)


class _RequestCounter:
    """Counts the requests of a relay."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def answered(self, route: str, response: HttpResponse, elapsed_s: float) -> None:
        self._meters.count("posthouse_relay_requests_total", route, str(response.status))
        if response.response is None:  # a stream's duration says nothing about the relay
            self._meters.observe("posthouse_relay_request_seconds", elapsed_s)

    def refused(self, code: str) -> None:
        """Count nothing: the relay counts requests by status only."""


def _request_limits(limits: EdgeLimits) -> RequestLimits:
    body = BodyLimits(limits.small_body_bytes, limits.body_s, stranger_bytes=limits.stranger_body_bytes)
    return RequestLimits(
        limits.requests_running, body, limits.request_s, limits.unfinished_per_address, limits.unfinished_bytes
    )


def _connection_limits(limits: EdgeLimits) -> ConnectionLimits:
    return ConnectionLimits(
        header_bytes=limits.header_bytes,
        headers=limits.headers,
        keepalive_s=limits.keepalive_s,
        header_s=limits.header_s,
        admission=AdmissionLimits(
            limits.connections,
            limits.connections_per_address,
            limits.strangers_per_address,
            limits.connections_per_node,
        ),
    )
