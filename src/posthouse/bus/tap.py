"""Taps: see every message that matches, of every process, and consume nothing.

A tap reads the journal from the head or after a cursor; it takes no lock and touches no mailbox, so `bus tap '>'` is
always safe.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.journal.cursor import Cursor
from posthouse.journal.read import Record, read_extent, resolve
from posthouse.model.envelope import Envelope
from posthouse.model.subjects import matches, validate_subject

if TYPE_CHECKING:
    from posthouse.bus.session import Session

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
    seq = extent.head if after is None else resolve(extent, after)
    return Tap(session, pattern, handler, seq)
