"""Locks: replaying the records of a resource with the product's own rules of leases allows every one of them.

Tokens grow strictly, also over what a restore has lost: that is what the leap after it is for. Boot times compare
within a run; the start of a run re-opens what was not released, exactly as it did in the store. A fenced event was
accepted only for the owner of the current token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from posthouse.model import lease
from posthouse.model.lease import Denied, LockRow
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

TYPES = frozenset({"lock.acquired", "lock.taken_over", "lock.renewed", "lock.released", "journal.snapshot"})
_GRANT = ("owner", "token", "lease_ms", "granted_boot_ns", "deadline_boot_ns")
_FORMER = ("former_owner", "former_token", "former_deadline_boot_ns")


def lock_key(mesh: str, resource: str) -> str:
    """Return the key of a resource."""
    return f"{mesh}\x1f{resource}"


def _scatter(entry: Entry) -> Iterator[Part]:
    body, kind = entry.body, entry.type.partition(".")[2]
    if entry.type == "journal.snapshot":
        for row in body["state"].get("locks", ()):
            held = {name: value for name, value in row.items() if name not in ("mesh", "resource")}
            yield lock_key(row["mesh"], row["resource"]), ["snapshot", held]
    elif kind == "released":
        yield lock_key(entry.mesh, entry.ref), [kind, body["owner"], body["token"], body["boot_ns"]]
    else:
        grant = [body[name] for name in _GRANT]
        yield lock_key(entry.mesh, entry.ref), [kind, *grant, *[body.get(name) for name in _FORMER]]


class LockAuditor(Auditor):
    """The replay of one resource."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._resource = key.partition("\x1f")[2]
        self._row: LockRow | None = None
        self._highest = 0
        self._runs = list(reversed(line.runs))
        #: coordinate -> the token of its last fenced write
        self._written: dict[str, int] = {}

    def take(self, step: Step) -> Iterator[Finding]:
        kind = step.part[0]
        if step.is_lost:
            if kind in ("acquired", "taken_over"):
                yield from self._grow(step, step.part[2])
            return
        self._start_runs(step)
        if kind == "snapshot":
            yield from self._compare(step, step.part[1])
        elif kind == "fence":
            yield from self._fence(step)
        elif kind == "released":
            yield from self._release(step)
        elif kind == "renewed":
            yield from self._renew(step)
        else:
            yield from self._grant(step, is_take_over=kind == "taken_over")

    def _start_runs(self, step: Step) -> None:
        while self._runs and self._runs[-1][:2] < (step.depth, step.seq):
            run = self._runs.pop()
            if self._row is not None:
                raised = replace(self._row, token=self._row.token + run.token_leap)
                self._row = lease.reopen(raised, run.boot_ns)

    def _grow(self, step: Step, token: int) -> Iterator[Finding]:
        if token <= self._highest:
            detail = f"token {token} was granted after {self._highest}"
            yield self.found("token_not_growing", step, self._resource, detail)
        self._highest = max(self._highest, token)

    def _grant(self, step: Step, *, is_take_over: bool) -> Iterator[Finding]:
        owner, token, lease_ms, granted_ns, deadline_ns = step.part[1:6]
        yield from self._grow(step, token)
        outcome = lease.acquire(self._row, self._resource, owner, lease_ms, granted_ns, 0)
        granted = LockRow(self._resource, owner, token, lease_ms, deadline_ns)
        if isinstance(outcome, Denied):
            holder = self._row.owner if self._row is not None else ""
            yield self.found("lease_overlap", step, self._resource, f"{owner} got it while {holder} held it")
        elif outcome.row != granted:
            yield self._wrong(step, f"granted as {granted}, the rules say {outcome.row}")
        elif outcome.took_over != is_take_over:
            yield self._wrong(step, "a take-over of nothing" if is_take_over else "a take-over that is not told")
        elif is_take_over and self._row is not None:
            former = (self._row.owner, self._row.token, self._row.deadline_boot_ns)
            if tuple(step.part[6:]) != former:
                yield self._wrong(step, f"it tells of the former lease {step.part[6:]}, which was {former}")
        self._row = granted

    def _renew(self, step: Step) -> Iterator[Finding]:
        owner, token, lease_ms, granted_ns, deadline_ns = step.part[1:6]
        outcome = lease.renew(self._row, owner, token, lease_ms, granted_ns, 0)
        if isinstance(outcome, Denied):
            yield self._wrong(step, f"renewed by {owner} with token {token}, which is {outcome.code}")
        self._row = LockRow(self._resource, owner, token, lease_ms, deadline_ns)

    def _release(self, step: Step) -> Iterator[Finding]:
        owner, token, boot_ns = step.part[1:4]
        outcome = lease.release(self._row, owner, token, boot_ns)
        if isinstance(outcome, Denied):
            yield self._wrong(step, f"released by {owner} with token {token}, which is {outcome.code}")
        if self._row is not None:
            self._row = replace(self._row, is_released=True)

    def _fence(self, step: Step) -> Iterator[Finding]:
        _kind, id_, author, token, address, is_strict = step.part
        row = self._row
        if row is None or row.is_released or (row.token, row.owner) != (token, author):
            yield self.found("fence_violated", step, id_, f"{author} wrote under {self._resource!r} with token {token}")
        elif is_strict and self._written.get(address) == token:
            yield self.found("fence_violated", step, id_, f"a second write of {address} under token {token}")
        self._written[address] = token

    def _compare(self, step: Step, held: dict[str, Any]) -> Iterator[Finding]:
        told = LockRow(self._resource, **held)
        if step.seq != self.line.base_seq and told != self._row:
            detail = f"the snapshot says {told}, its history {self._row}"
            yield self.found("snapshot_disagrees", step, self._resource, detail)
        self._row, self._highest = told, max(self._highest, told.token)

    def _wrong(self, step: Step, detail: str) -> Finding:
        return self.found("lock_record_wrong", step, self._resource, detail)


RULE = Rule("locks", TYPES, _scatter, LockAuditor, sees_lost=True)
