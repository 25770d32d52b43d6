"""What a relay does by itself: sweep expired events, write down refusals.

Both run once a minute, in small steps between the batches of others. A store without room is tried again a minute
later; any other failure is logged and the next minute tries anew.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from posthouse.model.errors import PosthouseError
from posthouse.relay.ops.refusals import Refusals
from posthouse.relay.store.interface import RelayStore

log = structlog.get_logger(__name__)

INTERVAL_S = 60.0
SWEEP_ROWS = 200  # per transaction: a few milliseconds that others wait


class Housekeeping:
    """The relay's own work, as a task of the loop it was made on."""

    def __init__(self, store: RelayStore, refusals: Refusals, interval_s: float = INTERVAL_S) -> None:
        self._store = store
        self._refusals = refusals
        self._interval_s = interval_s
        self._task = asyncio.create_task(self._serve(), name="housekeeping")

    async def close(self) -> None:
        """End the task and write what is left."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        try:
            await self._refusals.write(self._store, everything=True)
        except PosthouseError as failure:
            log.warning("refusals_not_written", reason=str(failure))

    async def run_once(self) -> int:
        """Do what is due now; return how many events were swept."""
        await self._refusals.write(self._store)
        swept = 0
        while count := await self._store.submit(lambda unit: unit.sweep_expired(SWEEP_ROWS)):
            swept += count
        return swept

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                if swept := await self.run_once():
                    log.info("expired_events_swept", events=swept)
            except PosthouseError as failure:
                log.warning("housekeeping_failed", reason=str(failure))
            except Exception:
                log.exception("housekeeping_failed")
