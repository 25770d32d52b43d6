"""The route /v1/stream: a WebSocket that speaks the stream protocol."""

from __future__ import annotations

import itertools

from posthouse.http.response import HttpResponse
from posthouse.http.router import Route
from posthouse.relay.context import RelayCall
from posthouse.relay.stream.commands import VERBS
from posthouse.relay.stream.connection import Connection
from posthouse.relay.wire.websocket import serve_websocket

_numbers = itertools.count(1)


async def stream(call: RelayCall) -> HttpResponse:
    """Speak the stream protocol until either side ends it."""
    context, name = call.context, f"stream {next(_numbers)}"
    response = await serve_websocket(
        call.request,
        context.limits,
        context.limits.frame_bytes,
        context.connections,
        lambda socket, write_buffer: Connection(context, socket, write_buffer, name, VERBS),
    )
    return HttpResponse(101, response=response)


STREAM_ROUTES = (
    Route(
        "GET",
        "/v1/stream",
        stream,
        "Open the WebSocket stream",
        is_public=True,
        responses={101: None},
        media_type="text/plain",
        may_wait=True,
    ),
)
