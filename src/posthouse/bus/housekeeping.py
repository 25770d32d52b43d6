"""Housekeeping: the recurring jobs of an open bus, and pruning of its journal.

Every second: operator files, endpoints of other processes, dead processes, the minute's refusals. Less often: rescan
served mailboxes (the safety net below inotify), sweep tmp/, delete old rate rows, prune the journal. The journal
keeps thirty days and a gigabyte unless the operator sets other limits; the oldest records go first, in small
transactions, each below a snapshot of the endpoints. With a lake, only records that the lake has committed are
pruned.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from posthouse.bus import letter_counts, polling, recovery
from posthouse.bus.core import Core
from posthouse.bus.index.message_index import IndexUpdater
from posthouse.bus.options import Retention, journal_retention
from posthouse.bus.publishing import Publisher
from posthouse.bus.serving import EndpointServers
from posthouse.bus.transaction import SQL, BusTransaction, read_depths
from posthouse.journal.prune import count_bytes, prunable_through, prune_prefix
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.rate import window_start_ns
from posthouse.model.reliability import RateLimit

log = get_log(__name__)
HOUSEKEEPING_INTERVAL_S = 1.0
_DELETE_RATES_EVERY = 2  # rounds
_RESCAN_EVERY = 5
_SWEEP_EVERY = 60
_RATES_BATCH = 20_000  # rows at a time: more than a busy bus writes between two rounds
_PRUNE_PAUSE_S = 0.02  # between two transactions, so that publishes continue
_PRUNE_BATCH = 500  # records per transaction: a few milliseconds
_PRUNED_PER_ENDPOINT = 4  # prune more records than the snapshot holds endpoints, otherwise pruning frees nothing
_PARTIAL_PRUNE_EVERY_NS = DAY_S * SECOND_NS  # less than a full batch goes once a day: each batch costs a snapshot


class Housekeeping:
    """The recurring jobs of one open Bus."""

    def __init__(
        self,
        core: Core,
        servers: EndpointServers,
        publisher: Publisher,
        index: IndexUpdater,
        retention: Retention | None,
    ) -> None:
        self._core = core
        self._servers = servers
        self._publisher = publisher
        self._index = index
        self._retention = retention
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Recover what dead processes left, then start the recurring jobs."""
        was_rebooted = await recovery.recover(self._core, self._servers)
        if was_rebooted:
            await self._rebuild_index()
        await self._prune_batch()
        self._task = self._core.loop.create_task(self._repeat(), context=self._core.context.copy())

    async def reconcile(self) -> None:
        """Make rows, files and index of every mailbox agree that no process serves."""
        await recovery.reconcile_all(self._core, is_new=False)
        await self._rebuild_index()

    async def sweep(self) -> None:
        """Run the sweeping jobs now."""
        self._publisher.refusals.flush_minute()
        await self._core.ledger.flush()
        await recovery.sweep_dead_processes(self._core, self._servers)
        await self._sweep_files()
        await letter_counts.drop_all_excess(self._core)
        await self._sweep_index()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _repeat(self) -> None:
        round_ = 0
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            round_ += 1
            try:
                await self._run_jobs(round_)
                if round_ % _SWEEP_EVERY == 0:
                    await self._sweep_index()
                    await self.prune()
            except (OSError, PosthouseError) as failure:
                log.warning("housekeeping_failed", reason=str(failure))

    async def _run_jobs(self, round_: int) -> None:
        core = self._core
        core.policy.rules.refresh()
        core.config.refresh()
        self._publisher.refusals.flush_minute()
        await recovery.sweep_dead_processes(core, self._servers)
        await self._servers.drop_unregistered()
        await letter_counts.drop_all_excess(core)
        if round_ % _DELETE_RATES_EVERY == 0:
            await core.ledger.run(lambda tx: delete_old_rates(tx, core.policy.reliability.rate_limit))
        if round_ % _RESCAN_EVERY == 0:
            self._servers.rescan()
        if round_ % _SWEEP_EVERY == 0:
            await self._sweep_files()

    async def _sweep_files(self) -> None:
        self._core.spares.remove_unneeded()
        await recovery.sweep_temporary_files(self._core)
        await letter_counts.recount_full(self._core)

    async def _sweep_index(self) -> None:
        """Dead-letter expired messages of mailboxes that no process serves; delete old rows of the index."""
        index = self._index
        for hash_ in await index.run(index.index.mailboxes_with_expired):
            await polling.dead_letter_expired(self._core, hash_)
        await index.run(index.index.delete_expired)

    async def _rebuild_index(self) -> None:
        """Rebuild the index after a reboot: it may hold records that bus.db has lost."""
        try:
            await self._index.run(self._index.index.rebuild)
        except PosthouseError as failure:
            log.warning("index_not_rebuilt", reason=str(failure))

    async def prune(self) -> None:
        """Prune the journal as far as the retention allows, in small transactions."""
        removed = await self._prune_batch()
        while removed:
            await asyncio.sleep(_PRUNE_PAUSE_S)
            removed = await self._prune_batch()

    async def _prune_batch(self) -> int:
        """Prune a few records; none while the settings cannot be read or the store cannot be written."""
        try:
            retention = self._retention or journal_retention()
            return await self._core.ledger.run(lambda tx: prune_journal(tx, retention))
        except PosthouseError as failure:
            log.warning("journal_not_pruned", reason=str(failure))
            return 0


def delete_old_rates(tx: BusTransaction, rate: RateLimit) -> None:
    """Delete publishes that have left their sender's rate window, a bounded number at a time."""
    horizon_ns = window_start_ns(tx.boot_ns, rate)
    left, sender = _RATES_BATCH, tx.db.execute(SQL.next_rate_sender, ("",)).get
    while sender is not None and left > 0:
        tx.db.execute(SQL.forget_rates, (sender, horizon_ns, left))
        left -= tx.db.changes() + 1
        sender = tx.db.execute(SQL.next_rate_sender, (sender,)).get


def prune_journal(tx: BusTransaction, retention: Retention) -> int:
    """Remove some of the oldest records if they are too old or take too much room; return how many."""
    pruned_through, snapshot_seq, body_bytes = count_bytes(tx.journal)
    batch = max(_PRUNE_BATCH, _PRUNED_PER_ENDPOINT * len(tx.registry.by_number))
    through = min(pruned_through + batch, prunable_through(tx.journal, retention.lake))
    if through <= pruned_through:
        return 0
    if body_bytes > retention.max_bytes:
        return _prune_by_size(tx, pruned_through, through, body_bytes - retention.max_bytes)
    horizon_ns = tx.now_ns - round(retention.keep_days * DAY_S * SECOND_NS)
    through = tx.db.execute(SQL.journal_older, (pruned_through, through, horizon_ns)).get
    if through is None or (through < pruned_through + batch and _was_pruned_recently(tx, snapshot_seq)):
        return 0
    return _prune_prefix(tx, through, _snapshot_state(tx))


def _prune_by_size(tx: BusTransaction, pruned_through: int, last: int, excess: int) -> int:
    """Prune the excess, unless the snapshot would take the room that pruning frees."""
    state = _snapshot_state(tx)
    snapshot_bytes = len(msgspec.json.encode({"through_seq": last, "state": state}))
    freed, through = 0, pruned_through
    rows: Any = tx.db.execute(SQL.journal_sizes, (pruned_through, last))
    for seq, size in rows:
        freed, through = freed + size, seq
        if freed >= excess + snapshot_bytes:
            break
    return 0 if freed <= 2 * snapshot_bytes else _prune_prefix(tx, through, state)


def _prune_prefix(tx: BusTransaction, through: int, state: dict[str, Any]) -> int:
    tx.keep_last_id()  # the record that shows the newest id may be among the pruned ones
    return prune_prefix(tx.journal, through, state)


def _was_pruned_recently(tx: BusTransaction, snapshot_seq: int | None) -> bool:
    at_ns = None if snapshot_seq is None else tx.db.execute(SQL.journal_at, (snapshot_seq,)).get
    return at_ns is not None and tx.now_ns - at_ns < _PARTIAL_PRUNE_EVERY_NS


def _snapshot_state(tx: BusTransaction) -> dict[str, Any]:
    return {"depths": read_depths(tx.db)}
