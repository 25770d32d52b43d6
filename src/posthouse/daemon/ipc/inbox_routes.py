"""Routes for incoming messages: /v1/inbox (read, wait, move a mark, mark seen), GET /v1/events (server-sent events).

With Last-Event-ID a stream first sends the stored messages after that one. It subscribes to live events before it
reads the stored messages, so it misses none, and it skips live events of messages that it has already sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from aiohttp import web

from posthouse.daemon.agents.marks import InboxPosition, mark_name
from posthouse.daemon.context import LocalCall
from posthouse.daemon.event_hub import MESSAGE, Listener, message_event
from posthouse.daemon.inbox.inbox import InboxItem
from posthouse.daemon.inbox.selection import InboxFilter, search_expression
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.clock import parse_utc
from posthouse.model.errors import error

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
MAX_WAIT_S = 600.0
MAX_SEEN = 1_000
_HELD_MIN_S = 0.05  # between looks at a pause that is about to end
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")  # how a time begins; ids of messages have no hyphen


class _Selection(msgspec.Struct, forbid_unknown_fields=True):
    """The conditions that reading and marking share."""

    #: an inbox id, a message id or a time; only later messages are selected
    after: str | None = None
    #: as `after`; only earlier messages are selected
    before: str | None = None
    topic: str | None = None
    #: a name, prefix or node id
    from_: str | None = msgspec.field(default=None, name="from")
    #: words and "phrases" that the text must have
    search: str | None = None


class _InboxQuery(_Selection):
    #: the older name of `after`
    since: str | None = None
    unread: bool = False
    #: unread mail and mail after a message come oldest first, everything else newest first
    order: Literal["oldest", "newest"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    #: only mail after the mark of this reader, oldest first; the answer names the mark to move
    reader: str | None = None


class _MarkBody(msgspec.Struct, forbid_unknown_fields=True):
    #: as the inbox answered it
    mark: str
    #: messages that the reader has
    ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_LIMIT)]


class _SeenBody(_Selection):
    ids: list[str] | None = None
    #: without another condition: mark everything
    all: bool = False


async def list_inbox(call: LocalCall) -> HttpResponse:
    """Return a page of messages and where the next one begins; with wait_s, wait for the first one if there is none."""
    arguments = call.arguments(_InboxQuery)
    after = arguments.since if arguments.after is None else arguments.after
    is_oldest_first = arguments.unread or after is not None or arguments.reader is not None
    wanted = (await _inbox_filter(call, arguments, after))._replace(
        is_unread=arguments.unread,
        is_newest_first=not is_oldest_first if arguments.order is None else arguments.order == "newest",
        limit=arguments.limit + 1,  # one more shows that there is a next page
    )
    mark = _mark(arguments)
    if mark is not None:
        inbox = call.context.inbox
        reached = await call.context.marks.position(call.agent, mark, inbox.mesh, inbox.store.epoch)
        wanted = wanted._replace(after=max(wanted.after, reached))
    # a reader with a mark would be woken by its mail; any other request reads what there is
    items = await (call.context.inbox.items(wanted) if mark is None else _wakeful_items(call, wanted))
    if not items and arguments.wait_s:
        items = await _wait_for_items(call, wanted, arguments.wait_s)
    shown = items[: arguments.limit]
    following = shown[-1].id if len(items) > arguments.limit else None
    return json_response({"items": [item.to_api() for item in shown], "next": following, "mark": mark})


def _mark(arguments: _InboxQuery) -> str | None:
    """Return the name of the mark after which a reader asks for mail."""
    if arguments.reader is None:
        return None
    if arguments.order == "newest":
        raise error("parameter_invalid", name="order", reason="a reader with a mark gets mail oldest first")
    return mark_name(arguments.reader, {"from": arguments.from_, "topic": arguments.topic, "search": arguments.search})


async def move_mark(call: LocalCall) -> HttpResponse:
    """Move a reader's mark behind messages that it has; a mark never moves back."""
    body = await call.body(_MarkBody)
    inbox = call.context.inbox
    newest = max([(await inbox.find(each, call.agent)).position for each in body.ids])
    await call.context.marks.move(call.agent, body.mark, InboxPosition(inbox.mesh, inbox.store.epoch, newest))
    return json_response({"mark": body.mark})


async def show_inbox_item(call: LocalCall) -> HttpResponse:
    """Return one message, by its id in the inbox or its message id."""
    return json_response((await call.context.inbox.find(call.id, call.agent)).to_api())


async def mark_seen(call: LocalCall) -> HttpResponse:
    """Mark messages as read: those with the given ids, or all that the conditions select."""
    body = await call.body(_SeenBody)
    conditions = (body.after, body.before, body.topic, body.from_, body.search)
    is_selection = body.all or any(each is not None for each in conditions)
    if (body.ids is not None) == is_selection:
        raise error("body_invalid", reason="give either ids, or conditions, or all")
    if body.ids is None:
        wanted = await _inbox_filter(call, body, body.after)
        return json_response({"count": await call.context.inbox.mark_all_seen(wanted)})
    if len(body.ids) > MAX_SEEN:
        raise error("body_invalid", reason=f"at most {MAX_SEEN} ids at once")
    return json_response({"count": await call.context.inbox.mark_seen(body.ids, call.agent)})


async def _inbox_filter(call: LocalCall, given: _Selection, after: str | None) -> InboxFilter:
    first, since_ns = await _boundary(call, after)
    last, until_ns = await _boundary(call, given.before)
    return InboxFilter(
        after=first or 0,
        before=last,
        since_ns=since_ns or 0,
        until_ns=until_ns,
        topic=None if given.topic is None else given.topic.removeprefix(TOPIC_MARK),
        sender=None if given.from_ is None else await call.context.uplink.resolve(given.from_),
        search=None if given.search is None else search_expression(given.search),
        agent=call.agent,
    )


async def _boundary(call: LocalCall, text: str | None) -> tuple[int | None, int | None]:
    """Return the position of a message, or the time, that a text names."""
    if text is None:
        return None, None
    if _TIME.match(text):
        return None, parse_utc(text)
    return (await call.context.inbox.find(text, call.agent)).position, None


async def _wait_for_items(call: LocalCall, wanted: InboxFilter, wait_s: float) -> list[InboxItem]:
    """Wait until a matching message arrives, then return all that match."""
    has_arrived = asyncio.Event()

    def wake(_changed: Sequence[object]) -> None:
        has_arrived.set()

    context = call.context
    context.inbox.on_new.append(wake)
    context.pauses.on_change.append(wake)
    try:
        with call.waiting(context.waiters):
            deadline_s = asyncio.get_running_loop().time() + wait_s
            while True:
                has_arrived.clear()
                # one may have arrived before the callback was registered
                items = await _wakeful_items(call, wanted)
                left_s = deadline_s - asyncio.get_running_loop().time()
                if items or left_s <= 0 or context.is_stopping:
                    return items
                held_s = context.pauses.held_s(call.agent)
                await context.wait_for(has_arrived, min(left_s, max(held_s, _HELD_MIN_S)) if held_s else left_s)
    finally:
        context.inbox.on_new.remove(wake)
        context.pauses.on_change.remove(wake)


async def _wakeful_items(call: LocalCall, wanted: InboxFilter) -> list[InboxItem]:
    """Return the messages that may wake the agent: none while it is paused, then one at a time of those that waited."""
    pauses, agent = call.context.pauses, call.agent
    if pauses.held_s(agent):
        return []
    items = await call.context.inbox.items(wanted)
    if not pauses.is_releasing(agent):
        return items
    if not items:
        if not wanted.has_conditions:
            await pauses.finish(agent)
        return []
    await pauses.note_release(agent)
    return items[:1]


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
    return message_event(item.id, item.position, item.to_api(), item.received_at_ns, item.agent).frame()


async def _resume_position(call: LocalCall) -> int | None:
    last = call.request.headers.get("Last-Event-ID")
    if last is None:
        return None
    return (await call.context.inbox.find(last, call.agent)).position


async def _send_stored(call: LocalCall, response: web.StreamResponse, after: int) -> int:
    while items := await call.context.inbox.items(InboxFilter(after=after, limit=_PAGE, agent=call.agent)):
        await _write(response, b"".join(_frame(item) for item in items))
        after = items[-1].position
    return after


async def _send_live(call: LocalCall, response: web.StreamResponse, listener: Listener, sent: int) -> None:
    agent = call.agent
    comment_s = call.context.settings.limits.comment_s
    while not listener.is_closed:
        events = await listener.next_batch(comment_s)
        fresh = [each for each in events if each.event != MESSAGE or (each.agent == agent and each.position > sent)]
        if fresh or not events:
            await _write(response, b"".join(each.frame() for each in fresh) or _COMMENT)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write to a client; end the stream of one that does not read, so that it does not keep its place."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(data)
    except TimeoutError as fault:
        raise ConnectionResetError("the reader of an event stream does not read") from fault
