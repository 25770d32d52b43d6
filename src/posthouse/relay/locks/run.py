"""The start of a run: before anything is decided, every lease that was not released gets its full length again.

Boot times of the run before mean nothing now, and a holder may have been told of its lease an instant before the end;
its full length is safe and simple. Under a new epoch (the store was restored from a backup) tokens may have been
handed out that the backup does not know, so every token leaps above them first.
"""

from __future__ import annotations

import secrets

from posthouse.model.clock import Clock
from posthouse.model.limits import RESTORE_TOKEN_LEAP
from posthouse.relay.locks.rows import LockRun
from posthouse.relay.store.interface import RelayStore, Unit


async def start_run(store: RelayStore, clock: Clock) -> str:
    """Begin a run of locks in one transaction with its record; return the run's id."""
    run_id = secrets.token_hex(8)
    await store.submit(lambda unit: begin(unit, run_id, store.epoch, clock.boot_id))
    return run_id


def begin(unit: Unit, run_id: str, epoch: str, boot_id: str) -> None:
    """Write the run, the leap after a restore, and what is re-opened."""
    former = unit.find_lock_run()
    leap = RESTORE_TOKEN_LEAP if former is not None and former.epoch != epoch else 0
    run = LockRun(run_id, epoch, boot_id, unit.boot_ns)
    reopened = unit.begin_lock_run(run, leap)
    body: dict[str, object] = {"run_id": run_id, "boot_id": boot_id, "boot_ns": run.boot_ns, "reopened": reopened}
    if leap:
        body["token_leap"] = leap
    unit.append("lock.run_started", ref=run_id, body=body)
