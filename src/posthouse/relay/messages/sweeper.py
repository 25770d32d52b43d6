"""The queue sweeper: ends stuck sessions, expires old deliveries and dedupe records, keeps totals.

One task per relay. Connections are judged by boot time, the age of messages by wall time; a store without room is
tried again at the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import structlog

from posthouse.model.errors import PosthouseError
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import QueueTotals, SweptRecords

log = structlog.get_logger(__name__)
_LOOKS_PER_TIMEOUT = 20  # so that a stuck reader is ended at most a twentieth late
_LOOK_MOST_S = 1.0
_ROWS_PER_UNIT = 500
_MAILBOXES_PER_READ = 500


class QueueSweeper:
    """Looks after queues until it is closed."""

    def __init__(self, mailboxes: ReaderSessions) -> None:
        self._mailboxes = mailboxes
        self._store = mailboxes.store
        self._settings = mailboxes.settings
        self.totals = QueueTotals(0, 0, 0, None)
        #: up to here all records are kept for ever
        self._lasting_through = 0
        self._task = asyncio.create_task(self._serve(), name="attend queues")

    async def close(self) -> None:
        """End the task and wait for what is owed to the store."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._mailboxes.drain()

    async def sweep(self) -> int:
        """Close what is too old and delete records that are over; return how many messages expired."""
        expired = 0
        while due := await self._store.deliveries.due(self._before_ns(), _MAILBOXES_PER_READ):
            for mesh, node in due:
                expired += await self._expire(mesh, node)
        await self._sweep_records(self._mailboxes.clock.wall_ns())
        while await self._store.submit(lambda unit: unit.pinch.sweep(self._before_ns(), _ROWS_PER_UNIT)):
            pass
        return expired

    async def count(self) -> None:
        """Bring the figures up to date; while the store cannot be read they stay as they are."""
        with contextlib.suppress(PosthouseError):
            self.totals = await self._store.deliveries.totals()

    async def _sweep_records(self, now_ns: int) -> None:
        """Delete records that are over, oldest first.

        They end in the order they were accepted, so the first that is not over ends the look; after a change of the
        setting a younger one may have to wait for it. Records that are kept for ever are passed over once.
        """
        after_seq: int | None = self._lasting_through
        while after_seq is not None:
            swept = await self._store.submit(
                partial(_sweep_records, after_seq=after_seq, before_ns=now_ns, limit=_ROWS_PER_UNIT)
            )
            if after_seq == self._lasting_through:
                self._lasting_through = swept.lasting_seq
            after_seq = swept.through_seq

    async def _expire(self, mesh: str, node: str) -> int:
        expired, before_ns = 0, self._before_ns()
        while True:
            closed = await self._store.submit(
                lambda unit: unit.deliveries.expire(mesh, node, before_ns, _ROWS_PER_UNIT)
            )
            expired += len(closed.seqs)
            self._mailboxes.apply_closed(closed)
            if len(closed.seqs) < _ROWS_PER_UNIT:
                break
        if expired:
            log.info(f"Cleaned {expired} expired messages for {node}", mesh=mesh)
        return expired

    async def _serve(self) -> None:
        pause_s = min(_LOOK_MOST_S, self._settings.confirm_timeout_s / _LOOKS_PER_TIMEOUT)
        loop = asyncio.get_running_loop()
        swept_at = loop.time()
        while True:
            await asyncio.sleep(pause_s)
            try:
                self._mailboxes.check_sessions()
                if loop.time() - swept_at >= self._settings.sweep_s:
                    swept_at = loop.time()
                    await self.sweep()
            except PosthouseError as failure:
                log.warning("queues_not_attended", reason=str(failure))

    def _before_ns(self) -> int:
        return self._mailboxes.clock.wall_ns() - self._settings.queue_ttl_ns


def _sweep_records(unit: Unit, *, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
    return unit.deliveries.sweep_records(after_seq, before_ns, limit)
