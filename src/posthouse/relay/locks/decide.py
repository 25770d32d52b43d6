"""Lock decisions inside the writer's transaction: read the row, apply the rule, write row and record.

Each method is one unit of work and changes nothing but the store, so the writer may run it again. A lock that is
free or expired goes to the longest waiter first, in the same transaction, so no request overtakes the queue.
At the start of a run every lease that may still be active gets its full length again, and the counter of tokens rises
to the clock. Under a new epoch these leases also lose their tokens: the history that was lost may have granted the
lock to another holder.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import structlog

from posthouse.model import lease
from posthouse.model.clock import Clock
from posthouse.model.lease import Denied, Grant, LockRow, LockView, Released
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.relay.locks.wait_queue import Waiter, WaitQueues
from posthouse.relay.store.high_water import HighWater
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.lock_operations import Acquire, Inspect, LockEntry, LockRun, Release, Renew

log = structlog.get_logger(__name__)


async def start_run(store: RelayStore, clock: Clock, mark: HighWater | None, *, has_new_key: bool) -> str:
    """Begin a run of locks in one transaction with its record; return the run's id.

    `mark` is the high-water mark of the last run. Tokens begin at 0 only in a new store of a relay that has a new key:
    no client can hold an older token of it.
    """
    run_id = secrets.token_hex(8)
    behind_ns = await store.submit(
        lambda unit: begin_run(unit, run_id, store.epoch, clock, mark, has_new_key=has_new_key)
    )
    if behind_ns > 0:
        log.warning("wall_clock_behind_journal", behind_s=behind_ns / SECOND_NS)
    return run_id


def begin_run(
    unit: Unit, run_id: str, epoch: str, clock: Clock, mark: HighWater | None = None, *, has_new_key: bool
) -> int:
    """Write the run, reopen leases and raise the counter; return how far the wall clock is behind the journal."""
    former = unit.find_lock_run()
    counter = max(unit.last_token(), 0 if mark is None else mark.token_counter)
    if former is not None or not has_new_key:
        counter = lease.first_counter(counter, unit.now_ns)
    unit.raise_token_counter(counter)
    run = LockRun(run_id, epoch, clock.boot_id, unit.boot_ns)
    over_before_ns = _over_before_ns(former, run, mark)
    void_token = counter if former is not None and former.epoch != epoch else 0
    reopened = unit.begin_lock_run(run, over_before_ns, void_token)
    body: dict[str, object] = {
        "run_id": run_id,
        "boot_id": run.boot_id,
        "boot_ns": run.boot_ns,
        "reopened": reopened,
        "token_counter": counter,
        "over_before_ns": over_before_ns,
    }
    if void_token:
        body["void_token"] = void_token
    unit.append("lock.run_started", ref=run_id, body=body)
    return unit.now_ns - clock.wall_ns()


def _over_before_ns(former: LockRun | None, run: LockRun, mark: HighWater | None) -> int:
    """Return the boot time, of the former run's boot, at which that run's leases are known to be over; 0: unknown."""
    if former is None or former.epoch != run.epoch:  # a renewal may be among the records that a restore lost
        return 0
    if former.boot_id == run.boot_id:
        return run.boot_ns
    if mark is not None and (mark.epoch, mark.boot_id) == (former.epoch, former.boot_id):
        return max(former.boot_ns, mark.boot_ns)
    return former.boot_ns


class Served(NamedTuple):
    """A waiter that a transaction took out of its queue, and its outcome."""

    waiter: Waiter
    outcome: Grant | Denied
    waited_ns: int


class Decision(NamedTuple):
    """The result of a unit of work."""

    #: the outcome of the operation; None if the caller has to wait, or was served as a waiter before
    outcome: Grant | Released | Denied | LockView | None
    #: the lock after the transaction
    row: LockRow | None
    served: tuple[Served, ...] = ()


class Decider:
    """The decisions of one run of a relay."""

    def __init__(self, run_id: str, queues: WaitQueues) -> None:
        self._run_id = run_id
        self._queues = queues

    def acquire(self, unit: Unit, owner: str, request: Acquire) -> Decision:
        """Grant or deny a lock, without waiting."""
        now_ns = unit.boot_ns
        entry, served = self._serve(unit, unit.find_lock(request.mesh, request.resource), request, now_ns)
        outcome = _apply_rule(unit, entry, owner, request, now_ns)
        if isinstance(outcome, Grant) and not outcome.is_repeat:
            last_ticket = 0 if entry is None else entry.last_ticket
            entry = self._write_grant(unit, entry, request, outcome, now_ns, None, last_ticket)
        return Decision(outcome, None if entry is None else entry.row, served)

    def join(self, unit: Unit, waiter: Waiter, *, is_final: bool = False) -> Decision:
        """Serve the queue that a waiter has joined; the outcome is the waiter's own if it need not wait."""
        now_ns, request = unit.boot_ns, waiter.request
        entry = unit.find_lock(request.mesh, request.resource)
        if entry is not None and entry.last_ticket >= waiter.ticket:  # served already, or skipped because it was gone
            return Decision(_held(entry.row, now_ns) if is_final else None, entry.row)
        entry, served = self._serve(unit, entry, request, now_ns, waiter if is_final else None)
        if entry is None or any(each.waiter is waiter for each in served):
            return Decision(None, None if entry is None else entry.row, served)
        if not lease.is_active(entry.row, now_ns):  # the lock is free and no waiter may have it: this one is gone too
            return Decision(None, entry.row, served)
        outcome = _apply_rule(unit, entry, waiter.owner, request, now_ns)
        is_waiting = isinstance(outcome, Denied) and outcome.code == "held" and not is_final
        return Decision(None if is_waiting else outcome, entry.row, served)

    def renew(self, unit: Unit, owner: str, request: Renew) -> Decision:
        """Extend a lease."""
        now_ns, entry = unit.boot_ns, unit.find_lock(request.mesh, request.resource)
        row = None if entry is None else entry.row
        outcome = lease.renew(row, owner, request.token, request.lease_ms, now_ns, unit.now_ns)
        if entry is None or isinstance(outcome, Denied):
            return Decision(outcome, row)
        unit.save_lock(entry._replace(row=outcome.row))
        self._append(unit, "lock.renewed", request.mesh, outcome.row, _grant_body(outcome.row, now_ns))
        return Decision(outcome, outcome.row)

    def release(self, unit: Unit, owner: str, request: Release) -> Decision:
        """End a lease and grant the lock to the longest waiter."""
        now_ns, entry = unit.boot_ns, unit.find_lock(request.mesh, request.resource)
        row = None if entry is None else entry.row
        outcome = lease.release(row, owner, request.token, now_ns)
        if entry is None or isinstance(outcome, Denied):
            return Decision(outcome, row)
        freed = entry._replace(row=outcome.row)
        body: dict[str, object] = {"owner": owner, "token": request.token, "boot_ns": now_ns}
        self._append(unit, "lock.released", request.mesh, outcome.row, body)
        after, served = self._serve(unit, freed, request, now_ns)
        if after is None or after is freed:  # else the next grant has written the row
            unit.save_lock(freed)
            after = freed
        return Decision(outcome, after.row, served)

    def inspect(self, unit: Unit, request: Inspect) -> Decision:
        """Return the holder of a lock; it runs in the writer so that it fits into the order of all operations."""
        entry = unit.find_lock(request.mesh, request.resource)
        row = None if entry is None else entry.row
        return Decision(lease.inspect(row, request.resource, unit.boot_ns), row)

    def serve(self, unit: Unit, mesh: str, resource: str) -> Decision:
        """Serve the queue of a lock whose lease may be over."""
        request = Inspect(resource, mesh)
        entry, served = self._serve(unit, unit.find_lock(mesh, resource), request, unit.boot_ns)
        return Decision(None, None if entry is None else entry.row, served)

    def _serve(
        self,
        unit: Unit,
        entry: LockEntry | None,
        request: Acquire | Release | Inspect,
        now_ns: int,
        final: Waiter | None = None,
    ) -> tuple[LockEntry | None, tuple[Served, ...]]:
        """Grant a lock that is not held to the first waiter that may have it."""
        last_ticket = 0 if entry is None else entry.last_ticket
        served: list[Served] = []
        key = (request.mesh, request.resource)
        while entry is None or not lease.is_active(entry.row, now_ns):
            waiter = self._queues.next_waiter(key, last_ticket, final)
            if waiter is None:
                break
            last_ticket, waited_ns = waiter.ticket, now_ns - waiter.since_boot_ns
            outcome = _apply_rule(unit, entry, waiter.owner, waiter.request, now_ns)
            if isinstance(outcome, Grant):
                entry = self._write_grant(unit, entry, waiter.request, outcome, now_ns, waited_ns, last_ticket)
            served.append(Served(waiter, outcome, waited_ns))
        return entry, tuple(served)

    def _write_grant(
        self,
        unit: Unit,
        former: LockEntry | None,
        request: Acquire,
        grant: Grant,
        now_ns: int,
        waited_ns: int | None,
        last_ticket: int,
    ) -> LockEntry:
        entry = LockEntry(request.mesh, grant.row, last_ticket)
        unit.save_lock(entry)
        if grant.record is not None:
            unit.save_lock_request(request.mesh, request.resource, grant.row.owner, grant.record)
        body = _grant_body(grant.row, now_ns)
        if request.request_id is not None:
            body["request_id"] = request.request_id
        if waited_ns is not None:
            body["wait_ms"] = waited_ns // MILLISECOND_NS
        if grant.took_over and former is not None:
            body["former_owner"] = former.row.owner
            body["former_token"] = former.row.token
            body["former_deadline_boot_ns"] = former.row.deadline_boot_ns
        self._append(unit, "lock.taken_over" if grant.took_over else "lock.acquired", request.mesh, grant.row, body)
        return entry

    def _append(self, unit: Unit, kind: str, mesh: str, row: LockRow, body: dict[str, object]) -> None:
        body["run_id"] = self._run_id
        unit.append(kind, mesh=mesh, actor=row.owner, ref=row.resource, body=body)


def _apply_rule(unit: Unit, entry: LockEntry | None, owner: str, request: Acquire, now_ns: int) -> Grant | Denied:
    record = None
    if request.request_id is not None:
        record = unit.find_lock_request(request.mesh, request.resource, owner, request.request_id)
    row = None if entry is None else entry.row
    return lease.acquire(
        row,
        request.resource,
        owner,
        request.lease_ms,
        now_ns,
        unit.now_ns,
        unit.next_token,
        request.request_id,
        record,
    )


def _held(row: LockRow, now_ns: int) -> Denied:
    return Denied("held", {"holder": row.owner, "remaining_ms": lease.remaining_ms(row, now_ns)})


def _grant_body(row: LockRow, now_ns: int) -> dict[str, object]:
    return {
        "owner": row.owner,
        "token": row.token,
        "lease_ms": row.lease_ms,
        "granted_boot_ns": now_ns,
        "deadline_boot_ns": row.deadline_boot_ns,
    }
