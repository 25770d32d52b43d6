"""Follow the journal, and tap the messages of all processes without consuming them.

A follower reads records in order from a position; every commit of any process wakes it. Pages are short and the
position advances after each record, so that stopping loses and repeats nothing. A handler that raises is logged and
the follower continues. A tap takes no lock and touches no mailbox, so `bus tap '>'` is always safe.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from posthouse.bus.core import Core
from posthouse.bus.options import check_handler, check_type
from posthouse.bus.running import decode_published
from posthouse.bus.watching import Watcher
from posthouse.journal.cursor import Cursor, resolve_cursor
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after, read_extent
from posthouse.log import get_log
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import matches, validate_subject

RecordHandler = Callable[[Record], Awaitable[None]]
TapHandler = Callable[[Envelope], Awaitable[Any] | Any]
log = get_log(__name__)
_PAGE_RECORDS = 256
_POLL_S = 1.0  # the safety net below inotify


class Follower:
    """One reader of the journal."""

    def __init__(self, core: Core, seq: int, types: Collection[str], on_record: RecordHandler) -> None:
        self._core = core
        self._types = types
        self._on_record = on_record
        #: seq of the last record that was passed on or skipped
        self.seq = seq
        self._woken = asyncio.Event()
        self._is_ended = False
        self._task = core.loop.create_task(self._follow(), context=core.context.copy())

    def wake(self) -> None:
        """Read the journal again."""
        self._woken.set()

    async def end(self) -> None:
        """Stop between two records."""
        self._is_ended = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while not self._is_ended:
            self._woken.clear()
            records = await self._read()
            if records and records[0].seq > self.seq + 1:
                log.warning("onlooker_missed_pruned_records", after=self.seq, oldest_seq=records[0].seq)
            for record in records:
                if record.type in self._types:
                    await self._pass_on(record)
                self.seq = record.seq
            if not records:
                await self._wait()

    async def _read(self) -> list[Record]:
        try:
            return await self._core.store.pool.run(lambda db: read_after(db, self.seq, _PAGE_RECORDS))
        except PosthouseError as failure:
            log.warning("journal_unread", after=self.seq, reason=str(failure))
            return []

    async def _wait(self) -> None:
        timer = self._core.loop.call_later(_POLL_S, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    async def _pass_on(self, record: Record) -> None:
        try:
            await self._on_record(record)
        except Exception as failure:  # noqa: BLE001 - a handler may raise anything
            log.warning("onlooker_failed", seq=record.seq, reason=repr(failure))


class Followers:
    """All followers of one open Bus; one watch on the tick file wakes them."""

    def __init__(self, core: Core, watcher: Watcher) -> None:
        self.core = core
        self._watcher = watcher
        self._followers: set[Follower] = set()

    def add(self, seq: int, types: Collection[str], on_record: RecordHandler) -> Follower:
        """Pass the records of these types after `seq` to `on_record`."""
        if not self._followers:
            self._watcher.watch_tick(self.core.directory.tick, self._wake)
        follower = Follower(self.core, seq, types, on_record)
        self._followers.add(follower)
        return follower

    async def end(self, follower: Follower) -> None:
        """Stop one follower; a second call does nothing."""
        self._followers.discard(follower)
        await follower.end()

    async def close(self) -> None:
        for follower in list(self._followers):
            await self.end(follower)

    def _wake(self) -> None:
        for follower in self._followers:
            follower.wake()


class Tap:
    """One running tap; await a call of it to end it."""

    def __init__(self, followers: Followers, pattern: str, handler: TapHandler, seq: int) -> None:
        self._followers = followers
        self._pattern = pattern
        self._handler = handler
        self._follower = followers.add(seq, ("bus.published",), self._on_record)

    @property
    def cursor(self) -> str:
        """The position after the last message that the tap has passed on; a later tap continues there."""
        return str(Cursor(self._followers.core.store.epoch, self._follower.seq))

    async def __call__(self) -> None:
        await self._followers.end(self._follower)

    async def _on_record(self, record: Record) -> None:
        envelope = decode_published(record.body.encode()).envelope
        if not matches(envelope.subject, self._pattern):
            return
        result = self._handler(envelope)
        if inspect.isawaitable(result):
            await result


async def start_tap(followers: Followers, pattern: str, handler: TapHandler, after: str | None) -> Tap:
    """Start a tap at the head of the journal, or after a cursor."""
    validate_subject(pattern, allow_wildcards=True)
    check_handler("handler", handler)
    check_type("after", after, str)
    await followers.core.ledger.flush()
    extent = await followers.core.store.pool.run(read_extent)
    seq = extent.head if after is None else resolve_cursor(extent, after)
    return Tap(followers, pattern, handler, seq)
