"""The page Live, and the streams that keep every page current.

A stream is a response that does not end: one JSON object per line, an empty one while nothing happens. The page closes
it while it is hidden or paused and resumes after the last number it has. If the feed has forgotten rows since then,
the relay is asked for them by its cursor, so that no event is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from posthouse.client import Received
from posthouse.console.context import ConsoleCall
from posthouse.console.live_feed import LiveRow, row_of_event
from posthouse.http.response import SAFETY_HEADERS, HttpResponse
from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.errors import error

SHOWN_ROWS = 200
_ALIVE_S = 10.0  # between lines of a stream without news
_SETTLE_S = 0.25  # changes within this time are one
_WRITE_S = 30.0
_PAGE = 500
_HEADERS = {"Content-Type": "application/x-ndjson", **SAFETY_HEADERS}


class LiveFilter(NamedTuple):
    """Which rows a page shows; the fields are parameters of its address."""

    source: str = ""
    kind: str = ""
    text: str = ""

    def matches(self, row: LiveRow, names: dict[str, str]) -> bool:
        """Return True if a row meets every condition; the text is searched in names, agents, topics and ids."""
        if (self.source and row.source != self.source) or (self.kind and row.kind != self.kind):
            return False
        if not self.text:
            return True
        shown = (names.get(row.sender, row.sender), row.from_agent, names.get(row.to, row.to), row.to_agent)
        return self.text.casefold() in " ".join((*shown, row.kind, row.detail, row.event_id)).casefold()


def filter_of(call: ConsoleCall) -> LiveFilter:
    """Return the filter in the address of a page."""
    return LiveFilter(call.wish("source"), call.wish("kind"), call.wish("text")[:200])


async def show_live(call: ConsoleCall) -> HttpResponse:
    """Show the newest headers of events."""
    feed, wanted = call.upstream.feed, filter_of(call)
    names = await call.upstream.names()
    everything = feed.after(0)
    rows = [row for row in everything if wanted.matches(row, names)][-SHOWN_ROWS:]
    return call.page(
        "live.html",
        rows=rows[::-1],
        names=names,
        wanted=wanted._asdict(),
        kinds=sorted({row.kind for row in everything}),
        newest=feed.newest,
        cursor=_last_cursor(everything),
        shown=SHOWN_ROWS,
    )


def _last_cursor(rows: Sequence[LiveRow]) -> str:
    return next((row.cursor for row in reversed(rows) if row.cursor is not None), "")


async def stream_rows(call: ConsoleCall) -> HttpResponse:
    """Stream rows after a number until the page closes the stream."""
    feed, wanted = call.upstream.feed, filter_of(call)
    number, cursor = _number(call), call.wish("cursor")
    with call.context.streams.enter(), feed.listen() as news:
        response = await _open(call)
        if not feed.has_all_after(number) and cursor:
            async for missed in _missed_rows(call, cursor):
                await _write_rows(call, response, missed, wanted, number)
        while not call.context.is_stopping:
            news.clear()
            rows = feed.after(number)
            number = rows[-1].number if rows else number
            await _write_rows(call, response, rows, wanted, number)
            await _wait(news)
    return HttpResponse(response=response)


async def stream_changes(call: ConsoleCall) -> HttpResponse:
    """Stream a line whenever there is news, so that a page loads what it shows again."""
    feed = call.upstream.feed
    with call.context.streams.enter(), feed.listen() as news:
        response = await _open(call)
        number = feed.newest
        while not call.context.is_stopping:
            await _wait(news)
            await asyncio.sleep(_SETTLE_S)
            news.clear()
            is_new, number = feed.newest > number, feed.newest
            await _write(response, {"changed": number} if is_new else {})
    return HttpResponse(response=response)


async def _missed_rows(call: ConsoleCall, cursor: str) -> AsyncIterator[list[LiveRow]]:
    """Yield the events of the relay between a cursor and the oldest row of the feed."""
    relay, feed = call.upstream.relay, call.upstream.feed
    oldest = next((parse_cursor(row.cursor).seq for row in feed.after(0) if row.cursor), None)
    epoch = parse_cursor(cursor).epoch
    following: str | None = cursor
    while following is not None:
        page = await relay.query({"mesh": call.upstream.mesh}, cursor=following, limit=_PAGE)
        missed = [each for each in page.events if oldest is None or each.seq < oldest]
        rows = [Received(each.event, each.seq, str(Cursor(epoch, each.seq))) for each in missed]
        yield [row_of_event(0, each) for each in rows]
        following = page.cursor if len(missed) == len(page.events) else None


def _number(call: ConsoleCall) -> int:
    text = call.wish("after", "0")
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise error("parameter_invalid", name="after", reason="it is not a number of this stream")
    return int(text)


async def _write_rows(
    call: ConsoleCall, response: web.StreamResponse, rows: Sequence[LiveRow], wanted: LiveFilter, number: int
) -> None:
    names = await call.upstream.names()
    shown = [row for row in rows if wanted.matches(row, names)]
    line: dict[str, Any] = {"after": number}
    if rows and (cursor := _last_cursor(rows)):
        line["cursor"] = cursor
    if shown:
        line["html"] = call.context.renderer.text("live_rows.html", rows=shown[::-1], names=names)
        line["count"] = len(shown)
    await _write(response, line)


async def _open(call: ConsoleCall) -> web.StreamResponse:
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(call.request)
    return response


async def _wait(news: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_ALIVE_S):
            await news.wait()


async def _write(response: web.StreamResponse, line: dict[str, Any]) -> None:
    """Write a line; end the stream of a page that does not read."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(msgspec.json.encode(line) + b"\n")
    except TimeoutError as fault:
        raise ConnectionResetError("the page does not read its stream") from fault
