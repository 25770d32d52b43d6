"""Followers over HTTP: a copy of the store, then its changes; only for nodes in `relay.followers`."""

from __future__ import annotations

import asyncio
import os
from typing import IO, Annotated

import msgspec
from aiohttp.web_response import StreamResponse
from msgspec import Meta

from posthouse.http.response import SAFETY_HEADERS, HttpResponse
from posthouse.http.router import Route
from posthouse.model.limits import INT64_MAX, MIB
from posthouse.relay.context import RelayCall
from posthouse.relay.replication.followers import WAIT_MAX_S
from posthouse.relay.wire.change_groups import MEDIA_TYPE, StreamPosition, encode_page

COPY_MEDIA_TYPE = "application/vnd.sqlite3"
_CHUNK_BYTES = MIB


async def send_copy(call: RelayCall) -> HttpResponse:
    """Send a copy of the store; the changes after it are recorded from now on."""
    with await call.context.engine.followers.open_copy(call.node) as file:
        size = os.fstat(file.fileno()).st_size
        response = StreamResponse(
            headers={**SAFETY_HEADERS, "Content-Type": COPY_MEDIA_TYPE, "Content-Length": str(size)}
        )
        await response.prepare(call.request)
        if call.request.method != "HEAD":
            await _send(file, response)
        return HttpResponse(response=response)


async def _send(file: IO[bytes], response: StreamResponse) -> None:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        await response.write(chunk)
    await response.write_eof()


Number = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The position of a copy."""

    stream: Annotated[str, Meta(description="The recording that the copy follows.", pattern="^[0-9a-f]{32}$")]
    number: Annotated[Number, Meta(description="The last group that the copy has.")]
    digest: Annotated[str, Meta(description="The digest of that group.", pattern="^[0-9a-f]{64}$")]
    head: Annotated[Number, Meta(description="The newest seq that the copy has.")] = 0
    wait_s: Annotated[float, Meta(description="How long to wait for the first change.", ge=0, le=WAIT_MAX_S)] = 0.0


async def send_changes(call: RelayCall) -> HttpResponse:
    """Return the changes after a position, or follow_restart: then only a new copy helps."""
    given = call.arguments(ChangesQuery)
    after = StreamPosition(given.stream, given.number, bytes.fromhex(given.digest))
    page = await call.context.engine.followers.read(call.node, after, given.head, given.wait_s)
    return HttpResponse(200, encode_page(page), MEDIA_TYPE)


FOLLOW_ROUTES = (
    Route(
        "GET",
        "/v1/follow/copy",
        send_copy,
        "Read a copy of the store (followers)",
        responses={200: None},
        media_type=COPY_MEDIA_TYPE,
        may_wait=True,
    ),
    Route(
        "GET",
        "/v1/follow/changes",
        send_changes,
        "Read the changes of the store after a copy (followers)",
        query=ChangesQuery,
        responses={200: None},
        media_type=MEDIA_TYPE,
        may_wait=True,
    ),
)
