"""Follow the journal, and tap the messages of all processes without consuming them.

A follower reads records in order from a position, woken by every commit of any process. Pages are short and the
position advances after each record, so that stopping loses and repeats nothing. A handler that raises is logged and
the follower goes on. A tap takes no lock and touches no mailbox, so `bus tap '>'` is always safe.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.journal.cursor import Cursor, resolve_cursor
from posthouse.journal.read import read_after, read_extent
from posthouse.journal.records import Record
from posthouse.log import get_log
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import matches, validate_subject

if TYPE_CHECKING:
    from posthouse.bus.session import Session


RecordHandler = Callable[[Record], Awaitable[None]]
log = get_log(__name__)
_PAGE_RECORDS = 256
_POLL_S = 1.0  # the safety net below inotify


class Follower:
    """One reader of the journal."""

    def __init__(self, session: Session, seq: int, types: Collection[str], take: RecordHandler) -> None:
        self._session = session
        self._types = types
        self._take = take
        #: the last record that was handed on
        self.seq = seq
        self._woken = asyncio.Event()
        self._is_ended = False
        self._task = session.loop.create_task(self._follow(), context=session.context.copy())

    def wake(self) -> None:
        """There may be something new."""
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
                    await self._hand_on(record)
                self.seq = record.seq
            if not records:
                await self._wait()

    async def _read(self) -> list[Record]:
        try:
            return await self._session.store.pool.run(lambda db: read_after(db, self.seq, _PAGE_RECORDS))
        except PosthouseError as failure:
            log.warning("journal_unread", after=self.seq, reason=str(failure))
            return []

    async def _wait(self) -> None:
        timer = self._session.loop.call_later(_POLL_S, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    async def _hand_on(self, record: Record) -> None:
        try:
            await self._take(record)
        except Exception as failure:  # noqa: BLE001 - whatever a handler raises
            log.warning("onlooker_failed", seq=record.seq, reason=repr(failure))


class Followers:
    """All followers of one open Bus; one watch wakes them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._followers: set[Follower] = set()

    def add(self, seq: int, types: Collection[str], take: RecordHandler) -> Follower:
        """Follow the journal after `seq`."""
        if not self._followers:
            self._session.watch.watch_tick(self._session.directory.tick, self._wake)
        follower = Follower(self._session, seq, types, take)
        self._followers.add(follower)
        return follower

    async def end(self, follower: Follower) -> None:
        """Stop one; harmless when called twice."""
        self._followers.discard(follower)
        await follower.end()

    async def close(self) -> None:
        for follower in list(self._followers):
            await self.end(follower)

    def _wake(self) -> None:
        for follower in self._followers:
            follower.wake()


TapHandler = Callable[[Envelope], Awaitable[Any] | Any]


class _Published(msgspec.Struct):
    envelope: Envelope


_decode = msgspec.json.Decoder(_Published).decode


class Tap:
    """One running tap; call and await it to end it."""

    def __init__(self, session: Session, pattern: str, handler: TapHandler, seq: int) -> None:
        self._session = session
        self._pattern = pattern
        self._handler = handler
        self._follower = session.followers.add(seq, ("bus.published",), self._take)

    @property
    def cursor(self) -> str:
        """Where a later tap continues after what this one has handed on."""
        return str(Cursor(self._session.store.epoch, self._follower.seq))

    async def __call__(self) -> None:
        await self._session.followers.end(self._follower)

    async def _take(self, record: Record) -> None:
        envelope = _decode(record.body.encode()).envelope
        if not matches(envelope.subject, self._pattern):
            return
        answer = self._handler(envelope)
        if inspect.isawaitable(answer):
            await answer


async def start_tap(session: Session, pattern: str, handler: TapHandler, after: str | None) -> Tap:
    """Start a tap at the head of the journal, or after a cursor."""
    validate_subject(pattern, allow_wildcards=True)
    session.ledger.flush()
    extent = await session.store.pool.run(read_extent)
    seq = extent.head if after is None else resolve_cursor(extent, after)
    return Tap(session, pattern, handler, seq)
