"""Routes for incoming messages: /v1/inbox (read, wait, move a mark, mark seen), GET /v1/events (server-sent events).

Without a mesh in the request they read every mesh of the daemon, merged by time. With Last-Event-ID a stream first
sends the stored messages after that one. It subscribes to live events before it
reads the stored messages, so it misses none, and it skips live events of messages that it has already sent.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from aiohttp.web_response import StreamResponse

from posthouse.daemon.agents.marks import MARK, READER, InboxPosition, mark_name
from posthouse.daemon.context import LocalCall
from posthouse.daemon.event_hub import MESSAGE, DaemonEvent, Listener, message_event
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.inbox.selection import SEARCH_MAX_CHARACTERS, InboxFilter, search_expression
from posthouse.daemon.ipc import merged
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.request_fields import InboxBoundary, MeshName, MessageKey, Peer, Topic, form
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.clock import Clock, format_utc, parse_utc
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.model.subjects import validate_topic

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
MAX_WAIT_S = 600.0
MAX_SEEN = 1_000
_HELD_MIN_S = 0.05  # between checks of a pause that is about to end
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")  # how a time begins; ids of messages have no hyphen

Search = Annotated[
    str,
    msgspec.Meta(
        description='Words and "phrases" that the text must have.',
        extra_json_schema={"pattern": r"[^\W_]", "maxLength": SEARCH_MAX_CHARACTERS},
    ),
]
ReaderName = Annotated[str, form("A reader, whose mark the daemon keeps.", READER.pattern)]
MarkName = Annotated[str, form("A mark, as the inbox answered it.", MARK.pattern)]


class Selection(msgspec.Struct, forbid_unknown_fields=True):
    """The conditions that reading and marking share."""

    #: only later messages are selected
    after: InboxBoundary | None = None
    #: only earlier messages are selected
    before: InboxBoundary | None = None
    topic: Topic | None = None
    from_: Peer | None = msgspec.field(default=None, name="from")
    search: Search | None = None
    #: any message of a thread; only messages of this thread
    thread: MessageKey | None = None
    mesh: MeshName | None = None


class InboxQuery(Selection):
    #: the older name of `after`
    since: InboxBoundary | None = None
    unread: bool = False
    #: unread mail and mail after a message come oldest first, everything else newest first
    order: Literal["oldest", "newest"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    #: only mail after the mark of this reader, oldest first; the answer names the mark to move
    reader: ReaderName | None = None


class ItemQuery(msgspec.Struct):
    #: show the text although the message is stale
    confirm: bool = False


class EventsQuery(msgspec.Struct):
    #: messages of every agent of this host as they arrive; only the agent's own are repeated after Last-Event-ID
    all_agents: bool = False


class MarkBody(msgspec.Struct, forbid_unknown_fields=True):
    mark: MarkName
    #: messages that the reader has
    ids: Annotated[list[MessageKey], msgspec.Meta(min_length=1, max_length=MAX_LIMIT)]
    mesh: MeshName | None = None


class SeenBody(Selection):
    ids: Annotated[list[MessageKey], form("Messages.", maxItems=MAX_SEEN)] | None = None
    #: without another condition: mark everything
    all: bool = False


async def list_inbox(call: LocalCall) -> HttpResponse:
    """Return a page of messages and where the next one begins; with wait_s, wait for the first one if there is none."""
    arguments = call.arguments(InboxQuery)
    after = arguments.since if arguments.after is None else arguments.after
    is_oldest_first = arguments.unread or after is not None or arguments.reader is not None
    is_newest_first = not is_oldest_first if arguments.order is None else arguments.order == "newest"
    mark = _mark(arguments)
    wanted = {
        node: filter_._replace(
            after=max(filter_.after, await _reached(call, node, mark)),
            is_unread=arguments.unread,
            is_newest_first=is_newest_first,
            limit=arguments.limit + 1,  # one more shows that there is a next page
        )
        for node, filter_ in (await _inbox_filters(call, arguments, after)).items()
    }

    async def find() -> list[InboxItem]:
        current = await _with_thread(call, wanted, arguments.thread)
        # a reader with a mark wakes up for its mail; any other request reads the mail that is there
        return await (_matching_items(current) if mark is None else _wakeful_items(call, current))

    # before the first read: later messages are after it
    ends = {node.mesh: 0 if is_newest_first else await node.inbox.newest_position() for node in wanted}
    items = await find()
    if not items and arguments.wait_s:
        items = await _wait_for_items(call, wanted, find, arguments.wait_s)
    following = merged.next_page(items, arguments.limit, lambda item: item.mesh, ends, newest_first=is_newest_first)
    now_ns = call.context.clock.wall_ns()
    shown = [item.to_api(now_ns) for item in items[: arguments.limit]]
    return json_response({"items": shown, "next": following, "mark": mark})


def _mark(arguments: InboxQuery) -> str | None:
    """Return the name of the mark after which a reader asks for mail."""
    if arguments.reader is None:
        return None
    if arguments.order == "newest":
        raise error("parameter_invalid", name="order", reason="a reader with a mark gets mail oldest first")
    return mark_name(
        arguments.reader,
        {"from": arguments.from_, "topic": arguments.topic, "search": arguments.search, "thread": arguments.thread},
    )


async def _reached(call: LocalCall, node: MeshNode, mark: str | None) -> int:
    """Return the position of a mark in one mesh, zero without a mark."""
    if mark is None:
        return 0
    return await call.context.marks.position(call.agent, mark, node.mesh, node.inbox.store.epoch)


async def move_mark(call: LocalCall) -> HttpResponse:
    """Move a reader's mark past messages that it has; a mark never moves back."""
    body = await call.body(MarkBody)
    newest: dict[MeshNode, int] = {}
    for each in body.ids:
        node, item = await merged.find_inbox_item(call, each)
        newest[node] = max(newest.get(node, 0), item.position)
        await node.inbox.note_handed([item.id], call.agent)
    for node, position in newest.items():
        to = InboxPosition(node.mesh, node.inbox.store.epoch, position)
        await call.context.marks.move(call.agent, body.mark, to)
    return json_response({"mark": body.mark})


async def show_inbox_item(call: LocalCall) -> HttpResponse:
    """Return one message, by its id in the inbox or its message id; a stale one only if the reader confirms."""
    is_confirmed, now_ns = call.arguments(ItemQuery).confirm, call.context.clock.wall_ns()
    node, item = await merged.find_inbox_item(call, call.id)
    if item.is_withheld(now_ns) and not is_confirmed:
        raise error("message_stale", id=item.message_id, valid_until=format_utc(item.valid_until_ns or 0))
    await node.inbox.note_handed([item.id], call.agent, is_confirmed=is_confirmed)
    return json_response(item.to_api(now_ns, is_confirmed=is_confirmed))


async def mark_seen(call: LocalCall) -> HttpResponse:
    """Mark messages as read: those with the given ids, or all that the conditions select."""
    body = await call.body(SeenBody)
    conditions = (body.after, body.before, body.topic, body.from_, body.search, body.thread)
    is_selection = body.all or any(each is not None for each in conditions)
    if (body.ids is not None) == is_selection:
        raise error("body_invalid", reason="give either ids, or conditions, or all")
    if body.ids is None:
        wanted = await _with_thread(call, await _inbox_filters(call, body, body.after), body.thread)
        return json_response({"count": sum([await node.inbox.mark_all_seen(each) for node, each in wanted.items()])})
    if len(body.ids) > MAX_SEEN:
        raise error("body_invalid", reason=f"at most {MAX_SEEN} ids at once")
    found = {node: await node.inbox.resolve(body.ids, call.agent) for node in call.meshes}
    unknown = [key for key in body.ids if not any(key in ids for ids in found.values())]
    if unknown:
        raise error("inbox_item_unknown", id=unknown[0][:80])
    counts = [await node.inbox.mark_seen(list(ids.values()), call.agent) for node, ids in found.items() if ids]
    return json_response({"count": sum(counts)})


#: the filter of each mesh that a request reads
_Wanted = Mapping[MeshNode, InboxFilter]


async def _inbox_filters(call: LocalCall, given: Selection, after: str | None) -> _Wanted:
    first, last = await _boundary(call, after), await _boundary(call, given.before)
    topic = None if given.topic is None else validate_topic(given.topic.removeprefix(TOPIC_MARK))
    search = None if given.search is None else search_expression(given.search)
    return {
        node: InboxFilter(
            **merged.bounds_in(node, first, last)._asdict(),
            topic=topic,
            sender=None if sender is None else sender.destination,
            from_agent=(None if sender is None else sender.agent) or None,
            search=search,
            agent=call.agent,
        )
        for node, sender in (await merged.resolve_in_meshes(call, given.from_)).items()
    }


async def _with_thread(call: LocalCall, wanted: _Wanted, thread: str | None) -> _Wanted:
    """Return the filters with the current messages of a thread: an answer may arrive while a request waits."""
    if thread is None:
        return wanted
    first = await merged.message_id_of(call, thread)
    return {
        node: each._replace(message_ids=await node.threads.message_ids(first, call.agent))
        for node, each in wanted.items()
    }


async def show_thread(call: LocalCall) -> HttpResponse:
    """Return the thread of a message, by its message id, inbox id, outbox row or client_message_id."""
    message_id = await merged.message_id_of(call, call.id)
    for node in call.meshes:
        thread = await node.threads.find(message_id, call.agent)
        if thread is not None:
            return json_response({"mesh": node.mesh} | thread.to_api())
    raise error("inbox_item_unknown", id=call.id[:80])


async def _boundary(call: LocalCall, text: str | None) -> merged.Boundary | None:
    """Return the message, the time, or the end of a page, that a string names."""
    if text is None:
        return None
    if _TIME.match(text):
        return merged.Boundary({}, parse_utc(text))
    page_end = merged.read_page_end(text)
    if page_end is not None:
        return page_end
    node, item = await merged.find_inbox_item(call, text)
    return merged.Boundary({node.mesh: item.position}, item.received_at_ns)


async def _matching_items(wanted: _Wanted) -> list[InboxItem]:
    """Return the messages that the filters select, over all meshes."""
    pages = [await node.inbox.items(filter_) for node, filter_ in wanted.items()]
    is_newest_first = any(filter_.is_newest_first for filter_ in wanted.values())
    return merged.merge_by_time(pages, lambda item: item.received_at_ns, newest_first=is_newest_first)


async def _wait_for_items(
    call: LocalCall, wanted: _Wanted, find: Callable[[], Awaitable[list[InboxItem]]], wait_s: float
) -> list[InboxItem]:
    """Wait until a matching message arrives, then return all that match."""
    has_arrived = asyncio.Event()

    def wake(_changed: Sequence[object]) -> None:
        has_arrived.set()

    context = call.context
    for node in wanted:
        node.inbox.on_new.append(wake)
    context.pauses.on_change.append(wake)
    try:
        with call.waiting(context.waiters):
            deadline_s = asyncio.get_running_loop().time() + wait_s
            while True:
                has_arrived.clear()
                # one may have arrived before the callback was registered
                items = await find()
                left_s = deadline_s - asyncio.get_running_loop().time()
                if items or left_s <= 0 or context.is_stopping:
                    return items
                held_s = context.pauses.held_s(call.agent)
                await context.wait_for(has_arrived, min(left_s, max(held_s, _HELD_MIN_S)) if held_s else left_s)
    finally:
        for node in wanted:
            node.inbox.on_new.remove(wake)
        context.pauses.on_change.remove(wake)


async def _wakeful_items(call: LocalCall, wanted: _Wanted) -> list[InboxItem]:
    """Return the messages that may wake the agent: none while it is paused, then one at a time of those that waited."""
    pauses, agent = call.context.pauses, call.agent
    pause = pauses.latest(agent)
    if pauses.held_s(agent):
        return []
    items = await _matching_items(wanted)
    if not items and not any(each.has_conditions for each in wanted.values()):
        await pauses.finish(agent, pause)
    if not any(item.wakes for item in items):
        waking = {node: each._replace(is_waking=True, limit=1) for node, each in wanted.items()}
        if not items or not await _matching_items(waking):  # it may be on a later page
            return []
    if not pauses.is_latest(agent, pause):
        return []  # a pause began or ended while the inbox was read: its callbacks cause the next look
    if not pauses.is_releasing(agent):
        return items
    await pauses.note_release(agent)
    return items[:1]


_PAGE = 200
_LAST_IDS_MAX = 100
_OVERLAP_NS = 5 * SECOND_NS  # longer than a commit takes
_WRITE_S = 30.0
_COMMENT = b": still here\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def stream_events(call: LocalCall) -> HttpResponse:
    """Stream events until the client disconnects or falls behind, or the daemon stops."""
    context, agent = call.context, None if call.arguments(EventsQuery).all_agents else call.agent
    with call.waiting(call.context.streams):
        listener = context.events.subscribe(context.settings.limits.stream_events)
        try:
            stored = await _resume_filters(call)
            response = StreamResponse(headers=_HEADERS)
            await response.prepare(call.request)
            await _write(response, _COMMENT)
            await _send_stored(response, stored, context.clock)
            sent = {node.mesh: each.after for node, each in stored.items()}
            await _send_live(call, agent, response, listener, sent)
        finally:
            context.events.unsubscribe(listener)
    return HttpResponse(response=response)


def _frame(item: InboxItem, now_ns: int) -> bytes:
    return message_event(item.id, item.position, item.to_api(now_ns), item.received_at_ns, item.agent).frame()


async def _resume_filters(call: LocalCall) -> dict[MeshNode, InboxFilter]:
    """Return the stored messages that a stream begins with: those after Last-Event-ID, none without it.

    The header names the last message of each mesh that the reader has, separated by commas. Meshes without one begin a
    little earlier than the newest of them, because two commits may become visible in another order than their times:
    their last messages are repeated, and none is left out.
    """
    last = call.request.headers.get("Last-Event-ID")
    if last is None:
        return {}
    found = [await merged.find_inbox_item(call, each.strip()) for each in last.split(",")[:_LAST_IDS_MAX]]
    since_ns = max(1, max(item.received_at_ns for _node, item in found) - _OVERLAP_NS)
    wanted = {node: InboxFilter(since_ns=since_ns, limit=_PAGE, agent=call.agent) for node in call.meshes}
    for node, item in found:
        after = max(item.position, wanted[node].after)
        wanted[node] = InboxFilter(after=after, limit=_PAGE, agent=call.agent)
    return wanted


async def _send_stored(response: StreamResponse, wanted: dict[MeshNode, InboxFilter], clock: Clock) -> None:
    """Send the stored messages, oldest first over all meshes; leave in `wanted` the positions that were sent."""
    while True:
        pages = {node: await node.inbox.items(filter_) for node, filter_ in wanted.items()}
        if not any(pages.values()):
            return
        # beyond the end of a full page its mesh may have older messages than another mesh
        full = [max(item.received_at_ns for item in page) for page in pages.values() if len(page) == _PAGE]
        through_ns = min(full) if full and len(pages) > 1 else None
        if through_ns is not None:
            pages = {node: _until(page, through_ns) for node, page in pages.items()}
        for node, page in pages.items():
            if page:
                wanted[node] = wanted[node]._replace(after=page[-1].position)
        items = merged.merge_by_time(pages.values(), lambda item: item.received_at_ns, newest_first=False)
        await _write(response, b"".join(_frame(item, clock.wall_ns()) for item in items))


def _until(page: Sequence[InboxItem], through_ns: int) -> list[InboxItem]:
    return list(itertools.takewhile(lambda item: item.received_at_ns <= through_ns, page))


async def _send_live(
    call: LocalCall, agent: str | None, response: StreamResponse, listener: Listener, sent: Mapping[str, int]
) -> None:
    """Send events as they come; messages of one agent, or of all (None)."""
    comment_s = call.context.settings.limits.comment_s
    while not listener.is_closed:
        events = await listener.next_batch(comment_s)
        fresh = [each for each in events if _is_unsent(each, call, agent, sent)]
        if fresh or not events:
            await _write(response, b"".join(each.frame() for each in fresh) or _COMMENT)


def _is_unsent(event: DaemonEvent, call: LocalCall, agent: str | None, sent: Mapping[str, int]) -> bool:
    """Return True if an event is to be sent: of a mesh that the request reads, and no message sent from the store."""
    mesh = event.data.get("mesh")
    if mesh is not None and not any(node.mesh == mesh for node in call.meshes):
        return False
    if event.event != MESSAGE:
        return True
    return agent in (None, event.agent) and event.position > sent.get(str(mesh), 0)


async def _write(response: StreamResponse, data: bytes) -> None:
    """Write to a client; end the stream of one that does not read, so that it frees its slot."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(data)
    except TimeoutError as fault:
        raise ConnectionResetError("the reader of an event stream does not read") from fault
