"""Lock decisions inside the writer's transaction: read the leases, apply the rules, write rows and records.

Each method is one unit of work. It changes only the store and the mark of served waiters, which a rollback undoes, so
the writer may run it again. A lock that becomes free goes to waiters first, in the same transaction, so no request
overtakes the queue. Every change of a row has its own record. At the start of a run every lease that may still be
active gets its full length again, and the counter of tokens rises to the clock. Under a new epoch these leases also
lose their tokens: the history that was lost may have granted the lock to another holder.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import structlog

from posthouse.model import lease
from posthouse.model.clock import Clock
from posthouse.model.lease import Denied, Grant, LeaseRequest, LockRow, Released
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.model.lock_scope import Asked, Claim, Scope, first_conflict
from posthouse.relay.locks.wait_queue import Waiter, WaitQueues
from posthouse.relay.store.high_water import HighWater
from posthouse.relay.store.protocol import LockStore, Unit
from posthouse.relay.wire.lock_operations import (
    OVERLAPS_MAX,
    Acquire,
    Break,
    BrokenLeases,
    Inspect,
    LockRun,
    Outcome,
    Release,
    Renew,
)

log = structlog.get_logger(__name__)


async def start_run(store: LockStore, clock: Clock, mark: HighWater | None, *, has_new_key: bool) -> str:
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
    counter = unit.last_token()
    if mark is not None and mark.epoch != epoch:  # the mark of a store that is lost
        counter = max(counter, mark.token_bound)
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
    """A waiter that a transaction decided about, and its outcome."""

    waiter: Waiter
    outcome: Grant | Denied
    waited_ns: int


class Decision(NamedTuple):
    """The result of a unit of work."""

    #: the outcome of the operation; None if the caller has to wait, or was served as a waiter before
    outcome: Outcome | None
    #: leases that were granted, extended or ended
    changed: Sequence[LockRow] = ()
    served: Sequence[Served] = ()
    #: active leases for which waiters wait
    blockers: Sequence[LockRow] = ()
    #: how many requests wait; for inspect
    waiting: int = 0


class _Effects(NamedTuple):
    """The effects of one unit of work besides its own outcome."""

    changed: list[LockRow]
    served: list[Served]
    blockers: list[LockRow]

    def decision(self, outcome: Outcome | None) -> Decision:
        return Decision(outcome, self.changed, self.served, self.blockers)


class Decider:
    """The decisions of one run of a relay."""

    def __init__(self, run_id: str, queues: WaitQueues) -> None:
        self._run_id = run_id
        self._queues = queues

    def acquire(self, unit: Unit, owner: str, request: Acquire) -> Decision:
        """Grant or deny a lock, without waiting."""
        now_ns, mesh, asked = unit.boot_ns, request.mesh, request.lease_request(owner)
        effects, place = _Effects([], [], []), self._queues.next_place()  # waiters that join from now on come later
        self._serve(unit, mesh, asked.claims, now_ns, effects)
        outcome = self._decide(unit, mesh, asked, now_ns, place, effects)
        if isinstance(outcome, Grant) and not outcome.is_repeat:
            self._write_grant(unit, request, outcome, now_ns, None, effects)
            self._serve(unit, mesh, asked.claims, now_ns, effects, asked.claims)
        return effects.decision(outcome)

    def join(self, unit: Unit, waiter: Waiter, *, is_final: bool = False) -> Decision:
        """Decide on a waiter that has joined its queues; the outcome is None if it waits or was served before.

        The final check of a waiter decides in any case, and serves the waiters behind one that leaves.
        """
        effects, now_ns = _Effects([], [], []), unit.boot_ns
        if waiter.is_served:
            return effects.decision(None)
        if not waiter.may_be_served and (not is_final or waiter.is_gone()):
            return self.leave(unit, waiter)
        outcome: Grant | Denied | None = self._try(unit, waiter, now_ns, effects)
        if _is_held(outcome) and not effects.blockers:  # only an earlier waiter blocks this one: it may be served now
            self._serve(unit, waiter.request.mesh, waiter.claims, now_ns, effects)
            is_served = any(served.waiter is waiter for served in effects.served)
            outcome = None if is_served else self._try(unit, waiter, now_ns, effects)
        if _is_held(outcome) and not is_final:
            return effects.decision(None)
        if outcome is not None and len(self._queues) > 1:  # other waiters are queued too
            granted = waiter.claims if isinstance(outcome, Grant) else ()
            self._serve(unit, waiter.request.mesh, waiter.claims, now_ns, effects, granted)
        return effects.decision(outcome)

    def leave(self, unit: Unit, waiter: Waiter) -> Decision:
        """Serve the waiters behind one that was withdrawn."""
        effects = _Effects([], [], [])
        self._serve(unit, waiter.request.mesh, waiter.claims, unit.boot_ns, effects)
        return effects.decision(None)

    def renew(self, unit: Unit, owner: str, request: Renew) -> Decision:
        """Extend a lease, or all leases of one grant."""
        now_ns, renewed = unit.boot_ns, []
        for name in (request.resource, *request.also):
            row = _find_lease(unit, request.mesh, name, owner, request.session, request.token)
            outcome = lease.renew(row, owner, request.token, request.lease_ms, now_ns, unit.now_ns, request.session)
            if isinstance(outcome, Denied):
                return Decision(outcome)
            renewed.append(outcome)
        rows = tuple([grant.row for grant in renewed])
        for row in rows:
            unit.extend_lease(request.mesh, row)
            self._append(unit, "lock.renewed", request.mesh, row, _grant_body(row, now_ns))
        return Decision(Grant(rows, renewed[0].expires_at_ns), rows)

    def release(self, unit: Unit, owner: str, request: Release, former: Sequence[str] = ()) -> Decision:
        """End the leases that the holder still has, and serve the waiters; refuse if it has none of them.

        `former` are keys that the owner has replaced: their leases stay theirs, but the owner may release them.
        """
        now_ns, effects = unit.boot_ns, _Effects([], [], [])
        refusal: Denied | None = None
        for name in (request.resource, *request.also):
            holder = _holder(unit, request, name, owner, former) if former else owner
            row = _find_lease(unit, request.mesh, name, holder, request.session, request.token)
            outcome = lease.release(row, holder, request.token, now_ns, request.session)
            if isinstance(outcome, Denied):
                refusal = refusal or outcome
            else:
                self._end(unit, "lock.released", request.mesh, outcome.rows[0], now_ns, effects)
        if refusal is not None and not effects.changed:
            return Decision(refusal)
        released = Released(tuple(effects.changed))
        self._serve(unit, request.mesh, released.rows, now_ns, effects)
        return effects.decision(released)

    def break_leases(self, unit: Unit, admin: str, request: Break) -> Decision:
        """End every lease under a name, or the one with a token, and serve the waiters."""
        now_ns, effects = unit.boot_ns, _Effects([], [], [])
        while rows := [
            row for row in unit.find_leases(request.mesh, request.resource, token=request.token) if not row.is_released
        ]:
            for row in rows:
                unit.end_lease(request.mesh, row)
                self._append_end(unit, "lock.broken", request.mesh, row, now_ns, admin, request.via)
                effects.changed.append(lease.ended(row))
        broken = BrokenLeases(tuple(effects.changed))
        if not broken.rows:
            return Decision(Denied("not_held"))
        self._serve(unit, request.mesh, broken.rows, now_ns, effects)
        return effects.decision(broken)

    def inspect(self, unit: Unit, request: Inspect) -> Decision:
        """Return the holders of a lock; it runs in the writer, so it has its place in the order of all operations."""
        rows = unit.find_covering(request.mesh, request.resource)
        view = lease.inspect(rows, request.resource, unit.boot_ns)
        return Decision(view, waiting=self._queues.waiting_for(request.mesh, Asked(request.resource, "")))

    def serve(self, unit: Unit, mesh: str, scopes: Sequence[Scope]) -> Decision:
        """Serve the waiters for scopes whose leases may be over."""
        effects = _Effects([], [], [])
        self._serve(unit, mesh, scopes, unit.boot_ns, effects)
        return effects.decision(None)

    def _serve(
        self,
        unit: Unit,
        mesh: str,
        scopes: Sequence[Scope],
        now_ns: int,
        effects: _Effects,
        granted: Sequence[Claim] = (),
    ) -> None:
        """Decide about every waiter that overlaps these scopes and no longer has to wait.

        `granted` was just granted. A served waiter may cover more than these scopes, and its session may wait for
        something else that overlaps; then continue with the waiters for what it covers.
        """
        while scopes and (order := self._queues.serving_order(mesh, scopes)) is not None:
            order.hold(granted)
            wider: list[Asked] = []
            held: list[Asked] = []
            for waiter in order:
                blockers = len(effects.blockers)
                outcome = self._try(unit, waiter, now_ns, effects)
                if _is_held(outcome):
                    order.block((*waiter.claims, *effects.blockers[blockers:]))
                    continue
                effects.served.append(Served(waiter, outcome, now_ns - waiter.since_boot_ns))
                if len(waiter.claims) > 1 or waiter.request.tree or self._queues.waits_again(waiter):
                    wider.extend(waiter.claims)
                if isinstance(outcome, Grant):
                    order.hold(waiter.claims)
                    held.extend(waiter.claims)
            scopes, granted = wider, held

    def _try(self, unit: Unit, waiter: Waiter, now_ns: int, effects: _Effects) -> Grant | Denied:
        """Decide about a waiter; it is served unless it still has to wait."""
        request = waiter.request
        outcome = self._decide(unit, request.mesh, waiter.lease_request, now_ns, waiter.ticket, effects)
        if _is_held(outcome):
            return outcome
        waiter.is_served = True
        unit.on_rollback(partial(setattr, waiter, "is_served", False))
        if isinstance(outcome, Grant) and not outcome.is_repeat:
            self._write_grant(unit, request, outcome, now_ns, now_ns - waiter.since_boot_ns, effects)
        return outcome

    def _decide(
        self, unit: Unit, mesh: str, asked: LeaseRequest, now_ns: int, ticket: int, effects: _Effects
    ) -> Grant | Denied:
        """Apply the rules; a lease that blocks the request is noted, so that its end can be waited for."""
        record, first = None, asked.claims[0]
        if asked.request_id is not None:
            record = unit.find_lock_request(mesh, first.resource, first.owner, first.session, asked.request_id)
        rows = self._overlaps(unit, mesh, asked, now_ns, effects)
        blocker = first_conflict(asked.claims, [row for row in rows if lease.is_active(row, now_ns)]) if rows else None
        rival = self._queues.earlier_waiter(mesh, asked.claims, ticket) if blocker is None else None
        outcome = lease.acquire(asked, rows, now_ns, unit.now_ns, unit.next_token, record, rival)
        if blocker is not None and _is_held(outcome):
            effects.blockers.append(blocker)
        return outcome

    def _overlaps(
        self, unit: Unit, mesh: str, asked: LeaseRequest, now_ns: int, effects: _Effects
    ) -> Sequence[LockRow]:
        if len(asked.claims) == 1:
            return self._overlaps_of(unit, mesh, asked.claims[0], now_ns, effects)
        found: dict[tuple[str, str, str], LockRow] = {}
        for claim in asked.claims:
            for row in self._overlaps_of(unit, mesh, claim, now_ns, effects):
                found[row.resource, row.owner, row.session] = row  # a tree may overlap several claims
        return list(found.values())

    def _overlaps_of(self, unit: Unit, mesh: str, claim: Asked, now_ns: int, effects: _Effects) -> list[LockRow]:
        """Return the leases that decide about a claim; if there are many, one active conflict is enough."""
        rows = unit.find_overlaps(mesh, claim, now_ns)
        while len(rows) >= OVERLAPS_MAX:
            expired = [row for row in rows if not lease.is_active(row, now_ns)]
            if len(expired) < len(rows):
                own = unit.find_own_overlap(mesh, claim, now_ns)
                return rows if own is None else [*rows, own]
            for row in expired:
                self._end(unit, "lock.expired", mesh, row, now_ns, effects)
            rows = unit.find_overlaps(mesh, claim, now_ns)
        return rows

    def _write_grant(
        self, unit: Unit, request: Acquire, grant: Grant, now_ns: int, waited_ns: int | None, effects: _Effects
    ) -> None:
        mesh = request.mesh
        former: dict[str, LockRow] = {}
        for row in sorted(grant.expired, key=lambda row: row.token) if grant.expired else ():
            if any(row.resource == granted.resource for granted in grant.rows):
                if row.resource in former:
                    self._append_end(unit, "lock.expired", mesh, former[row.resource], now_ns)
                former[row.resource] = row
                unit.end_lease(mesh, row)
            else:
                self._end(unit, "lock.expired", mesh, row, now_ns, effects)
        if grant.record is not None:
            unit.save_lock_request(mesh, request.resource, grant.row.owner, grant.row.session, grant.record)
        for row in grant.rows:
            unit.add_lease(mesh, row)
            body = _grant_body(row, now_ns)
            if request.request_id is not None:
                body["request_id"] = request.request_id
            if waited_ns is not None:
                body["wait_ms"] = waited_ns // MILLISECOND_NS
            if (last := former.get(row.resource)) is not None:
                body["former_owner"], body["former_token"] = last.owner, last.token
                body["former_deadline_boot_ns"] = last.deadline_boot_ns
                if last.session:
                    body["former_session"] = last.session
            self._append(unit, "lock.acquired" if last is None else "lock.taken_over", mesh, row, body)
        effects.changed.extend(grant.rows)

    def _end(self, unit: Unit, kind: str, mesh: str, row: LockRow, now_ns: int, effects: _Effects) -> None:
        unit.end_lease(mesh, row)
        self._append_end(unit, kind, mesh, row, now_ns)
        effects.changed.append(lease.ended(row))

    def _append_end(
        self,
        unit: Unit,
        kind: str,
        mesh: str,
        row: LockRow,
        now_ns: int,
        actor: str | None = None,
        via: str | None = None,
    ) -> None:
        body: dict[str, object] = {"owner": row.owner, "token": row.token, "boot_ns": now_ns}
        if row.session:
            body["session"] = row.session
        if via is not None:
            body["via"] = via
        self._append(unit, kind, mesh, row, body, actor)

    def _append(
        self, unit: Unit, kind: str, mesh: str, row: LockRow, body: dict[str, object], actor: str | None = None
    ) -> None:
        body["run_id"] = self._run_id
        unit.append(kind, mesh=mesh, actor=actor or row.owner, ref=row.resource, body=body)


def _is_held(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Denied) and outcome.code == "held"


def _holder(unit: Unit, request: Release, name: str, owner: str, former: Sequence[str]) -> str:
    """Return which key of an owner has the lease with the token, the present one if none has."""
    for each in (owner, *former):
        leases = unit.find_leases(request.mesh, name, each)
        if any(row.token == request.token and not row.is_released for row in leases):
            return each
    return owner


def _find_lease(unit: Unit, mesh: str, name: str, owner: str, session: str | None, token: int) -> LockRow | None:
    rows = unit.find_leases(mesh, name, owner) or unit.find_leases(mesh, name)
    return lease.find_lease(rows, owner, session, token)


def _grant_body(row: LockRow, now_ns: int) -> dict[str, object]:
    body: dict[str, object] = {
        "owner": row.owner,
        "token": row.token,
        "lease_ms": row.lease_ms,
        "granted_boot_ns": now_ns,
        "deadline_boot_ns": row.deadline_boot_ns,
    }
    if row.session:
        body["session"] = row.session
    if row.is_tree:
        body["tree"] = True
    if row.is_shared:
        body["shared"] = True
    return body
