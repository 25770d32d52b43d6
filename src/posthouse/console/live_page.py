"""The page Live, and the streams that keep every page current.

A stream is a response that does not end: one JSON object per line, an empty one while nothing happens. The page closes
it while it is hidden or paused and resumes after the last number it has. If the feed has dropped rows since then, they
are read from the relay by its cursor, so that no event is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from posthouse.console.context import ConsoleCall
from posthouse.console.live_feed import DAEMON, LiveRow, row_of_event
from posthouse.console.upstream import Upstream
from posthouse.http.response import SAFETY_HEADERS, HttpResponse
from posthouse.journal.cursor import Cursor, parse_cursor
from posthouse.model.errors import PosthouseError, error

SHOWN_ROWS = 200
_ALIVE_S = 10.0  # between lines of a stream while nothing changes
_SETTLE_S = 0.25  # changes within this time are reported as one
_WRITE_S = 30.0
_PAGE = 500
_RETRY_S = 1.0  # between attempts to reach an unreachable relay
_LOST_CURSOR = frozenset({"cursor_reset", "cursor_pruned", "cursor_invalid"})
_HEADERS = {"Content-Type": "application/x-ndjson", **SAFETY_HEADERS}


class LiveFilter(NamedTuple):
    """Selects the rows that a page shows; the fields are parameters of its address."""

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
    return LiveFilter(call.parameter("source"), call.parameter("kind"), call.parameter("text")[:200])


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
    wanted, reader = filter_of(call), LiveReader(call.upstream, _number(call), call.parameter("cursor"))
    with call.context.streams.enter(), call.upstream.feed.listen() as news:
        response = await _open(call)
        while not call.context.is_stopping:
            news.clear()
            async for rows in reader.new_rows():
                await _write_rows(call, response, rows, wanted, reader.number)
            if not reader.is_behind:
                await _wait(news)
    return HttpResponse(response=response)


class LiveReader:
    """Reads new rows for one page: from the feed, or from the relay if the feed has dropped some."""

    def __init__(self, upstream: Upstream, number: int, cursor: str) -> None:
        #: number of the last row that the page has
        self.number = number
        self._upstream = upstream
        #: cursor of the last event of the relay that the page has; empty: none
        self._cursor = cursor
        #: seq through which rows were read from the relay itself
        self._passed = 0

    @property
    def is_behind(self) -> bool:
        """True if there are rows that the page does not have."""
        return self._upstream.feed.newest > self.number

    async def new_rows(self) -> AsyncIterator[list[LiveRow]]:
        """Yield the rows after the position, oldest first, and move it; at least one list, which may be empty."""
        feed = self._upstream.feed
        if self._cursor and not feed.has_all_after(self.number):
            known = feed.newest  # the relay has committed all events in the feed, so its answer covers them
            try:
                async for rows in self._stored_rows():
                    yield rows
            except PosthouseError as failure:
                if failure.code not in _LOST_CURSOR:
                    await asyncio.sleep(_RETRY_S)
                    return
                self._cursor = ""  # the relay was restored or has pruned these events: only the feed is left
            rows = [row for row in feed.after(self.number) if row.number <= known and row.source == DAEMON]
            self.number = known
        else:
            rows = [row for row in feed.after(self.number) if self._is_new(row)]
            self.number = feed.newest
            self._cursor = _last_cursor(rows) or self._cursor
        yield rows

    def _is_new(self, row: LiveRow) -> bool:
        return row.cursor is None or parse_cursor(row.cursor).seq > self._passed

    async def _stored_rows(self) -> AsyncIterator[list[LiveRow]]:
        """Yield all events of the relay after the cursor, page by page."""
        epoch, wanted = parse_cursor(self._cursor).epoch, {"mesh": self._upstream.mesh}
        following: str | None = self._cursor
        while following is not None:
            page = await self._upstream.relay.query(wanted, cursor=following, limit=_PAGE)
            rows = [row_of_event(0, each.event, str(Cursor(epoch, each.seq))) for each in page.events]
            self._cursor = _last_cursor(rows) or self._cursor
            self._passed = parse_cursor(self._cursor).seq
            yield rows
            following = page.cursor


async def stream_changes(call: ConsoleCall) -> HttpResponse:
    """Stream a line whenever there are new rows, so that a page reloads its content."""
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


def _number(call: ConsoleCall) -> int:
    text = call.parameter("after", "0")
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
