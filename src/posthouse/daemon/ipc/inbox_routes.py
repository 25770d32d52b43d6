"""Routes for incoming messages: /v1/inbox (read, wait, mark seen) and GET /v1/events (server-sent events).

With Last-Event-ID a stream first sends the stored messages after that one. It subscribes to live events before it
reads the stored messages, so it misses none, and it skips live events of messages that it has already sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from posthouse.daemon.context import LocalCall
from posthouse.daemon.event_hub import MESSAGE, Listener, message_event
from posthouse.daemon.inbox.inbox import InboxFilter, InboxItem
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.clock import parse_utc
from posthouse.model.errors import error

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
MAX_WAIT_S = 600.0
MAX_SEEN = 1_000
_ITEM_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class _InboxQuery(msgspec.Struct):
    #: an inbox id or a time; only later messages are returned
    since: str | None = None
    topic: str | None = None
    #: a name, prefix or node id
    from_: str | None = msgspec.field(default=None, name="from")
    unread: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0


class _SeenBody(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


async def list_inbox(call: LocalCall) -> HttpResponse:
    """Return messages, newest first; with wait_s, wait for the first one if there is none."""
    arguments = call.arguments(_InboxQuery)
    wanted = await _inbox_filter(call, arguments)
    items = await call.context.inbox.items(wanted)
    if not items and arguments.wait_s:
        items = await _wait_for_items(call, wanted, arguments.wait_s)
    return json_response({"items": [item.to_api() for item in items]})


async def show_inbox_item(call: LocalCall) -> HttpResponse:
    """Return one message, by its id in the inbox or its message id."""
    return json_response((await call.context.inbox.find(call.id)).to_api())


async def mark_seen(call: LocalCall) -> HttpResponse:
    """Mark messages as read."""
    ids = (await call.body(_SeenBody)).ids
    if len(ids) > MAX_SEEN:
        raise error("body_invalid", reason=f"at most {MAX_SEEN} ids at once")
    return json_response({"count": await call.context.inbox.mark_seen(ids)})


async def _inbox_filter(call: LocalCall, arguments: _InboxQuery) -> InboxFilter:
    after, since_ns = 0, 0
    if arguments.since is not None and _ITEM_ID.fullmatch(arguments.since):
        position = await call.context.inbox.position_of(arguments.since)
        if position is None:
            raise error("inbox_item_unknown", id=arguments.since)
        after = position
    elif arguments.since is not None:
        since_ns = parse_utc(arguments.since)
    sender = None if arguments.from_ is None else await call.context.uplink.resolve(arguments.from_)
    topic = None if arguments.topic is None else arguments.topic.removeprefix(TOPIC_MARK)
    return InboxFilter(after, topic, sender, arguments.unread, arguments.limit, since_ns)


async def _wait_for_items(call: LocalCall, wanted: InboxFilter, wait_s: float) -> list[InboxItem]:
    """Wait until a matching message arrives, then return all that match."""
    has_arrived = asyncio.Event()

    def on_new(items: Sequence[InboxItem]) -> None:
        if any(wanted.matches(item) for item in items):
            has_arrived.set()

    inbox = call.context.inbox
    inbox.on_new.append(on_new)
    try:
        items = await inbox.items(wanted)  # one may have arrived before the callback was registered
        if items:
            return items
        with call.waiting(call.context.waiters):
            await call.context.wait_for(has_arrived, wait_s)
    finally:
        inbox.on_new.remove(on_new)
    return await inbox.items(wanted)


_PAGE = 200
_WRITE_S = 30.0
_COMMENT = b": still here\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def stream_events(call: LocalCall) -> HttpResponse:
    """Stream events until the client disconnects or falls behind, or the daemon stops."""
    context = call.context
    with call.waiting(call.context.streams):
        listener = context.events.subscribe(context.settings.limits.stream_events)
        try:
            after = await _resume_position(call)
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(call.request)
            await _write(response, _COMMENT)
            sent = 0 if after is None else await _send_stored(call, response, after)
            await _send_live(call, response, listener, sent)
        finally:
            context.events.unsubscribe(listener)
    return HttpResponse(response=response)


def _frame(item: InboxItem) -> bytes:
    return message_event(item.id, item.position, item.to_api(), item.received_at_ns).frame()


async def _resume_position(call: LocalCall) -> int | None:
    last = call.request.headers.get("Last-Event-ID")
    if last is None:
        return None
    position = await call.context.inbox.position_of(last)
    if position is None:
        raise error("inbox_item_unknown", id=last[:80])
    return position


async def _send_stored(call: LocalCall, response: web.StreamResponse, after: int) -> int:
    while items := await call.context.inbox.items_after(after, _PAGE):
        await _write(response, b"".join(_frame(item) for item in items))
        after = items[-1].position
    return after


async def _send_live(call: LocalCall, response: web.StreamResponse, listener: Listener, sent: int) -> None:
    comment_s = call.context.settings.limits.comment_s
    while not listener.is_closed:
        events = await listener.next_batch(comment_s)
        fresh = [each for each in events if each.event != MESSAGE or each.position > sent]
        if fresh or not events:
            await _write(response, b"".join(each.frame() for each in fresh) or _COMMENT)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write to a client; end the stream of one that does not read, so that it does not keep its place."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(data)
    except TimeoutError as fault:
        raise ConnectionResetError("the reader of an event stream does not read") from fault
