"""Following the journal: from a place on, in order, woken by every commit of any process.

Pages are short and the place is remembered after each record, so that stopping loses and repeats nothing. A taker
that raises is logged and the follower goes on: whoever looks on must never disturb what it watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from posthouse.journal.read import Record, read_after
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.bus.session import Session

Take = Callable[[Record], Awaitable[None]]
log = get_log(__name__)

_PAGE = 256
_POLL_S = 1.0  # the safety net below inotify


class Follower:
    """One reader of the journal."""

    def __init__(self, session: Session, seq: int, types: Collection[str], take: Take) -> None:
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
            return await self._session.store.pool.run(lambda db: read_after(db, self.seq, _PAGE))
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

    def add(self, seq: int, types: Collection[str], take: Take) -> Follower:
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
