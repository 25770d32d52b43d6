"""A lock that sessions share, as a sequential object with time: which leases every answer allows, and until when.

A shared grant needs that every exclusive lease of another session is over, an exclusive one that every lease of another
session is; both need that the session itself holds nothing. As in locks_model, a lease ends at one moment of an
interval. A lease that is over stays in the store until a grant ends it, and a restore makes it active again, because a
renewal may be among the records that it lost. Where a restart or a restore leaves open if a lease is active, its
interval says so, and a lease of unknown outcome may have begun at any moment of its request: the model may accept too
much there, never too little. A restore or a lost answer keeps the token from the client: such a lease has token 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.faults.locks_linear import FOREVER
from tests.faults.locks_model import MS, Op, node_of


class Lease(NamedTuple):
    """What is known of a session's lease."""

    client: str
    token: int
    is_shared: bool
    lease_ms: int
    #: it ends at one moment of this interval
    low_ns: int
    high_ns: int


class Shared(NamedTuple):
    """What is known of a lock: the leases whose rows may be unreleased, one for each session."""

    #: no operation from now on took effect before this
    now_ns: int = 0
    #: no token up to this one may be granted again
    highest: int = 0
    leases: tuple[Lease, ...] = ()
    #: the leases that the last backup holds
    saved: tuple[Lease, ...] = ()

    def of(self, client: str) -> Lease | None:
        return next((lease for lease in self.leases if lease.client == client), None)

    def put(self, lease: Lease) -> Shared:
        """Replace the lease of a session."""
        others = self.without(lease.client).leases
        return self._replace(leases=tuple(sorted((*others, lease))))

    def without(self, client: str) -> Shared:
        return self._replace(leases=tuple([lease for lease in self.leases if lease.client != client]))


INITIAL = Shared()


def covers(one: Shared, other: Shared) -> bool:
    """Tell whether `one` leaves open everything that `other` does."""
    return (
        (one.highest, one.saved) == (other.highest, other.saved)
        and one.now_ns <= other.now_ns
        and [lease[:4] for lease in one.leases] == [lease[:4] for lease in other.leases]
        and all(a.low_ns <= b.low_ns and a.high_ns >= b.high_ns for a, b in zip(one.leases, other.leases, strict=True))
    )


def step(state: Shared, op: Op, high: int) -> Iterator[Shared]:
    """Yield the states after an operation that took effect by `high`, given its answer."""
    low = max(state.now_ns, op.called_ns)
    if low > high:
        return
    at = state._replace(now_ns=low)
    if op.kind == "restart":
        yield at._replace(leases=tuple([_reopened(lease, low, high) for lease in at.leases]))
    elif op.kind == "backup":
        yield at._replace(saved=at.leases)
    elif op.kind == "restore":
        yield at._replace(leases=tuple([_restored(lease, low, high) for lease in at.saved]))
    elif op.kind == "acquire":
        yield from _acquire(at, high, op)
    elif op.kind == "inspect":
        yield from _inspect(at, high, op)
    else:
        yield from _change(at, high, op)


def _end(high: int, lease_ms: int) -> int:
    return FOREVER if high >= FOREVER else high + lease_ms * MS


def _reopened(lease: Lease, low: int, high: int) -> Lease:
    """An active lease gets its full length again; one that was over stays over."""
    if lease.high_ns <= low:
        return lease
    is_active = lease.low_ns > high
    begins = low + lease.lease_ms * MS if is_active else lease.low_ns
    return lease._replace(low_ns=begins, high_ns=_end(high, lease.lease_ms))


def _restored(lease: Lease, low: int, high: int) -> Lease:
    """A lease of the backup gets its full length again, under a token that its holder does not know."""
    return lease._replace(token=0, low_ns=low, high_ns=_end(high, lease.lease_ms))


def _conflicts(lease: Lease, op: Op) -> bool:
    return lease.client != op.client and not (lease.is_shared and op.is_shared)


def _acquire(at: Shared, high: int, op: Op) -> Iterator[Shared]:
    own = at.of(op.client)
    if op.answer is None or op.code is None:
        granted = _grant(at, high, op)
        if granted is not None:
            yield granted
    elif op.code == "held_by_self":
        yield from _active(at, [] if own is None else [own])
    elif op.answer.get("is_waiting"):
        yield at
    else:
        yield from _active(at, [lease for lease in at.leases if _conflicts(lease, op)])


def _grant(at: Shared, high: int, op: Op) -> Shared | None:
    told = 0 if op.answer is None else op.answer["token"]
    ended = [lease for lease in at.leases if lease.client == op.client or _conflicts(lease, op)]
    now = max([at.now_ns, *(lease.low_ns for lease in ended)])
    if now > high or (told and told <= at.highest):
        return None
    kept = [lease for lease in at.leases if lease not in ended and lease.high_ns > now]
    begins, ends = (op.called_ns, op.returned_ns) if op.answer is None else (now, high)
    lease = Lease(op.client, told, op.is_shared, op.lease_ms, begins + op.lease_ms * MS, _end(ends, op.lease_ms))
    return at._replace(now_ns=now, highest=max(at.highest, told), leases=tuple(kept)).put(lease)


def _active(at: Shared, candidates: list[Lease]) -> Iterator[Shared]:
    """Yield the states in which one of these leases is active now."""
    if any(lease.low_ns > at.now_ns for lease in candidates):
        yield at
        return
    for lease in candidates:
        if lease.high_ns > at.now_ns:
            yield at.put(lease._replace(low_ns=at.now_ns + 1))


def _inspect(at: Shared, high: int, op: Op) -> Iterator[Shared]:
    if op.answer is None:
        return
    if op.answer["held"]:
        yield from _active(at, [lease for lease in at.leases if node_of(lease.client) == op.answer["owner"]])
        return
    now = max([at.now_ns, *(lease.low_ns for lease in at.leases)])
    if now <= high:
        yield at._replace(now_ns=now)


def _change(at: Shared, high: int, op: Op) -> Iterator[Shared]:
    """Renew or release: refused unless the session has an active lease with this token."""
    own = at.of(op.client)
    is_its = own is not None and own.token == op.token
    if op.answer is None or op.code is None:
        if own is not None and is_its and own.high_ns > at.now_ns:
            yield _renewed(at, high, op, own) if op.kind == "renew" else at.without(op.client)
    elif own is None or not is_its:
        yield at
    elif own.low_ns <= high:
        now = max(at.now_ns, own.low_ns)
        yield at._replace(now_ns=now).put(own._replace(high_ns=min(own.high_ns, high)))


def _renewed(at: Shared, high: int, op: Op, own: Lease) -> Shared:
    return at.put(
        own._replace(lease_ms=op.lease_ms, low_ns=at.now_ns + op.lease_ms * MS, high_ns=_end(high, op.lease_ms))
    )
