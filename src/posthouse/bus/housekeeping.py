"""Housekeeping: the recurring jobs of an open bus, and how much of the journal is kept.

Every second: operator files, endpoints of other processes, dead processes, the minute's refusals. Less often: rescan
served mailboxes (the safety net below inotify), sweep tmp/, delete old rate rows, prune the journal. The journal
keeps thirty days and a gigabyte unless the operator sets other limits; the oldest records go first, in small
transactions, each below a snapshot of the endpoints. With a lake, only records that the lake has committed are
pruned.
"""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus import polling, recovery
from posthouse.bus.transaction import SQL, BusTransaction, read_depths
from posthouse.files import home_directory
from posthouse.journal.prune import prunable_through, prune_prefix
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, SECOND_NS
from posthouse.model.settings import SETTINGS
from posthouse.model.settings_sources import flatten_settings, resolve_settings

if TYPE_CHECKING:
    from posthouse.bus.session import Session


log = get_log(__name__)
HOUSEKEEPING_INTERVAL_S = 1.0
_RESCAN_EVERY = 5  # turns
_DELETE_RATES_EVERY = 2
_SWEEP_EVERY = 60
_PRUNE_PAUSE_S = 0.02  # between two bites, so that publishes go on


class Housekeeping:
    """The recurring work of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Recover what dead processes left, then go on every moment."""
        was_rebooted = recovery.recover(self._session)
        if was_rebooted:
            await self._rebuild_index()
        self._prune_once()
        self._task = self._session.loop.create_task(self._keep(), context=self._session.context.copy())

    async def sweep(self) -> None:
        """Do at once what the turns would do bit by bit."""
        session = self._session
        session.refusals.turn()
        session.ledger.flush()
        recovery.sweep_dead(session)
        session.spares.trim()
        recovery.sweep_temporary_files(session)
        await self._sweep_index()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        turn = 0
        while self._session.failure is None:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            turn += 1
            try:
                self._turn(turn)
                if turn % _SWEEP_EVERY == 0:
                    await self._sweep_index()
                    await self.prune()
            except (OSError, PosthouseError) as failure:
                log.warning("housekeeping_failed", reason=str(failure))

    async def _sweep_index(self) -> None:
        """Bury mail that expired where nobody serves, and forget what was handled long ago."""
        indexing = self._session.indexing
        for hash_ in await indexing.run(indexing.index.mailboxes_with_expired):
            polling.dead_letter_expired(self._session, hash_)
        await indexing.run(indexing.index.delete_expired)

    async def _rebuild_index(self) -> None:
        """Make the index anew: it may have taken in what bus.db has lost with the power."""
        indexing = self._session.indexing
        try:
            await indexing.run(indexing.index.rebuild)
        except PosthouseError as failure:
            log.warning("index_not_rebuilt", reason=str(failure))

    async def prune(self) -> None:
        """Let the oldest of the journal go, bit by bit."""
        removed = self._prune_once()
        while removed:
            await asyncio.sleep(_PRUNE_PAUSE_S)
            removed = self._prune_once()

    def _prune_once(self) -> int:
        """Prune a little; settings that cannot be read, or a store that refuses, keep everything."""
        try:
            retention = self._session.retention or user_retention()
            return self._session.ledger.run(lambda page: prune_journal(page, retention))
        except PosthouseError as failure:
            log.warning("journal_not_pruned", reason=str(failure))
            return 0

    def _turn(self, turn: int) -> None:
        session = self._session
        session.policy.rules.refresh()
        session.config.refresh()
        session.refusals.turn()
        recovery.sweep_dead(session)
        session.serving.forget_unregistered(session.ledger.book.by_subject)
        if turn % _DELETE_RATES_EVERY == 0:
            session.ledger.run(lambda page: recovery.delete_old_rates(page, session))
        if turn % _RESCAN_EVERY == 0:
            session.serving.reconsider()
            for server in session.serving.servers:
                server.look()
        if turn % _SWEEP_EVERY == 0:
            session.spares.trim()
            recovery.sweep_temporary_files(session)


_PRUNE_BATCH = 500  # records per transaction: a few milliseconds
_PER_ENDPOINT = 4  # more records go than endpoints stand in the snapshot, else pruning would not pay
_PARTIAL_PRUNE_EVERY_NS = DAY_S * SECOND_NS  # less than a whole bite goes once a day: each costs a snapshot
_SETTINGS = {name: SETTINGS[name] for name in ("journal.keep_days", "journal.max_bytes", "journal.lake")}


@dataclass(frozen=True, slots=True)
class Retention:
    """What of a journal may go."""

    keep_days: float = JOURNAL_KEEP_DAYS
    max_bytes: int = JOURNAL_MAX_BYTES
    #: set: only what the lake has committed
    lake: str | None = None


def user_retention(environ: Mapping[str, str] = os.environ) -> Retention:
    """Return what config.toml and the environment of this user say; raises when either is not valid."""
    path = home_directory(environ) / "config.toml"
    try:
        file: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        file = {}
    except (OSError, ValueError) as failure:
        raise error("config_unreadable", path=str(path), reason=str(failure)) from failure
    given = {name: value for name, value in flatten_settings(file).items() if name in _SETTINGS}
    values = {name: resolved.value for name, resolved in resolve_settings(given, environ, settings=_SETTINGS).items()}
    return msgspec.convert({name.removeprefix("journal."): value for name, value in values.items()}, Retention)


def prune_journal(page: BusTransaction, retention: Retention) -> int:
    """Remove a few of the oldest records if they are too old or too many; return how many went."""
    pruned_through, snapshot_seq, body_bytes = page.db.execute(SQL.journal_extent).fetchone() or (0, None, 0)
    bite = max(_PRUNE_BATCH, _PER_ENDPOINT * len(page.book.by_number))
    through = min(pruned_through + bite, prunable_through(page.tx, retention.lake))
    if through <= pruned_through:
        return 0
    if body_bytes > retention.max_bytes:
        return _prune_by_size(page, pruned_through, through, body_bytes - retention.max_bytes)
    horizon_ns = page.now_ns - round(retention.keep_days * DAY_S * SECOND_NS)
    through = page.db.execute(SQL.journal_older, (pruned_through, through, horizon_ns)).get
    if through is None or (through < pruned_through + bite and _was_pruned_lately(page, snapshot_seq)):
        return 0
    return prune_prefix(page.tx, through, _snapshot_state(page))


def _prune_by_size(page: BusTransaction, pruned_through: int, most: int, excess: int) -> int:
    """Prune what is too much, unless the snapshot would take as much room as it makes."""
    state = _snapshot_state(page)
    snapshot_bytes = len(msgspec.json.encode({"through_seq": most, "state": state}))
    freed, through = 0, pruned_through
    rows: Any = page.db.execute(SQL.journal_sizes, (pruned_through, most))
    for seq, size in rows:
        freed, through = freed + size, seq
        if freed >= excess + snapshot_bytes:
            break
    return 0 if freed <= 2 * snapshot_bytes else prune_prefix(page.tx, through, state)


def _was_pruned_lately(page: BusTransaction, snapshot_seq: int | None) -> bool:
    at_ns = None if snapshot_seq is None else page.db.execute(SQL.journal_at, (snapshot_seq,)).get
    return at_ns is not None and page.now_ns - at_ns < _PARTIAL_PRUNE_EVERY_NS


def _snapshot_state(page: BusTransaction) -> dict[str, Any]:
    return {"depths": read_depths(page.db)}
