"""Housekeeping of a daemon: measure the outbox, expire and delete what is too old, prune the journals.

The outbox's capacity is the smaller of outbox.max_bytes and what is used plus what is free on the disk: at 80 %
listeners are notified once until it falls again; at 95 % accepting refuses (see outbox.transitions). Journal records
go oldest first, in bounded transactions, each below a snapshot of the counters; with a lake, only records that the
lake has committed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from posthouse.daemon.inbox.inbox import newest_position
from posthouse.daemon.outbox.outbox import read_depth
from posthouse.daemon.outbox.transitions import Depth
from posthouse.daemon.settings import KEEP_DAYS, Retention
from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import prunable_through, prune_prefix
from posthouse.journal.store import Store
from posthouse.model.errors import Transient
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.sqlite.statements import Statements

if TYPE_CHECKING:
    from posthouse.daemon.daemon import Daemon


log = structlog.get_logger(__name__)
WARN_AT = 0.8


def free_bytes(directory: Path) -> int:
    """Return what an ordinary user may still write on the disk of a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Pressure:
    """The room of one outbox, looked at every now and then."""

    def __init__(self, max_bytes: int, directory: Path, read_free: Callable[[Path], int] = free_bytes) -> None:
        self._max_bytes = max_bytes
        self._directory = directory
        self._read_free = read_free
        self._is_warned = False
        self.capacity_bytes = max_bytes
        #: told the bytes used and the capacity when the outbox becomes full, and whether it is
        self.on_pressure: Callable[[int, int, bool], None] = lambda _used, _capacity, _is_high: None

    def look(self, depth: Depth) -> bool:
        """Judge how full it is; return whether it has just become nearly full."""
        self.capacity_bytes = min(self._max_bytes, depth.bytes + self._read_free(self._directory))
        is_high = depth.bytes >= WARN_AT * self.capacity_bytes
        if is_high == self._is_warned:
            return False
        self._is_warned = is_high
        if is_high:
            log.warning("outbox_pressure", used=depth.bytes, capacity=self.capacity_bytes)
        self.on_pressure(depth.bytes, self.capacity_bytes, is_high)
        return is_high


_SQL = Statements("posthouse.daemon", "retention.sql")
_AT_ONCE = 5_000  # records per transaction: some milliseconds
_LEAST = 500  # fewer are not worth a snapshot
#: what replay starts from
ReadState = Callable[[JournalTransaction], Mapping[str, Any]]


async def prune_journal(store: Store, retention: Retention, read_state: ReadState) -> int:
    """Remove the oldest records that are too old or too many; return how many went."""
    removed = 0
    while went := await store.writer.run(lambda tx: _prune(tx, retention, read_state)):
        removed += went
    return removed


def _prune(tx: JournalTransaction, retention: Retention, read_state: ReadState) -> int:
    extent: Any = tx.db.execute(_SQL.extent).fetchone()
    pruned_through, body_bytes = extent
    most = min(pruned_through + _AT_ONCE, prunable_through(tx, retention.lake))
    if body_bytes <= retention.max_bytes:
        horizon_ns = tx.now_ns - round(retention.keep_days * DAY_S * SECOND_NS)
        most = tx.db.execute(_SQL.newest_before, (pruned_through, most, horizon_ns)).get or 0
    if most - pruned_through < _LEAST:
        return 0
    return prune_prefix(tx, most, read_state(tx))


MEASURE_S = 5.0
SWEEP_EVERY = 12  # looks


async def run_housekeeping(daemon: Daemon) -> None:
    """Look at the room often, sweep less often, for ever."""
    looks = 0
    while True:
        try:
            await measure_outbox(daemon)
            if looks % SWEEP_EVERY == 0:
                await sweep(daemon)
        except Transient as failure:  # a full disk: the next look may find room
            log.warning("housekeeping_failed", code=failure.code, reason=str(failure))
        looks += 1
        await asyncio.sleep(MEASURE_S)


async def measure_outbox(daemon: Daemon) -> None:
    """Judge how full the outbox is."""
    depth = await daemon.outbox.depth()
    if daemon.pressure.look(depth):
        await daemon.outbox.note_pressure(depth.bytes, daemon.pressure.capacity_bytes)


async def sweep(daemon: Daemon) -> None:
    """Give up rows that are too old; delete mail and events that were kept long enough."""
    await daemon.drain.bury_expired()
    now_ns = daemon.clock.wall_ns()
    while await daemon.outbox.strip_done(now_ns - KEEP_DAYS * DAY_S * SECOND_NS):
        pass
    while await daemon.inbox.delete_before(now_ns - daemon.settings.inbox_keep_days * DAY_S * SECOND_NS):
        pass
    retention = daemon.settings.retention
    await prune_journal(daemon.outbox.store, retention, lambda tx: {"outbox": read_depth(tx.db)._asdict()})
    await prune_journal(daemon.inbox.store, retention, lambda tx: {"inbox": newest_position(tx.db)})
