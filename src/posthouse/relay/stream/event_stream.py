"""GET /v1/events/stream: one subscription over HTTP, as server-sent events or as lines of JSON (NDJSON).

    {"type": "event", "cursor", "event": {..., "seq"}}     stored events, then live ones; no cursor if it is not stored
    {"type": "eose", "cursor"}                             between stored and live events
    {"type": "closed", "cursor", "problem": {...}}         last, if the relay ends the stream

A server-sent event has the same object as `data`, its type as `event` and its cursor as `id`, so a browser resumes by
itself. Rights, filters and limits are those of a WebSocket subscription, because it is the same Subscription. A refusal
before the first line is a problem with its status. The stream ends when its token expires.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
import structlog
from aiohttp import HttpVersion11
from aiohttp.web_response import StreamResponse
from msgspec import Meta

from posthouse.http.response import SAFETY_HEADERS, HttpResponse, Problem
from posthouse.http.router import Route
from posthouse.http.server import HttpConnection
from posthouse.model.api import StoredEventBody
from posthouse.model.errors import PosthouseError, error
from posthouse.model.filters import Filter, filter_from_query
from posthouse.model.limits import QUERY_MAX_LIMIT
from posthouse.model.strict_json import write_ns_as_text
from posthouse.relay.context import RelayCall, wants_ns_as_text
from posthouse.relay.http.schemas import AUTHORS, CURSOR, IDS, KINDS, MESH, SINCE, UNTIL
from posthouse.relay.stream.subscriptions import Subscription, Wanted, check_filter_values, count_values
from posthouse.relay.wire.frames import EncodedEvent, WriteBuffer, read_filters

log = structlog.get_logger(__name__)
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
_MEDIA_TYPES = {"sse": SSE, "ndjson": NDJSON}
_FAREWELL_S = 10.0  # for the last lines of a stream; a reader that does not take them in time is dropped
_encode = msgspec.json.Encoder().encode


class LineFormat:
    """A subscription as server-sent events or lines of JSON, in chunks of HTTP/1.1."""

    def __init__(
        self, cursor_of: Callable[[int], str], *, is_sse: bool, is_chunked: bool, has_ns_as_text: bool
    ) -> None:
        self.key = b"http %d %d %d" % (is_sse, is_chunked, has_ns_as_text)
        self._cursor_of = cursor_of
        self._is_sse = is_sse
        self._is_chunked = is_chunked
        self._has_ns_as_text = has_ns_as_text
        #: sent to a silent reader, so that a connection that broke is noticed
        self.still_here = self._chunk(b": still here\n\n" if is_sse else b"\n")

    def events(self, events: Sequence[EncodedEvent]) -> bytes:
        """Return one line for each event."""
        return self._chunk(b"".join([self._event(event) for event in events]))

    def stored_end(self, cursor: str | None) -> bytes:
        return self._chunk(self._line(b"eose", cursor, b"}"))

    def closed(self, failure: PosthouseError, cursor: str | None) -> bytes:
        return self._chunk(self._line(b"closed", cursor, b',"problem":%b}' % _encode(failure.problem())))

    def _event(self, event: EncodedEvent) -> bytes:
        cursor = None if event.seq is None else self._cursor_of(event.seq)
        raw = write_ns_as_text(event.raw) if self._has_ns_as_text else event.raw
        mark = b',"suspect":true' if event.is_suspect else b""
        return self._line(b"event", cursor, b',"event":%b,"seq":%b%b}}' % (raw[:-1], _encode(event.seq), mark))

    def _line(self, kind: bytes, cursor: str | None, rest: bytes) -> bytes:
        line = b'{"type":"%b","cursor":%b%b' % (kind, _encode(cursor), rest)
        if not self._is_sse:
            return line + b"\n"
        identity = b"" if cursor is None else b"id: %b\n" % cursor.encode()
        return b"event: %b\n%bdata: %b\n\n" % (kind, identity, line)

    def _chunk(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data


class HttpStream:
    """One open stream of one caller."""

    def __init__(self, call: RelayCall, write_buffer: WriteBuffer, layout: LineFormat, wanted: Wanted) -> None:
        self.context = call.context
        self.write_buffer = write_buffer
        self.stored_events_lock = asyncio.Lock()
        self._call = call
        self._layout = layout
        self._is_over = asyncio.Event()
        self._sent_bytes = -1
        self._subscription = Subscription(self, layout, call.node, wanted, self._is_over.set)

    def end(self, failure: PosthouseError) -> None:
        """Send why the stream ends and where to continue, and end it."""
        if not self._is_over.is_set():
            self.context.meters.count("posthouse_relay_streams_closed_total", failure.code)
        self._subscription.close(failure)

    def close(self) -> None:
        """End the stream of a client that is gone."""
        self._subscription.close()

    async def run(self) -> None:
        """Send events until the client leaves or the relay ends the stream."""
        context = self.context
        unwatch_rights = context.engine.meshes.watch_rights(self._check_right)
        context.event_streams[self] = None
        sending = asyncio.get_running_loop().create_task(self._send())
        try:
            while not self._is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(context.limits.ping_s):
                        await self._is_over.wait()
                self._check()
        finally:
            unwatch_rights()
            del context.event_streams[self]
            self._subscription.close()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _check_right(self, mesh: str) -> None:
        """End the stream of a key that was retired, or that lost its right to a mesh that it asks for."""
        try:
            _ = self._call.node
        except PosthouseError as failure:
            self.end(failure)
            return
        self._subscription.check_right(mesh)

    async def _send(self) -> None:
        try:
            await self._subscription.run()
        except ConnectionError:  # the client is gone
            self.close()
        except Exception as failure:
            log.error("stream_task_failed", reason=repr(failure), exc_info=failure)
            self.end(error("internal", reason=type(failure).__name__))

    def _check(self) -> None:
        """End the stream if its token has expired or its reader is stuck; send a keep-alive to a silent one."""
        if self._is_over.is_set():
            return
        sent = self.write_buffer.sent_bytes
        if self.write_buffer.unsent_bytes and sent == self._sent_bytes:
            self.write_buffer.abort()
            return
        self._sent_bytes = sent
        try:
            _ = self._call.node
        except PosthouseError as failure:
            self.end(failure)
            return
        self.write_buffer.write(self._layout.still_here)


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which events, from where, in which format."""

    ids: Annotated[str, IDS] | None = None
    authors: Annotated[str, AUTHORS] | None = None
    kinds: Annotated[str, KINDS] | None = None
    mesh: Annotated[str, MESH] | None = None
    since_ns: Annotated[int, SINCE] | None = None
    until_ns: Annotated[int, UNTIL] | None = None
    filter: (
        Annotated[str, Meta(description="A filter as JSON, as in REQ, instead of these; up to 10 of them.")] | None
    ) = None
    limit: (
        Annotated[
            int,
            Meta(description="Begin with the newest stored events, this many.", ge=0, le=QUERY_MAX_LIMIT),
        ]
        | None
    ) = None
    cursor: Annotated[str, CURSOR] | None = None
    format: Literal["sse", "ndjson"] | None = None


class StreamLine(msgspec.Struct):
    """One line of the stream."""

    type: Literal["event", "eose", "closed"]
    #: where to continue after this line; null in the line of an event that is not stored
    cursor: str | None
    #: in lines of type event
    event: StoredEventBody | None = None
    #: in the line of type closed
    problem: Problem | None = None


_OWN_PARAMETERS = frozenset({"cursor", "format", "filter"})


async def stream_events(call: RelayCall) -> HttpResponse:
    """Stream stored and live events until the client leaves, its rights end, or the relay stops."""
    node, wanted, media_type = call.node, _wanted(call), _media_type(call)
    check_filter_values(call.context.limits, count_values(wanted.filters))
    # a refusal has a status only before the first byte
    await call.context.engine.query(node, wanted.filters, cursor=wanted.cursor, limit=1)
    _count_connection(call, node)
    response = StreamResponse(headers={**SAFETY_HEADERS, "Content-Type": media_type, "X-Accel-Buffering": "no"})
    response.force_close()
    writer = await response.prepare(call.request)
    transport, limits = call.request.transport, call.context.limits
    if call.request.method == "HEAD" or transport is None or writer is None:
        return HttpResponse(response=response)
    write_buffer = WriteBuffer(
        transport,
        writer.drain,
        call.context.outbound.open(transport),
        max_events=limits.buffer_events,
        max_bytes=limits.buffer_bytes,
    )
    layout = LineFormat(
        call.context.engine.cursor,
        is_sse=media_type == SSE,
        is_chunked=call.request.version >= HttpVersion11,
        has_ns_as_text=wants_ns_as_text(call.request),
    )
    await _serve(call, HttpStream(call, write_buffer, layout, wanted), response)
    return HttpResponse(response=response)


async def _serve(call: RelayCall, stream: HttpStream, response: StreamResponse) -> None:
    connection = call.request.protocol
    if isinstance(connection, HttpConnection):
        connection.on_displaced, connection.on_lost = stream.end, stream.close
    await stream.run()
    try:
        async with asyncio.timeout(_FAREWELL_S):
            await stream.write_buffer.drain()
            await response.write_eof()
    except (TimeoutError, ConnectionError):  # it does not read its last lines, or is gone
        stream.write_buffer.abort()


def _count_connection(call: RelayCall, node: str) -> None:
    """Count the connection for its caller, as a WebSocket is counted, or raise connections_exhausted."""
    connection = call.request.protocol
    if not isinstance(connection, HttpConnection):
        return
    connection.become_stranger_of(call.address)
    refusal = None if call.is_stranger else connection.promote(node)
    if refusal is not None:
        raise refusal


def _wanted(call: RelayCall) -> Wanted:
    """Return the selection of the request, and where the stream begins.

    A client that resumes sends the address of its first request again with Last-Event-ID: then the header counts, and
    a limit, which only says how a stream begins, must not leave a gap.
    """
    given = [item for item in call.target.query if item[0] in _OWN_PARAMETERS - {"filter"}]
    if len({name for name, _ in given}) < len(given):
        raise error("parameter_invalid", name="cursor or format", reason="it is given twice")
    texts = [text.encode() for name, text in call.target.query if name == "filter"]
    plain = filter_from_query([item for item in call.target.query if item[0] not in _OWN_PARAMETERS])
    limit, filters = plain.limit, [replace(plain, limit=None)]
    if texts:
        if filters != [Filter()]:
            raise error("parameter_invalid", name="filter", reason="it cannot be combined with other conditions")
        filters = read_filters(texts)
    last = call.request.headers.get("Last-Event-ID")
    return Wanted(filters, last, None) if last else Wanted(filters, dict(given).get("cursor"), limit)


def _media_type(call: RelayCall) -> str:
    """Return the format that the request names, else the first of the two that it accepts, else NDJSON."""
    name = next((text for name, text in call.target.query if name == "format"), None)
    if name is not None:
        if name not in _MEDIA_TYPES:
            raise error("parameter_invalid", name="format", reason="it is neither sse nor ndjson")
        return _MEDIA_TYPES[name]
    accepted = [each.partition(";")[0].strip() for each in call.request.headers.get("Accept", "").lower().split(",")]
    return next((each for each in accepted if each in (SSE, NDJSON)), NDJSON)


EVENT_STREAM_ROUTES = (
    Route(
        "GET",
        "/v1/events/stream",
        stream_events,
        "Stream stored and live events",
        query=StreamQuery,
        responses={200: StreamLine},
        media_type=NDJSON,
        has_tag_filters=True,
        may_wait=True,
    ),
)
