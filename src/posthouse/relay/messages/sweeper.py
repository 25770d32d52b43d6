"""The queue sweeper: ends stuck sessions, expires old deliveries and dedupe records, keeps totals.

One task per relay. Stuck connections are measured in boot time, the age of messages in wall time. A clock that is days
ahead would expire every message, so nothing expires within an hour after a start or a step of the clock: time for NTP,
or a person, to set it right. A store without room is tried again in the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from posthouse.model.clock import SteadyTime
from posthouse.model.errors import PosthouseError
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.shared_store import Charge
from posthouse.relay.wire.delivery_rows import QueueTotals, SweptRecords

log = structlog.get_logger(__name__)
R = TypeVar("R")
_CHECKS_PER_TIMEOUT = 20  # so that a stuck reader is ended at most a twentieth late
_CHECK_MOST_S = 1.0
_ROWS_PER_UNIT = 500
_QUEUES_PER_READ = 500


class QueueSweeper:
    """Sweeps queues until it is closed."""

    def __init__(self, sessions: ReaderSessions, charge: Charge) -> None:
        self._sessions = sessions
        self._charge = charge
        self._store = sessions.store
        self._settings = sessions.settings
        self._time = SteadyTime(sessions.clock)
        self.totals = QueueTotals()
        #: boot time of the end of the last round
        self.finished_ns = sessions.clock.boot_ns()
        #: all dedupe records up to this seq are kept forever
        self._lasting_through = 0
        self._task = asyncio.create_task(self._serve(), name="sweep queues")

    async def close(self) -> None:
        """End the task and wait until all writes of sessions are committed."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._sessions.drain()

    async def sweep(self) -> int:
        """Close old deliveries and delete expired dedupe records; return how many messages expired."""
        expired = 0
        while due := await self._store.deliveries.due(self._before_ns(), _QUEUES_PER_READ):
            for mesh, node in due:
                expired += await self._expire(mesh, node)
        await self._sweep_records(self._sessions.clock.wall_ns())
        while await self._submit(lambda unit: unit.pinch.sweep(self._before_ns(), _ROWS_PER_UNIT)):
            pass
        self.finished_ns = self._sessions.clock.boot_ns()
        return expired

    async def count(self) -> None:
        """Update the totals; they stay as they are while the store cannot be read."""
        with contextlib.suppress(PosthouseError):
            self.totals = await self._store.deliveries.totals()

    async def _sweep_records(self, now_ns: int) -> None:
        """Delete expired dedupe records, oldest first.

        Records expire in the order they were accepted, so the first that has not expired ends the sweep; after a
        change of the setting a younger one may have to wait for it. Permanent records are skipped once.
        """
        after_seq: int | None = self._lasting_through
        while after_seq is not None:
            swept = await self._submit(
                partial(_sweep_records, after_seq=after_seq, before_ns=now_ns, limit=_ROWS_PER_UNIT)
            )
            if after_seq == self._lasting_through:
                self._lasting_through = swept.lasting_seq
            after_seq = swept.through_seq

    async def _expire(self, mesh: str, node: str) -> int:
        expired, before_ns = 0, self._before_ns()
        while True:
            closed = await self._submit(lambda unit: unit.deliveries.expire(mesh, node, before_ns, _ROWS_PER_UNIT))
            expired += len(closed.seqs)
            self._sessions.apply_closed(closed)
            if len(closed.seqs) < _ROWS_PER_UNIT:
                break
        if expired:
            log.info(f"Cleaned {expired} expired messages for {node}", mesh=mesh)
        return expired

    def _submit(self, work: Callable[[Unit], R]) -> asyncio.Future[R]:
        self._sessions.observer.count("posthouse_relay_sweep_steps_total", "queues")
        return self._sessions.submit(self._charge.fenced(work))

    async def _serve(self) -> None:
        pause_s = min(_CHECK_MOST_S, self._settings.confirm_timeout_s / _CHECKS_PER_TIMEOUT)
        loop = asyncio.get_running_loop()
        swept_at = loop.time()
        while True:
            await asyncio.sleep(pause_s)
            try:
                self._sessions.check_sessions()
                is_steady = self._time.is_steady()
                if loop.time() - swept_at >= self._settings.sweep_s:
                    swept_at = loop.time()
                    if is_steady and self._charge.is_here:
                        await self.sweep()
            except PosthouseError as failure:
                log.warning("queues_not_attended", reason=str(failure))

    def _before_ns(self) -> int:
        return self._sessions.clock.wall_ns() - self._settings.queue_ttl_ns


def _sweep_records(unit: Unit, *, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
    return unit.deliveries.sweep_records(after_seq, before_ns, limit)
