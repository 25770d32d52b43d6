"""Mirrors over HTTP: push, read, fetch and compare the events of a mesh; only for nodes in `relay.mirrors`."""

from __future__ import annotations

import msgspec

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model import mirror
from posthouse.model.errors import error
from posthouse.relay.context import RelayCall
from posthouse.relay.replication.range_fingerprints import decode_message, encode_message

_EVENTS = msgspec.json.Decoder(mirror.MirrorEvents)


async def push_events(call: RelayCall) -> HttpResponse:
    """Store events of another relay that this one does not know."""
    node = call.node
    data = await call.read(call.context.limits.body_bytes)
    try:
        events = [bytes(event) for event in _EVENTS.decode(data).events]
    except (ValueError, RecursionError) as fault:
        raise error("body_invalid", reason=str(fault)) from fault
    return json_response(await call.context.engine.mirroring.push(node, call.params["mesh"], events))


async def read_events(call: RelayCall) -> HttpResponse:
    """Return events of a mesh, of all readers, after a cursor."""
    body = await call.body(mirror.MirrorRead)
    wanted = mirror.mirror_filter(call.params["mesh"], body.filter)
    return json_response(await call.context.engine.mirroring.read(call.node, wanted, body.after, body.wait_s))


async def fetch_events(call: RelayCall) -> HttpResponse:
    """Return events by their ids, and which of them are gone."""
    body = await call.body(mirror.MirrorIds)
    return json_response(await call.context.engine.mirroring.fetch(call.node, call.params["mesh"], body.ids))


async def compare_events(call: RelayCall) -> HttpResponse:
    """Answer a message of range fingerprints."""
    data = await call.read(call.context.limits.body_bytes)
    try:
        body = msgspec.json.decode(data, type=mirror.MirrorCompare)
        message = decode_message(body.message)
    except (ValueError, RecursionError) as fault:
        raise error("body_invalid", reason=str(fault)) from fault
    wanted = mirror.mirror_filter(call.params["mesh"], body.filter)
    answered = await call.context.engine.mirroring.compare(call.node, wanted, message)
    return json_response(mirror.MirrorAnswer(encode_message(answered)))


MIRROR_ROUTES = (
    Route(
        "POST",
        "/v1/mirror/{mesh}/push",
        push_events,
        "Store events of another relay (mirrors)",
        bodies=(mirror.MirrorEvents,),
        responses={200: mirror.MirrorPushed},
    ),
    Route(
        "POST",
        "/v1/mirror/{mesh}/read",
        read_events,
        "Read the events of a mesh (mirrors)",
        bodies=(mirror.MirrorRead,),
        responses={200: mirror.MirrorPage},
        may_wait=True,
    ),
    Route(
        "POST",
        "/v1/mirror/{mesh}/fetch",
        fetch_events,
        "Read events of a mesh by their ids (mirrors)",
        bodies=(mirror.MirrorIds,),
        responses={200: mirror.MirrorFetched},
    ),
    Route(
        "POST",
        "/v1/mirror/{mesh}/compare",
        compare_events,
        "Compare the events of a mesh with another relay (mirrors)",
        bodies=(mirror.MirrorCompare,),
        responses={200: mirror.MirrorAnswer},
        may_wait=True,
    ),
)
