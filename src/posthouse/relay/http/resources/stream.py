"""/v1/stream: where HTTP becomes a WebSocket."""

from __future__ import annotations

from posthouse.answer import Answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Access, Route
from posthouse.relay.stream.socket import serve_stream


async def stream(call: Call) -> Answer:
    """Speak the stream protocol until either side ends it."""
    return Answer(101, response=await serve_stream(call.edge, call.request))


ROUTES = (
    Route(
        "GET",
        "/v1/stream",
        stream,
        "Open the WebSocket stream",
        Access.ANYBODY,
        answers={101: None},
        media_type="text/plain",
        may_wait=True,
    ),
)
