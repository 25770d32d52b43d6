"""Housekeeping of a daemon: measure the outbox, expire and delete old rows, prune the journals.

The capacity of the outbox is the smaller of outbox.max_bytes and what it uses plus what is free on the disk. At 80 %
`Pressure` notifies its listener once, and again when the outbox falls below; at 95 % the outbox refuses new messages
(see outbox.transitions). Journal records go oldest first, in bounded transactions, each below a snapshot of the
counters; with a lake, only records that the lake has committed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from posthouse.daemon.agents.registry import AgentRegistry, read_agents
from posthouse.daemon.agents.reservations import Reservations
from posthouse.daemon.drain import Drain
from posthouse.daemon.inbox.inbox import Inbox
from posthouse.daemon.inbox.selection import newest_position
from posthouse.daemon.outbox.outbox import Outbox, read_depth
from posthouse.daemon.outbox.outbox_rows import Depth
from posthouse.daemon.settings import KEEP_DAYS, MeshSettings, Retention
from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import count_bytes, prunable_through, prune_prefix
from posthouse.journal.store import Store
from posthouse.model.errors import Transient, error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.storage.sql_files import Statements

log = structlog.get_logger(__name__)
WARN_AT = 0.8
_SQL = Statements("posthouse.daemon", "retention.sql")
_PRUNE_MAX_RECORDS = 5_000  # per transaction: some milliseconds
_PRUNE_MIN_RECORDS = 500  # fewer are not worth a snapshot
_MEASURE_EVERY_S = 5.0
_MEASURES_PER_SWEEP = 12
#: returns the seq after which a journal must not be pruned, None if all of it may be
KeptAfter = Callable[[Store], Awaitable[int | None]]
#: returns the counters from which a replay starts
ReadState = Callable[[JournalTransaction], Mapping[str, Any]]


async def keep_nothing(_store: Store) -> int | None:
    """Prune the records that the retention of a journal no longer covers."""
    return None


def free_bytes(directory: Path) -> int:
    """Return the bytes that an ordinary user may still write on the disk of a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Pressure:
    """How full one outbox is, as of its last measurement."""

    def __init__(self, max_bytes: int, directory: Path, read_free: Callable[[Path], int] = free_bytes) -> None:
        self._max_bytes = max_bytes
        self._directory = directory
        self._read_free = read_free
        self._is_high = False
        self.capacity_bytes = max_bytes
        #: callback(used bytes, capacity, is high) whenever the outbox crosses the warning level
        self.on_change: Callable[[int, int, bool], None] = lambda _used, _capacity, _is_high: None

    def update(self, depth: Depth) -> bool:
        """Compute the capacity and compare; return True if the outbox has just become nearly full."""
        self.capacity_bytes = min(self._max_bytes, depth.bytes + self._read_free(self._directory))
        is_high = depth.bytes >= WARN_AT * self.capacity_bytes
        if is_high == self._is_high:
            return False
        self._is_high = is_high
        if is_high:
            log.warning("outbox_pressure", used=depth.bytes, capacity=self.capacity_bytes)
        self.on_change(depth.bytes, self.capacity_bytes, is_high)
        return is_high


class Housekeeper:
    """Runs the housekeeping of one mesh."""

    def __init__(
        self,
        outbox: Outbox,
        inbox: Inbox,
        drain: Drain,
        pressure: Pressure,
        settings: MeshSettings,
        kept_after: KeptAfter = keep_nothing,
    ) -> None:
        self._outbox = outbox
        self._inbox = inbox
        self._drain = drain
        self._pressure = pressure
        self._settings = settings
        self._kept_after = kept_after

    async def run(self) -> None:
        """Measure often and sweep less often, until cancelled."""
        measures = 0
        while True:
            try:
                await self.measure()
                if measures % _MEASURES_PER_SWEEP == 0:
                    await self.sweep()
            except Transient as failure:  # a full disk: the next round may find space
                log.warning("housekeeping_failed", code=failure.code, reason=str(failure))
            measures += 1
            await asyncio.sleep(_MEASURE_EVERY_S)

    async def measure(self) -> None:
        """Measure how full the outbox is, and record when it becomes nearly full; raise if a writer has ended."""
        await check_writer(self._outbox.store)
        await check_writer(self._inbox.store)
        depth = await self._outbox.depth()
        if self._pressure.update(depth):
            await self._outbox.append_pressure(depth.bytes, self._pressure.capacity_bytes)

    async def sweep(self) -> None:
        """Expire rows that are too old, delete messages and events that were kept long enough, prune the journals.

        While the clock may be wrong nothing counts as old, and journals are pruned by their size alone.
        """
        retention = self._settings.retention
        if self._drain.trusts_clock:
            await self._delete_old()
        else:
            retention = replace(retention, keep_days=None)
        await self._inbox.index()
        outbox, inbox = self._outbox.store, self._inbox.store
        kept = await self._kept_after(outbox)
        await prune_journal(outbox, retention, lambda tx: {"outbox": read_depth(tx.db)._asdict()}, kept)
        kept = await self._kept_after(inbox)
        await prune_journal(inbox, retention, lambda tx: {"inbox": newest_position(tx.db)}, kept)

    async def _delete_old(self) -> None:
        await self._drain.expire()
        now_ns = self._settings.clock.wall_ns()
        while await self._outbox.strip_done(now_ns - KEEP_DAYS * DAY_S * SECOND_NS):
            pass
        while await self._inbox.delete_before(now_ns - self._settings.inbox_keep_days * DAY_S * SECOND_NS):
            pass


async def keep_agents(
    agents: AgentRegistry, reservations: Reservations, retention: Retention, kept_after: KeptAfter = keep_nothing
) -> None:
    """Run the housekeeping of the home until cancelled."""
    measures = 0
    while True:
        try:
            await check_writer(agents.store)
            await reservations.sweep()
            if measures % _MEASURES_PER_SWEEP == 0:
                kept = await kept_after(agents.store)
                await prune_journal(agents.store, retention, lambda tx: {"agents": list(read_agents(tx.db))}, kept)
        except Transient as failure:  # a full disk: the next round may find space
            log.warning("housekeeping_failed", code=failure.code, reason=str(failure))
        measures += 1
        await asyncio.sleep(_MEASURE_EVERY_S)


async def check_writer(store: Store) -> None:
    """Raise store_failed if the writer of a store has ended; try again a store that could not be written."""
    if store.writer.state == "failed":
        raise error("store_failed", path=str(store.path), reason="its writer has ended")
    if store.writer.state != "open":  # the next message may be far off, so test now whether the disk has room
        await store.probe()


async def prune_journal(
    store: Store, retention: Retention, read_state: ReadState, kept_after: int | None = None
) -> int:
    """Remove the oldest records that are too old or too many; return how many were removed.

    Those after the seq `kept_after` stay: hooks of the user still need them.
    """
    removed = 0
    while pruned := await store.writer.run(lambda tx: _prune_some(tx, retention, read_state, kept_after)):
        removed += pruned
    return removed


def _prune_some(tx: JournalTransaction, retention: Retention, read_state: ReadState, kept_after: int | None) -> int:
    pruned_through, _snapshot_seq, body_bytes = count_bytes(tx)
    through = min(pruned_through + _PRUNE_MAX_RECORDS, prunable_through(tx, retention.lake))
    through = through if kept_after is None else min(through, kept_after)
    if body_bytes <= retention.max_bytes:
        if retention.keep_days is None:
            return 0
        horizon_ns = tx.wall_ns - round(retention.keep_days * DAY_S * SECOND_NS)
        through = tx.db.execute(_SQL.newest_before, (pruned_through, through, horizon_ns)).get or 0
    if through - pruned_through < _PRUNE_MIN_RECORDS:
        return 0
    return prune_prefix(tx, through, read_state(tx))
