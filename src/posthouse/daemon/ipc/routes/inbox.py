"""/v1/inbox: read what came, sleep until something comes, note what was seen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.daemon.inbox import InboxItem, Wanted
from posthouse.daemon.ipc.call import Call
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.model.errors import error
from posthouse.model.timestamps import parse_utc

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
MAX_WAIT_S = 600.0
MAX_SEEN = 1_000
_ITEM_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class _Arguments(msgspec.Struct):
    #: an inbox id (what came after it), or a time
    since: str | None = None
    topic: str | None = None
    #: a name, prefix or node id
    from_: str | None = msgspec.field(default=None, name="from")
    unread: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0


class _Seen(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


async def read(call: Call) -> Answer:
    """Return messages, newest first; with wait_s wait for the first one if there is none."""
    given = call.arguments(_Arguments)
    wanted = await _wanted(call, given)
    items = await call.daemon.inbox.items(wanted)
    if not items and given.wait_s:
        items = await _wait(call, wanted, given.wait_s)
    return json_answer({"items": [item.shown() for item in items]})


async def show(call: Call) -> Answer:
    """Return one message, by its id in the inbox or its message id."""
    return json_answer((await call.daemon.inbox.find(call.id)).shown())


async def seen(call: Call) -> Answer:
    """Note that messages were seen."""
    ids = (await call.body(_Seen)).ids
    if len(ids) > MAX_SEEN:
        raise error("body_invalid", reason=f"at most {MAX_SEEN} ids at once")
    return json_answer({"count": await call.daemon.inbox.mark_seen(ids)})


async def _wanted(call: Call, given: _Arguments) -> Wanted:
    after, since_ns = 0, 0
    if given.since is not None and _ITEM_ID.fullmatch(given.since):
        position = await call.daemon.inbox.position_of(given.since)
        if position is None:
            raise error("inbox_item_unknown", id=given.since)
        after = position
    elif given.since is not None:
        since_ns = parse_utc(given.since)
    sender = None if given.from_ is None else await call.daemon.resolve(given.from_)
    topic = None if given.topic is None else given.topic.removeprefix(TOPIC_MARK)
    return Wanted(after, topic, sender, given.unread, given.limit, since_ns)


async def _wait(call: Call, wanted: Wanted, wait_s: float) -> list[InboxItem]:
    """Sleep until a message comes that is wanted; then look at all of them."""
    news = asyncio.Event()

    def tell(fresh: Sequence[InboxItem]) -> None:
        if any(wanted.matches(item) for item in fresh):
            news.set()

    inbox = call.daemon.inbox
    inbox.on_new.append(tell)
    try:
        items = await inbox.items(wanted)  # again: one may have come before we listened
        if items:
            return items
        async with call.service.sleep():
            await call.daemon.sleep(news, wait_s)
    finally:
        inbox.on_new.remove(tell)
    return await inbox.items(wanted)
