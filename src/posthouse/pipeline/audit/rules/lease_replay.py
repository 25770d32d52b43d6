"""Locks: replay the records with the relay's own lease rules, which must allow each of them.

Locks overlap only if the first part of their names is the same, so the names that share it are replayed together.
Tokens grow strictly, even compared with records that a restore dropped, and no store grants a token twice, not even for
different locks: each store draws its tokens from one counter, which starts at the clock. Boot times are comparable only
within a lock run; the start of a run reopens leases, exactly as in the store. A fenced event is valid only if its token
is that of an exclusive lease of its author that covers the resource.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from posthouse.model import lease
from posthouse.model.lease import Denied, LeaseRequest, LockRow
from posthouse.model.lease_table import LeaseTable, lease_from_record
from posthouse.model.lock_scope import Asked
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

_ENDS = frozenset({"lock.released", "lock.expired", "lock.broken"})
TYPES = frozenset({"lock.acquired", "lock.taken_over", "lock.renewed", "journal.snapshot", "event.accepted"}) | _ENDS


class FormerLease(msgspec.Struct, array_like=True):
    """The lease that a take-over ended, as the record states it."""

    owner: str | None
    session: str
    token: int | None
    deadline_boot_ns: int | None


class Grant(msgspec.Struct, array_like=True, tag="grant"):
    """A lease was `acquired`, `taken_over` or `renewed`."""

    kind: str
    row: LockRow
    granted_boot_ns: int
    former: FormerLease


class End(msgspec.Struct, array_like=True, tag="end"):
    """A lease was `released` or `broken`, or had `expired` when another grant overlapped it."""

    kind: str
    resource: str
    owner: str
    session: str
    token: int
    boot_ns: int


class SnapshotLock(msgspec.Struct, array_like=True, tag="snapshot"):
    """A snapshot states this lease."""

    row: LockRow


class FencedWrite(msgspec.Struct, array_like=True, tag="fence"):
    """An event was accepted under the lock."""

    event_id: str
    resource: str
    author: str
    token: int
    #: The addressable coordinate that the event writes.
    address: str
    is_strict: bool


class MirroredWrite(msgspec.Struct, array_like=True, tag="mirrored"):
    """A fenced event came from another relay, which has checked it against its own locks."""

    event_id: str


def lock_key(mesh: str, resource: str) -> str:
    """Return the key under which a resource is replayed; resources that may overlap have the same key."""
    return f"{mesh}\x1f{resource.partition('/')[0]}"


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    body, kind = entry.body, entry.type.partition(".")[2]
    if entry.type == "event.accepted":
        if "mirrored_by" in body and "fence" in body:
            yield lock_key(entry.mesh, body["fence"]), MirroredWrite(entry.ref)
        return
    if entry.type == "journal.snapshot":
        for held in body["state"].get("locks", ()):
            row = LockRow(**{name: value for name, value in held.items() if name != "mesh"})
            yield lock_key(held["mesh"], row.resource), SnapshotLock(row)
        return
    key, session = lock_key(entry.mesh, entry.ref), body.get("session", "")
    if entry.type in _ENDS:
        yield key, End(kind, entry.ref, body["owner"], session, body["token"], body["boot_ns"])
        return
    former = FormerLease(
        body.get("former_owner"),
        body.get("former_session", ""),
        body.get("former_token"),
        body.get("former_deadline_boot_ns"),
    )
    yield key, Grant(kind, lease_from_record(entry.ref, body), body["granted_boot_ns"], former)


class LockAuditor(Auditor):
    """Replay the locks of resources that may overlap each other."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._leases = LeaseTable()
        #: Resource -> its highest token.
        self._highest: dict[str, int] = {}
        #: The lock runs that have not started yet, the next one last.
        self._runs = list(reversed(lineage.lock_runs))
        #: Resource and coordinate -> the token of the last fenced write.
        self._written: dict[tuple[str, str], int] = {}
        #: The last mirrored event: its FencedWrite, the next step, is not checked.
        self._mirrored = ""

    def add_step(self, step: Step) -> Iterator[Finding]:
        fact = step.fact
        if step.is_lost:
            if isinstance(fact, Grant) and fact.kind != "renewed":
                yield from self._raise_token(step, fact.row)
            return
        self._start_runs(step)
        match fact:
            case SnapshotLock(row):
                yield from self._compare(step, row)
            case MirroredWrite(event_id):
                self._mirrored = event_id
            case FencedWrite():
                if fact.event_id != self._mirrored:
                    yield from self._check_fence(step, fact)
            case End():
                yield from self._end(step, fact)
            case Grant(kind="renewed"):
                yield from self._renew(step, fact)
            case Grant():
                yield from self._grant(step, fact)

    def _start_runs(self, step: Step) -> None:
        while self._runs and self._runs[-1][:2] < (step.depth, step.seq):
            run = self._runs.pop()
            for row in self._leases:
                raised = replace(row, token=row.token + run.token_leap)
                self._leases.put(lease.reopen(raised, run.boot_ns, run.over_before_ns, run.void_token))

    def _raise_token(self, step: Step, row: LockRow) -> Iterator[Finding]:
        highest = self._highest.get(row.resource, 0)
        if row.token <= highest:
            detail = f"token {row.token} was granted after {highest}"
            yield self.finding("token_not_growing", step, row.resource, detail)
        self._highest[row.resource] = max(highest, row.token)

    def _grant(self, step: Step, grant: Grant) -> Iterator[Finding]:
        row = grant.row
        yield from self._raise_token(step, row)
        asked = Asked(row.resource, row.owner, row.session, row.is_tree, row.is_shared)
        request, overlaps = LeaseRequest((asked,), row.lease_ms), self._leases.overlapping((asked,))
        outcome = lease.acquire(request, overlaps, grant.granted_boot_ns, 0, lambda: row.token)
        if isinstance(outcome, Denied):
            detail = f"{row.owner} acquired it while {outcome.fields.get('holder', row.owner)} held it"
            yield self.finding("lease_overlap", step, row.resource, detail)
        elif outcome.row != row:
            yield self._wrong(step, row.resource, f"the record grants {row}, the lease rules {outcome.row}")
        else:
            yield from self._check_former(step, grant, outcome.expired)
        for each in overlaps:
            if each.resource == row.resource and not (each.is_shared and row.is_shared):
                self._leases.end(each.resource, each.owner, each.session)
        self._leases.grant(row)

    def _check_former(self, step: Step, grant: Grant, expired: tuple[LockRow, ...]) -> Iterator[Finding]:
        """Check that a take-over names the expired lease of the same name; other leases end in separate records."""
        resource, is_take_over = grant.row.resource, grant.kind == "taken_over"
        former = next((row for row in expired if row.resource == resource), None)
        if former is None or not is_take_over:
            if is_take_over or expired:
                detail = "a take-over without a former lease" if is_take_over else "a take-over recorded as acquired"
                yield self._wrong(step, resource, detail)
            return
        expected = FormerLease(former.owner, former.session, former.token, former.deadline_boot_ns)
        if grant.former != expected:
            yield self._wrong(step, resource, f"the record states {grant.former}, the history {expected}")
        self._leases.end(resource, former.owner, former.session)

    def _renew(self, step: Step, grant: Grant) -> Iterator[Finding]:
        row = grant.row
        found = self._leases.find(row.resource, row.owner, row.session)
        outcome = lease.renew(found, row.owner, row.token, row.lease_ms, grant.granted_boot_ns, 0, row.session)
        if isinstance(outcome, Denied):
            detail = f"{row.owner} renewed with token {row.token}, which the lease rules deny: {outcome.code}"
            yield self._wrong(step, row.resource, detail)
        self._leases.put(row)

    def _end(self, step: Step, end: End) -> Iterator[Finding]:
        row = self._leases.find(end.resource, end.owner, end.session)
        detail = f"the lease of {end.owner} with token {end.token} {end.kind}, which the lease rules deny"
        if end.kind == "released":
            outcome = lease.release(row, end.owner, end.token, end.boot_ns, end.session)
            is_wrong = isinstance(outcome, Denied)
        else:
            is_wrong = row is None or row.is_released or row.token != end.token
            is_wrong = is_wrong or (end.kind == "expired" and row is not None and lease.is_active(row, end.boot_ns))
        if is_wrong:
            yield self._wrong(step, end.resource, detail)
        self._leases.end(end.resource, end.owner, end.session)

    def _check_fence(self, step: Step, write: FencedWrite) -> Iterator[Finding]:
        covering = self._leases.covering(write.resource)
        key = (write.resource, write.address)
        is_held = any(
            (row.token, row.owner) == (write.token, write.author) and not row.is_shared and not row.is_released
            for row in covering
        )
        if not is_held:
            detail = f"{write.author} wrote under {write.resource!r} with token {write.token}"
            yield self.finding("fence_violated", step, write.event_id, detail)
        elif write.is_strict and self._written.get(key) == write.token:
            detail = f"a second write of {write.address} under token {write.token}"
            yield self.finding("fence_violated", step, write.event_id, detail)
        self._written[key] = write.token

    def _compare(self, step: Step, stated: LockRow) -> Iterator[Finding]:
        resource, known = stated.resource, self._leases.find(stated.resource, stated.owner, stated.session)
        if step.seq != self.lineage.base_seq and stated != known:
            detail = f"the snapshot states {stated}, the history {known}"
            yield self.finding("snapshot_disagrees", step, resource, detail)
        if not stated.is_shared:
            self._leases.clear(resource)
        self._leases.put(stated)
        self._highest[resource] = max(self._highest.get(resource, 0), stated.token)

    def _wrong(self, step: Step, resource: str, detail: str) -> Finding:
        return self.finding("lock_record_wrong", step, resource, detail)


class TokenTaken(msgspec.Struct, array_like=True):
    """A grant took a token."""

    token: int
    resource: str
    #: The same for the locks of one grant, which share its token.
    grant: str


def _by_token(entry: Entry) -> Iterator[KeyedFact]:
    body = entry.body
    grant = f"{body['owner']} {body.get('session', '')} {body['granted_boot_ns']} {body['run_id']}"
    yield str(body["token"]), TokenTaken(body["token"], entry.ref, grant)


class TokenAuditor(Auditor):
    """Check all grants of one token in one store."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._granted: TokenTaken | None = None
        #: The runs whose tokens came from one counter per store.
        self._runs = [run for run in lineage.lock_runs if run.token_counter >= 0]

    def add_step(self, step: Step) -> Iterator[Finding]:
        token, resource, former = step.fact.token, step.fact.resource, self._granted
        runs = [run for run in self._runs if run[:2] < (step.depth, step.seq)]
        if runs and former is not None and (former.grant != step.fact.grant or former.resource == resource):
            detail = f"token {token} was granted before, for {former.resource!r}"
            yield self.finding("token_granted_twice", step, resource, detail)
        elif runs and not step.is_lost and token <= runs[-1].token_counter:
            detail = f"token {token} was granted by a run whose counter began at {runs[-1].token_counter}"
            yield self.finding("token_not_growing", step, resource, detail)
        self._granted = step.fact


_GRANTS = frozenset({"lock.acquired", "lock.taken_over"})
TOKENS = Rule("tokens", _GRANTS, TokenTaken, _by_token, TokenAuditor, sees_lost=True)
RULE = Rule(
    "locks", TYPES, Grant | End | SnapshotLock | MirroredWrite | FencedWrite, _scatter, LockAuditor, sees_lost=True
)
