"""What a daemon does every now and then: give up and delete what is too old, look at the room on the disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from posthouse.daemon.inbox.inbox import newest_position
from posthouse.daemon.outbox.outbox import read_depth
from posthouse.daemon.retention import prune_journal
from posthouse.daemon.settings import KEEP_DAYS
from posthouse.model.errors import Transient
from posthouse.model.limits import DAY_S, SECOND_NS

if TYPE_CHECKING:
    from posthouse.daemon.daemon import Daemon

log = structlog.get_logger(__name__)
LOOK_S = 5.0
SWEEP_EVERY = 12  # looks


async def keep_house(daemon: Daemon) -> None:
    """Look at the room often, sweep less often, for ever."""
    looks = 0
    while True:
        try:
            await look_at_room(daemon)
            if looks % SWEEP_EVERY == 0:
                await sweep(daemon)
        except Transient as failure:  # a full disk: the next look may find room
            log.warning("housekeeping_failed", code=failure.code, reason=str(failure))
        looks += 1
        await asyncio.sleep(LOOK_S)


async def look_at_room(daemon: Daemon) -> None:
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
