"""Locks: a replay of a resource's records with the product's lease rules must allow every one of them.

Tokens grow strictly, even compared with records that a restore dropped, and no store grants a token twice, for
whatever lock: one counter per store, which starts at the clock, exists for that. Boot times are comparable only
within a lock run; the start of a run reopens leases, exactly as in the store. A fenced event is valid only if its
author owns the current token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from posthouse.model import lease
from posthouse.model.lease import Denied, LockRow
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

TYPES = frozenset({"lock.acquired", "lock.taken_over", "lock.renewed", "lock.released", "journal.snapshot"})


class FormerLease(msgspec.Struct, array_like=True):
    """The lease that a take-over ended, as the record states it."""

    owner: str | None
    token: int | None
    deadline_boot_ns: int | None


class Grant(msgspec.Struct, array_like=True, tag="grant"):
    """A lease was `acquired`, `taken_over` or `renewed`."""

    kind: str
    owner: str
    token: int
    lease_ms: int
    granted_boot_ns: int
    deadline_boot_ns: int
    former: FormerLease


class Release(msgspec.Struct, array_like=True, tag="release"):
    """A lease was released."""

    owner: str
    token: int
    boot_ns: int


class SnapshotLock(msgspec.Struct, array_like=True, tag="snapshot"):
    """A snapshot states these columns of the lock."""

    columns: dict[str, Any]


class FencedWrite(msgspec.Struct, array_like=True, tag="fence"):
    """An event was accepted under the lock."""

    event_id: str
    author: str
    token: int
    #: The addressable coordinate that the event writes.
    address: str
    is_strict: bool


def lock_key(mesh: str, resource: str) -> str:
    """Return the key of a resource."""
    return f"{mesh}\x1f{resource}"


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    body, kind = entry.body, entry.type.partition(".")[2]
    if entry.type == "journal.snapshot":
        for row in body["state"].get("locks", ()):
            columns = {name: value for name, value in row.items() if name not in ("mesh", "resource")}
            yield lock_key(row["mesh"], row["resource"]), SnapshotLock(columns)
    elif kind == "released":
        yield lock_key(entry.mesh, entry.ref), Release(body["owner"], body["token"], body["boot_ns"])
    else:
        former = FormerLease(body.get("former_owner"), body.get("former_token"), body.get("former_deadline_boot_ns"))
        yield (
            lock_key(entry.mesh, entry.ref),
            Grant(
                kind,
                body["owner"],
                body["token"],
                body["lease_ms"],
                body["granted_boot_ns"],
                body["deadline_boot_ns"],
                former,
            ),
        )


class LockAuditor(Auditor):
    """The replay of one resource."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._resource = key.partition("\x1f")[2]
        self._row: LockRow | None = None
        self._highest_token = 0
        #: The lock runs that have not started yet, next one last.
        self._runs = list(reversed(lineage.lock_runs))
        #: Coordinate -> the token of its last fenced write.
        self._written: dict[str, int] = {}

    def add_step(self, step: Step) -> Iterator[Finding]:
        fact = step.fact
        if step.is_lost:
            if isinstance(fact, Grant) and fact.kind != "renewed":
                yield from self._raise_token(step, fact.token)
            return
        self._start_runs(step)
        match fact:
            case SnapshotLock(columns):
                yield from self._compare(step, columns)
            case FencedWrite():
                yield from self._check_fence(step, fact)
            case Release():
                yield from self._release(step, fact)
            case Grant(kind="renewed"):
                yield from self._renew(step, fact)
            case Grant():
                yield from self._grant(step, fact)

    def _start_runs(self, step: Step) -> None:
        while self._runs and self._runs[-1][:2] < (step.depth, step.seq):
            run = self._runs.pop()
            if self._row is not None:
                raised = replace(self._row, token=self._row.token + run.token_leap)
                self._row = lease.reopen(raised, run.boot_ns, run.over_before_ns, run.void_token)

    def _raise_token(self, step: Step, token: int) -> Iterator[Finding]:
        if token <= self._highest_token:
            detail = f"token {token} was granted after {self._highest_token}"
            yield self.finding("token_not_growing", step, self._resource, detail)
        self._highest_token = max(self._highest_token, token)

    def _grant(self, step: Step, grant: Grant) -> Iterator[Finding]:
        yield from self._raise_token(step, grant.token)
        outcome = lease.acquire(
            self._row, self._resource, grant.owner, grant.lease_ms, grant.granted_boot_ns, 0, lambda: grant.token
        )
        granted = self._granted_row(grant)
        is_take_over = grant.kind == "taken_over"
        if isinstance(outcome, Denied):
            holder = self._row.owner if self._row is not None else ""
            detail = f"{grant.owner} acquired it while {holder} held it"
            yield self.finding("lease_overlap", step, self._resource, detail)
        elif outcome.row != granted:
            yield self._wrong(step, f"the record grants {granted}, the lease rules {outcome.row}")
        elif outcome.took_over != is_take_over:
            detail = "a take-over without a former lease" if is_take_over else "a take-over recorded as acquired"
            yield self._wrong(step, detail)
        elif is_take_over and self._row is not None:
            former = FormerLease(self._row.owner, self._row.token, self._row.deadline_boot_ns)
            if grant.former != former:
                yield self._wrong(step, f"the record states {grant.former}, the history {former}")
        self._row = granted

    def _renew(self, step: Step, grant: Grant) -> Iterator[Finding]:
        outcome = lease.renew(self._row, grant.owner, grant.token, grant.lease_ms, grant.granted_boot_ns, 0)
        if isinstance(outcome, Denied):
            detail = f"{grant.owner} renewed with token {grant.token}, which the lease rules deny: {outcome.code}"
            yield self._wrong(step, detail)
        self._row = self._granted_row(grant)

    def _granted_row(self, grant: Grant) -> LockRow:
        return LockRow(self._resource, grant.owner, grant.token, grant.lease_ms, grant.deadline_boot_ns)

    def _release(self, step: Step, given: Release) -> Iterator[Finding]:
        outcome = lease.release(self._row, given.owner, given.token, given.boot_ns)
        if isinstance(outcome, Denied):
            detail = f"{given.owner} released with token {given.token}, which the lease rules deny: {outcome.code}"
            yield self._wrong(step, detail)
        if self._row is not None:
            self._row = replace(self._row, is_released=True)

    def _check_fence(self, step: Step, write: FencedWrite) -> Iterator[Finding]:
        row = self._row
        if row is None or row.is_released or (row.token, row.owner) != (write.token, write.author):
            detail = f"{write.author} wrote under {self._resource!r} with token {write.token}"
            yield self.finding("fence_violated", step, write.event_id, detail)
        elif write.is_strict and self._written.get(write.address) == write.token:
            detail = f"a second write of {write.address} under token {write.token}"
            yield self.finding("fence_violated", step, write.event_id, detail)
        self._written[write.address] = write.token

    def _compare(self, step: Step, columns: dict[str, Any]) -> Iterator[Finding]:
        stated = LockRow(self._resource, **columns)
        if step.seq != self.lineage.base_seq and stated != self._row:
            detail = f"the snapshot states {stated}, the history {self._row}"
            yield self.finding("snapshot_disagrees", step, self._resource, detail)
        self._row, self._highest_token = stated, max(self._highest_token, stated.token)

    def _wrong(self, step: Step, detail: str) -> Finding:
        return self.finding("lock_record_wrong", step, self._resource, detail)


class TokenTaken(msgspec.Struct, array_like=True):
    """A grant took a token."""

    token: int
    resource: str


def _by_token(entry: Entry) -> Iterator[KeyedFact]:
    yield str(entry.body["token"]), TokenTaken(entry.body["token"], entry.ref)


class TokenAuditor(Auditor):
    """All grants of one token in one store."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._granted: str | None = None
        #: The runs whose tokens came from one counter per store.
        self._runs = [run for run in lineage.lock_runs if run.token_counter >= 0]

    def add_step(self, step: Step) -> Iterator[Finding]:
        token, resource = step.fact.token, step.fact.resource
        runs = [run for run in self._runs if run[:2] < (step.depth, step.seq)]
        if runs and self._granted is not None:
            detail = f"token {token} was granted before, for {self._granted!r}"
            yield self.finding("token_granted_twice", step, resource, detail)
        elif runs and not step.is_lost and token <= runs[-1].token_counter:
            detail = f"token {token} was granted by a run whose counter began at {runs[-1].token_counter}"
            yield self.finding("token_not_growing", step, resource, detail)
        self._granted = resource


_GRANTS = frozenset({"lock.acquired", "lock.taken_over"})
TOKENS = Rule("tokens", _GRANTS, TokenTaken, _by_token, TokenAuditor, sees_lost=True)
RULE = Rule("locks", TYPES, Grant | Release | SnapshotLock | FencedWrite, _scatter, LockAuditor, sees_lost=True)
