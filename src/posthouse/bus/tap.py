"""Taps: readers of the journal that see every matching message and consume nothing.

A tap starts at the head, or after a cursor, and is woken by each commit of any process (journal.tick); it reads short
pages, hands each message to its handler in order, and remembers how far it came. A failing handler is logged and the
tap goes on: a tap must never disturb what it watches.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.log import get_log
from posthouse.journal.cursor import Cursor
from posthouse.journal.read import Record, read_after, read_extent, resolve
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.subjects import matches, validate_subject

if TYPE_CHECKING:
    from posthouse.bus.session import Session

TapHandler = Callable[[Envelope], Awaitable[Any] | Any]
log = get_log(__name__)

_PAGE = 256
_POLL_S = 1.0  # the safety net below inotify


class _Published(msgspec.Struct):
    envelope: Envelope


_decode = msgspec.json.Decoder(_Published).decode


class Tap:
    """One running tap; call and await it to end it."""

    def __init__(self, session: Session, pattern: str, handler: TapHandler, seq: int) -> None:
        self._session = session
        self._pattern = validate_subject(pattern, allow_wildcards=True)
        self._handler = handler
        self._seq = seq
        self._woken = asyncio.Event()
        self._task = session.loop.create_task(self._read(), context=session.context.copy())

    @property
    def cursor(self) -> str:
        """Where a later tap continues after what this one has handed on."""
        return str(Cursor(self._session.store.epoch, self._seq))

    def wake(self) -> None:
        self._woken.set()

    async def __call__(self) -> None:
        self._session.taps.forget(self)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            self._woken.clear()
            try:
                records = await self._session.store.pool.run(lambda db: read_after(db, self._seq, _PAGE))
            except PosthouseError as failure:
                log.warning("tap_read_failed", pattern=self._pattern, reason=str(failure))
                records = []
            for record in records:
                await self._hand_on(record)
                self._seq = record.seq
            if not records:
                await self._wait()

    async def _wait(self) -> None:
        timer = self._session.loop.call_later(_POLL_S, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    async def _hand_on(self, record: Record) -> None:
        if record.type != "bus.published":
            return
        envelope = _decode(record.body.encode()).envelope
        if not matches(envelope.subject, self._pattern):
            return
        try:
            answer = self._handler(envelope)
            if inspect.isawaitable(answer):
                await answer
        except Exception as failure:  # noqa: BLE001 - a tap only looks on
            log.warning("tap_handler_failed", pattern=self._pattern, reason=repr(failure))


class Taps:
    """The taps of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taps: set[Tap] = set()

    async def add(self, pattern: str, handler: TapHandler, after: str | None) -> Tap:
        """Start a tap at the head of the journal, or after a cursor."""
        validate_subject(pattern, allow_wildcards=True)
        self._session.ledger.flush()
        extent = await self._session.store.pool.run(read_extent)
        seq = extent.head if after is None else resolve(extent, after)
        if not self._taps:
            self._session.watch.watch_tick(self._session.directory.tick, self._wake)
        tap = Tap(self._session, pattern, handler, seq)
        self._taps.add(tap)
        return tap

    def forget(self, tap: Tap) -> None:
        self._taps.discard(tap)

    async def close(self) -> None:
        for tap in list(self._taps):
            await tap()

    def _wake(self) -> None:
        for tap in self._taps:
            tap.wake()
