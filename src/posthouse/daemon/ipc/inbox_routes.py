"""Routes for incoming messages: /v1/inbox (read, wait, mark seen) and GET /v1/events (server-sent events).

With Last-Event-ID a stream first sends the messages after that one from the inbox. It starts listening before it
reads them, so no message is missed, and it skips live events that it has already sent.
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
    #: an inbox id (what came after it), or a time
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
    """Return messages, newest first; with wait_s wait for the first one if there is none."""
    given = call.arguments(_InboxQuery)
    wanted = await _inbox_filter(call, given)
    items = await call.context.inbox.items(wanted)
    if not items and given.wait_s:
        items = await _wait_for_items(call, wanted, given.wait_s)
    return json_response({"items": [item.shown() for item in items]})


async def show_inbox_item(call: LocalCall) -> HttpResponse:
    """Return one message, by its id in the inbox or its message id."""
    return json_response((await call.context.inbox.find(call.id)).shown())


async def mark_seen(call: LocalCall) -> HttpResponse:
    """Note that messages were seen."""
    ids = (await call.body(_SeenBody)).ids
    if len(ids) > MAX_SEEN:
        raise error("body_invalid", reason=f"at most {MAX_SEEN} ids at once")
    return json_response({"count": await call.context.inbox.mark_seen(ids)})


async def _inbox_filter(call: LocalCall, given: _InboxQuery) -> InboxFilter:
    after, since_ns = 0, 0
    if given.since is not None and _ITEM_ID.fullmatch(given.since):
        position = await call.context.inbox.position_of(given.since)
        if position is None:
            raise error("inbox_item_unknown", id=given.since)
        after = position
    elif given.since is not None:
        since_ns = parse_utc(given.since)
    sender = None if given.from_ is None else await call.context.uplink.resolve(given.from_)
    topic = None if given.topic is None else given.topic.removeprefix(TOPIC_MARK)
    return InboxFilter(after, topic, sender, given.unread, given.limit, since_ns)


async def _wait_for_items(call: LocalCall, wanted: InboxFilter, wait_s: float) -> list[InboxItem]:
    """Sleep until a message comes that is wanted; then look at all of them."""
    news = asyncio.Event()

    def tell(fresh: Sequence[InboxItem]) -> None:
        if any(wanted.matches(item) for item in fresh):
            news.set()

    inbox = call.context.inbox
    inbox.on_new.append(tell)
    try:
        items = await inbox.items(wanted)  # again: one may have come before we listened
        if items:
            return items
        with call.waiting(call.context.waiters):
            await call.context.wait_for(news, wait_s)
    finally:
        inbox.on_new.remove(tell)
    return await inbox.items(wanted)


_PAGE = 200
_WRITE_S = 30.0
_COMMENT = b": still here\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def stream_events(call: LocalCall) -> HttpResponse:
    """Tell events until the client goes away, falls behind, or the daemon stops."""
    context = call.context
    with call.waiting(call.context.streams):
        listener = context.events.listen(context.settings.limits.stream_events)
        try:
            after = await _resume_position(call)
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(call.request)
            await _write(response, _COMMENT)
            told = 0 if after is None else await _send_stored(call, response, after)
            await _send_live(call, response, listener, told)
        finally:
            context.events.leave(listener)
    return HttpResponse(response=response)


def _frame(item: InboxItem) -> bytes:
    return message_event(item.id, item.position, item.shown(), item.received_at_ns).frame()


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


async def _send_live(call: LocalCall, response: web.StreamResponse, listener: Listener, told: int) -> None:
    comment_s = call.context.settings.limits.comment_s
    while not listener.is_over:
        happenings = await listener.take(comment_s)
        fresh = [each for each in happenings if each.event != MESSAGE or each.position > told]
        if fresh or not happenings:
            await _write(response, b"".join(each.frame() for each in fresh) or _COMMENT)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write to a client; one that does not read loses its stream instead of holding its place."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(data)
    except TimeoutError as fault:
        raise ConnectionResetError("the reader of an event stream does not read") from fault
