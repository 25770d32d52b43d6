"""One lock as a sequential object with time: what every answer says about who held it, and when.

Each operation takes effect at one moment between its call and its answer, on the clock that all processes of a machine
share. When a lease ends is known up to an interval: it counts from some moment of its grant. A state is what is
known after the operations so far; a step keeps what agrees with the answer and narrows the intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.faults.locks_linear import FOREVER

MS = 1_000_000


@dataclass(frozen=True)
class Op:
    """One recorded operation on one resource."""

    client: str
    kind: str
    called_ns: int
    returned_ns: int
    #: None when nobody knows the outcome, which is over by `returned_ns`; else the answer, with `code` for a refusal
    answer: dict[str, Any] | None
    lease_ms: int = 0
    token: int = 0
    request_id: str | None = None

    def __hash__(self) -> int:
        return hash((self.client, self.kind, self.called_ns))

    @property
    def is_certain(self) -> bool:
        """Whether it was answered."""
        return self.answer is not None

    @property
    def code(self) -> str | None:
        """The code of a refusal."""
        return None if self.answer is None else self.answer.get("code")


class State(NamedTuple):
    """What is known of a lock."""

    #: no operation from now on took effect before this
    now_ns: int = 0
    owner: str = ""
    token: int = 0
    is_released: bool = True
    lease_ms: int = 0
    #: its lease ends at one moment of this interval
    ends_low_ns: int = 0
    ends_high_ns: int = 0
    #: (owner, request id, token) of every grant under a request id
    requests: frozenset[tuple[str, str, int]] = frozenset()


INITIAL = State()


def covers(one: State, other: State) -> bool:
    """Tell whether `one` leaves open everything that `other` does: the same facts, known less narrowly."""
    return (
        one.token == other.token
        and one.now_ns <= other.now_ns
        and one.ends_low_ns <= other.ends_low_ns
        and one.ends_high_ns >= other.ends_high_ns
        and (one.owner, one.is_released, one.lease_ms) == (other.owner, other.is_released, other.lease_ms)
        and one.requests == other.requests
    )


def step(state: State, op: Op, high: int) -> Iterator[State]:
    """Yield the states after an operation that took effect by `high`, given its answer."""
    low = max(state.now_ns, op.called_ns)
    if low > high:
        return
    at = state._replace(now_ns=low)
    if op.kind == "restart":
        yield _leased(at, high, at.lease_ms) if not at.is_released else at
    elif op.kind == "acquire":
        yield from _acquire(at, high, op)
    elif op.kind == "inspect":
        yield from _inspect(at, high, op)
    else:
        yield from _change(at, high, op)


def _held(at: State) -> State | None:
    """Return the state in which the lease is active at this moment, if that may be."""
    if at.is_released or at.now_ns >= at.ends_high_ns:
        return None
    return at._replace(ends_low_ns=max(at.ends_low_ns, at.now_ns + 1))


def _over(at: State, high: int) -> State | None:
    """Return the state in which nobody holds the lock, at this moment or one up to `high`, if that may be."""
    if at.is_released:
        return at
    if high < at.ends_low_ns:
        return None
    return at._replace(now_ns=max(at.now_ns, at.ends_low_ns), ends_high_ns=min(at.ends_high_ns, high))


def _leased(at: State, high: int, lease_ms: int) -> State:
    ends_high = FOREVER if high >= FOREVER else high + lease_ms * MS
    return at._replace(
        is_released=False, lease_ms=lease_ms, ends_low_ns=at.now_ns + lease_ms * MS, ends_high_ns=ends_high
    )


def _acquire(at: State, high: int, op: Op) -> Iterator[State]:
    held, over = _held(at), _over(at, high)
    known = {token for owner, request, token in at.requests if (owner, request) == (op.client, op.request_id)}
    if op.answer is None or op.code is None:
        told = None if op.answer is None else op.answer["token"]
        if known:
            if held is not None and at.owner == op.client and told == at.token and told in known:
                yield held
        elif over is not None and told in (None, at.token + 1):
            yield _grant(over, high, op)
    elif op.code == "request_spent":
        if known and at.token not in known:
            yield at
        elif known and over is not None:
            yield over
    elif held is not None and not known and (op.code == "held_by_self") == (at.owner == op.client):
        yield held


def _grant(over: State, high: int, op: Op) -> State:
    token = over.token + 1
    requests = over.requests if op.request_id is None else over.requests | {(op.client, op.request_id, token)}
    return _leased(over._replace(owner=op.client, token=token, requests=requests), high, op.lease_ms)


def _inspect(at: State, high: int, op: Op) -> Iterator[State]:
    if op.answer is None or op.answer["token"] != at.token:
        return
    if op.answer["held"]:
        held = _held(at)
        if held is not None and held.owner == op.answer["owner"]:
            yield held
    elif (over := _over(at, high)) is not None:
        yield over


def _change(at: State, high: int, op: Op) -> Iterator[State]:
    """Renew or release."""
    expected = _why_not(at, op)
    held, over = _held(at), _over(at, high)
    if op.answer is None or op.code is None:
        if expected is None and held is not None:
            yield _leased(held, high, op.lease_ms) if op.kind == "renew" else held._replace(is_released=True)
    elif op.code == expected:
        yield at
    elif op.code == "lease_expired" and expected is None and over is not None:
        yield over


def _why_not(at: State, op: Op) -> str | None:
    if at.token == 0:
        return "unknown_resource"
    if at.owner != op.client or at.is_released or op.token > at.token:
        return "not_holder"
    return "stale_token" if op.token < at.token else None


def changed(op: Op, **answer: Any) -> Op:
    """Return an operation with another answer: for planting violations."""
    assert op.answer is not None
    return replace(op, answer=op.answer | answer)
