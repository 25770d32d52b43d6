"""The route by which the other relays of a store connect to this one; served only by a relay that shares its store."""

from __future__ import annotations

from posthouse.http.guard import bearer_token
from posthouse.http.response import HttpResponse
from posthouse.http.router import Route
from posthouse.model.errors import error
from posthouse.relay.auth import peer_tokens
from posthouse.relay.cluster.peer_links import FRAME_BYTES, PEER_PATH
from posthouse.relay.cluster.peer_server import PeerConnection
from posthouse.relay.context import RelayCall
from posthouse.relay.wire.websocket import serve_websocket


async def connect_peer(call: RelayCall) -> HttpResponse:
    """Speak with another relay of the same store, which proves that it has the relay's key."""
    context, cluster = call.context, call.context.engine.cluster
    token = bearer_token(call.request.headers.get("Authorization", ""))
    if cluster is None or token is None or peer_tokens(context.key, context.clock).node_of(token) != context.relay:
        raise error("token_invalid")
    limits = context.limits
    response = await serve_websocket(
        call.request,
        limits,
        FRAME_BYTES,
        context.peers,
        context.outbound,
        lambda socket, write_buffer: PeerConnection(
            cluster, socket, write_buffer, context.relay, limits.ping_s, limits.pong_s
        ),
        call.address,
    )
    return HttpResponse(101, response=response)


PEER_ROUTES = (
    Route(
        "GET",
        PEER_PATH,
        connect_peer,
        "Connect another relay of the same store",
        is_public=True,
        responses={101: None},
        media_type="text/plain",
        may_wait=True,
    ),
)
