"""One lock as a sequential object with time: what every answer says about who held it, and when.

Each operation takes effect at one moment between its call and its answer, on the clock that all processes of a machine
share. When a lease ends is known up to an interval: it counts from some moment of its grant. A state is what is
known after the operations so far; a step keeps what agrees with the answer and narrows the intervals.
A client is a session of a node, written node#session. A lock may have two names that exclude each other always: a plain
one, and a tree above it. Each name has a row of its own, and a grant under one name ends the lease of the other.
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
    #: None for an unknown outcome, which is over by `returned_ns`; else the answer, with `code` for a refusal
    answer: dict[str, Any] | None
    lease_ms: int = 0
    token: int = 0
    request_id: str | None = None
    #: the name under which it asked
    resource: str = ""
    is_shared: bool = False

    def __hash__(self) -> int:
        return hash((self.client, self.kind, self.called_ns))

    @property
    def node(self) -> str:
        """The node of the client."""
        return node_of(self.client)

    @property
    def is_certain(self) -> bool:
        """Whether it was answered."""
        return self.answer is not None

    @property
    def effect(self) -> tuple[str, str, int, int, str | None, str, bool]:
        """What it asked for."""
        return self.client, self.kind, self.lease_ms, self.token, self.request_id, self.resource, self.is_shared

    @property
    def code(self) -> str | None:
        """The code of a refusal."""
        return None if self.answer is None else self.answer.get("code")


def node_of(client: str) -> str:
    """Return the node of a session."""
    return client.partition("#")[0]


class State(NamedTuple):
    """What is known of a lock."""

    #: no operation from now on took effect before this
    now_ns: int = 0
    owner: str = ""
    #: of the last grant; if it is not known, a number below it
    token: int = 0
    is_token_known: bool = True
    #: no token up to this one may be granted again
    highest: int = 0
    is_released: bool = True
    lease_ms: int = 0
    #: its lease ends at one moment of this interval
    ends_low_ns: int = 0
    ends_high_ns: int = 0
    #: (owner, request id, token) of every grant under a request id; 0 if the token is not known
    requests: frozenset[tuple[str, str, int]] = frozenset()
    #: the name of the last grant, and all names that were granted
    resource: str = ""
    names: frozenset[str] = frozenset()
    #: the state that the last backup holds
    saved: State | None = None


INITIAL = State()


def covers(one: State, other: State) -> bool:
    """Tell whether `one` leaves open everything that `other` does: the same facts, known less narrowly."""
    return (
        (one.token, one.is_token_known, one.highest) == (other.token, other.is_token_known, other.highest)
        and one.saved == other.saved
        and one.now_ns <= other.now_ns
        and one.ends_low_ns <= other.ends_low_ns
        and one.ends_high_ns >= other.ends_high_ns
        and (one.owner, one.is_released, one.lease_ms) == (other.owner, other.is_released, other.lease_ms)
        and one.requests == other.requests
        and (one.resource, one.names) == (other.resource, other.names)
    )


def step(state: State, op: Op, high: int) -> Iterator[State]:
    """Yield the states after an operation that took effect by `high`, given its answer."""
    low = max(state.now_ns, op.called_ns)
    if low > high:
        return
    at = state._replace(now_ns=low)
    if op.kind == "restart":
        yield from _restart(at, high)
    elif op.kind == "backup":
        yield at._replace(saved=at._replace(saved=None))
    elif op.kind == "restore":
        yield _restore(at, high)
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


def _restart(at: State, high: int) -> Iterator[State]:
    """An active lease gets its full length again; one that was over stays over."""
    if at.is_released:
        yield at
        return
    if (held := _held(at)) is not None:
        yield _leased(held, high, at.lease_ms)
    if (over := _over(at, high)) is not None:
        yield over


def _restore(at: State, high: int) -> State:
    """The lock is as the backup has it; an unreleased lease has a token that was never granted."""
    assert at.saved is not None
    back = at.saved._replace(now_ns=at.now_ns, highest=at.highest, saved=at.saved)
    if back.is_released:
        return back
    return _leased(back._replace(token=at.highest, is_token_known=False), high, back.lease_ms)


def _has_token(at: State, token: int) -> bool:
    return token == at.token if at.is_token_known else token > at.token


def _learn(at: State, token: int) -> State:
    return at._replace(token=token, is_token_known=True, highest=max(at.highest, token))


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
            is_its_grant = told is not None and _has_token(at, told) and bool(known & {0, told})
            if held is not None and at.owner == op.client and told is not None and is_its_grant:
                yield _learn(held, told)
        elif over is not None and (told is None or told > at.highest):
            yield _grant(over, high, op, told)
    elif op.code == "request_spent":
        if known and (0 in known or not at.is_token_known or at.token not in known):
            yield at
        elif known and over is not None:
            yield over
    elif held is not None and not known and (op.code == "held_by_self") == (at.owner == op.client):
        yield held


def _grant(over: State, high: int, op: Op, told: int | None) -> State:
    requests = over.requests if op.request_id is None else over.requests | {(op.client, op.request_id, told or 0)}
    granted = over._replace(
        owner=op.client,
        token=over.highest,
        is_token_known=False,
        requests=requests,
        resource=op.resource,
        names=over.names | {op.resource},
    )
    return _leased(granted if told is None else _learn(granted, told), high, op.lease_ms)


def _inspect(at: State, high: int, op: Op) -> Iterator[State]:
    if op.answer is None:
        return
    is_shown = op.answer["token"] != 0 or node_of(at.owner) == op.node  # other nodes than the holder's see 0
    is_its_last = op.answer["held"] or op.resource == at.resource  # a free name has its own last token
    if is_shown and is_its_last:
        if not _has_token(at, op.answer["token"]):
            return
        at = _learn(at, op.answer["token"])
    if op.answer["held"]:
        held = _held(at)
        if held is not None and node_of(held.owner) == op.answer["owner"]:
            yield held
    elif (over := _over(at, high)) is not None:
        yield over


def _change(at: State, high: int, op: Op) -> Iterator[State]:
    """Renew or release; a token that is not known may be the one that the client names, or a later one."""
    if op.resource != at.resource:  # the grant under the other name has ended what there was under this one
        if op.code == ("not_holder" if op.resource in at.names else "unknown_resource"):
            yield at
        return
    if at.is_token_known or op.token <= at.token:
        yield from _change_known(at, high, op)
    else:
        yield from _change_known(_learn(at, op.token), high, op)
        yield from _change_known(at._replace(token=op.token), high, op)


def _change_known(at: State, high: int, op: Op) -> Iterator[State]:
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
    if not at.owner:
        return "unknown_resource"
    is_later = at.is_token_known and op.token > at.token
    if at.owner != op.client or at.is_released or is_later:
        return "not_holder"
    return None if at.is_token_known and op.token == at.token else "stale_token"


def changed(op: Op, **answer: Any) -> Op:
    """Return an operation with another answer: for planting violations."""
    assert op.answer is not None
    return replace(op, answer=op.answer | answer)
