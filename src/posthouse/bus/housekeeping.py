"""Keeping house: at opening, and then every moment, look after what no single call looks after.

Each second the settings files and the endpoints of other processes are looked at, dead processes are swept, and the
minute's refusals are booked; now and then served mailboxes are looked at again (the safety net below inotify), tmp/
is swept, old rates are forgotten and the journal is pruned.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from posthouse.bus import inbox, sweep
from posthouse.bus.retention import prune_journal, user_retention
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.bus.session import Session

log = get_log(__name__)

TURN_S = 1.0
_LOOK_EVERY = 5  # turns
_FORGET_EVERY = 2
_SWEEP_EVERY = 60
_PRUNE_PAUSE_S = 0.02  # between two bites, so that publishes go on


class Housekeeping:
    """The recurring work of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Recover what dead processes left, then go on every moment."""
        was_rebooted = sweep.recover(self._session)
        if was_rebooted:
            await self._rebuild_index()
        self._prune_once()
        self._task = self._session.loop.create_task(self._keep(), context=self._session.context.copy())

    async def sweep(self) -> None:
        """Do at once what the turns would do bit by bit."""
        session = self._session
        session.refusals.turn()
        session.ledger.flush()
        sweep.sweep_dead(session)
        session.spares.trim()
        sweep.sweep_leftovers(session)
        await self._sweep_index()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        turn = 0
        while self._session.failure is None:
            await asyncio.sleep(TURN_S)
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
            inbox.bury_expired(self._session, hash_)
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
        sweep.sweep_dead(session)
        session.serving.forget_unregistered(session.ledger.book.by_subject)
        if turn % _FORGET_EVERY == 0:
            session.ledger.run(lambda page: sweep.forget_rates(page, session))
        if turn % _LOOK_EVERY == 0:
            session.serving.reconsider()
            for server in session.serving.servers:
                server.look()
        if turn % _SWEEP_EVERY == 0:
            session.spares.trim()
            sweep.sweep_leftovers(session)
