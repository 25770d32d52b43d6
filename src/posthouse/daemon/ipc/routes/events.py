"""GET /v1/events: what happens, as server-sent events.

With Last-Event-ID the messages that came after that one are told first, from the inbox; listening begins before
they are read, so nothing is missed, and what was read is not told twice.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from posthouse.answer import Answer
from posthouse.daemon.events import MESSAGE, Listener, message_happening
from posthouse.daemon.inbox import InboxItem
from posthouse.daemon.ipc.call import Call
from posthouse.model.errors import error

_PAGE = 200
_WRITE_S = 30.0
_COMMENT = b": still here\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def stream(call: Call) -> Answer:
    """Tell events until the client goes away, falls behind, or the daemon stops."""
    daemon = call.daemon
    async with call.service.stream():
        listener = daemon.events.listen(daemon.settings.limits.stream_events)
        try:
            after = await _resume_position(call)
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(call.request)
            await _write(response, _COMMENT)
            told = 0 if after is None else await _tell_stored(call, response, after)
            await _tell_live(call, response, listener, told)
        finally:
            daemon.events.leave(listener)
    return Answer(response=response)


def _frame(item: InboxItem) -> bytes:
    return message_happening(item.id, item.position, item.shown(), item.received_at_ns).frame()


async def _resume_position(call: Call) -> int | None:
    last = call.request.headers.get("Last-Event-ID")
    if last is None:
        return None
    position = await call.daemon.inbox.position_of(last)
    if position is None:
        raise error("inbox_item_unknown", id=last[:80])
    return position


async def _tell_stored(call: Call, response: web.StreamResponse, after: int) -> int:
    while items := await call.daemon.inbox.items_after(after, _PAGE):
        await _write(response, b"".join(_frame(item) for item in items))
        after = items[-1].position
    return after


async def _tell_live(call: Call, response: web.StreamResponse, listener: Listener, told: int) -> None:
    comment_s = call.daemon.settings.limits.comment_s
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
