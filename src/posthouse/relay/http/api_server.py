"""The relay's HTTP server: the shared server with the relay's limits, error codes, authorization and metrics.

The guard checks Host and Origin of every request; each route that is not public requires a token. Requests and
connections are counted here; the metrics read the numbers of the server that this module returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from posthouse.http.call import BodyLimits
from posthouse.http.dispatch import Dispatcher, RequestLimits, ServerCodes
from posthouse.http.guard import Guard
from posthouse.http.response import HttpResponse, problem_response
from posthouse.http.router import Route, Router
from posthouse.http.server import ConnectionLimits, HttpServer
from posthouse.relay.context import RelayCall, RelayContext
from posthouse.relay.metrics import Meters
from posthouse.relay.wire.edge_limits import EdgeLimits

_CODES = ServerCodes(busy="requests_exhausted", stopping="relay_stopping", timeout="relay_not_ready")


def make_http_server(context: RelayContext, routes: Sequence[Route[RelayCall]], guard: Guard) -> HttpServer:
    """Return the HTTP server of a relay, ready to listen."""
    limits, meters = context.limits, context.meters
    dispatcher = Dispatcher(
        context,
        Router(routes),
        RelayCall,
        _request_limits(limits),
        _CODES,
        problem_response,
        _RequestCounter(meters),
        authorize,
    )
    server = HttpServer(dispatcher, _connection_limits(limits), guard=guard, outbound=context.outbound)
    server.on_refused = partial(meters.count, "posthouse_relay_connections_refused_total")
    return server


def authorize(call: RelayCall) -> None:
    """Raise authentication_required or token_invalid unless the route is public or the request has a valid token."""
    if not call.route.is_public:
        _ = call.node


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
    body = BodyLimits(limits.small_body_bytes, limits.body_s)
    return RequestLimits(limits.requests_running, body, limits.request_s)


def _connection_limits(limits: EdgeLimits) -> ConnectionLimits:
    return ConnectionLimits(
        header_bytes=limits.header_bytes,
        headers=limits.headers,
        keepalive_s=limits.keepalive_s,
        header_s=limits.header_s,
        connections=limits.connections,
        connections_per_address=limits.connections_per_address,
    )
