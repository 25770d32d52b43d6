"""Waiters for locks and their queues: a request waits behind earlier ones that conflict or belong to its session.

A waiter stands in the queue of each name it asks for. The event loop adds and removes waiters; the writer's thread
only reads the queues while it decides. That thread marks a waiter as served, and a rollback takes the mark back, so a
decision counts exactly if its rows stay. ServingOrder visits the waiters that a change may have unblocked. It stops at
the first ones that block all others, so a release costs the same with ten waiters and with ten thousand.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import TypeVar

from posthouse.model.lease import LeaseRequest
from posthouse.model.lock_scope import Asked, Claim, Scope, covers, keeps_order, overlaps, range_below, trees_above
from posthouse.relay.wire.lock_operations import Acquire, LockAnswer, OnLockAnswer

#: mesh and resource
Key = tuple[str, str]
#: node and session
Holder = tuple[str, str]
K = TypeVar("K", bound=Hashable)


class Waiter:
    """A caller that waits for a lock, or for several at once."""

    __slots__ = (
        "_on_answer",
        "claims",
        "holder",
        "is_answered",
        "is_gone",
        "is_served",
        "is_withdrawn",
        "lease_request",
        "request",
        "since_boot_ns",
        "ticket",
        "timeout",
    )

    def __init__(
        self,
        ticket: int,
        owner: str,
        request: Acquire,
        since_boot_ns: int,
        on_answer: OnLockAnswer,
        is_gone: Callable[[], bool],
    ) -> None:
        self.ticket = ticket
        self.holder: Holder = (owner, request.session)
        self.request = request
        self.lease_request: LeaseRequest = request.lease_request(owner)
        #: the names and modes that this waiter asks for
        self.claims: tuple[Asked, ...] = self.lease_request.claims
        self.since_boot_ns = since_boot_ns
        #: returns True once the caller has disconnected; also called on the writer's thread
        self.is_gone = is_gone
        #: set before the waiter's final check: from then on only that check may serve it
        self.is_withdrawn = False
        #: a transaction has decided about it; set and read on the writer's thread
        self.is_served = False
        self.is_answered = False
        #: ends the wait
        self.timeout: asyncio.TimerHandle | None = None
        self._on_answer = on_answer

    @property
    def may_be_served(self) -> bool:
        """Whether a transaction may grant the lock to this waiter."""
        return not self.is_served and not self.is_withdrawn and not self.is_gone() and not self.is_answered

    def answer(self, answer: LockAnswer | None) -> None:
        """Call the callback, once; with None if the caller is gone."""
        if not self.is_answered:
            self.is_answered = True
            self._on_answer(answer, None)


class WaitQueue:
    """The waiters that ask for one name, in order."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.waiters: dict[int, Waiter] = {}
        #: those that do not share
        self.exclusive: dict[int, Waiter] = {}
        #: how many of them each holder has
        self.holders: dict[Holder, int] = {}

    def add(self, waiter: Waiter) -> None:
        """Add a waiter at the end."""
        self.waiters[waiter.ticket] = waiter
        _count(self.holders, waiter.holder, 1)
        if not waiter.claims[0].is_shared:
            self.exclusive[waiter.ticket] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter."""
        del self.waiters[waiter.ticket]
        self.exclusive.pop(waiter.ticket, None)
        _count(self.holders, waiter.holder, -1)

    def rivals(self, claim: Asked, ticket: int) -> dict[int, Waiter]:
        """Return the waiters, in order, that a claim may have to wait behind; `ticket` is its own place, if any."""
        is_only_one = self.holders.get((claim.owner, claim.session), 0) <= (ticket in self.waiters)
        return self.exclusive if claim.is_shared and is_only_one else self.waiters


def _count(counts: dict[K, int], key: K, change: int) -> None:
    """Change a count, and remove it when it becomes 0. A Counter costs several times as much."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]


class WaitQueues:
    """The queues of all locks."""

    def __init__(self, max_per_lock: int, max_in_all: int) -> None:
        self._max_per_lock = max_per_lock
        self._max_in_all = max_in_all
        self._gate = threading.Lock()
        self._queues: dict[Key, WaitQueue] = {}
        #: mesh -> names that have a queue, sorted: what a tree covers is a range
        self._names: dict[str, list[str]] = {}
        #: mesh -> waiters that ask for trees
        self._trees: dict[str, int] = {}
        #: how many waiters each session of a node has
        self._sessions: dict[Holder, int] = {}
        self._waiters: dict[int, Waiter] = {}
        self._tickets = count(1)

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(list(self._waiters.values()))

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter.ticket in self._waiters

    def limit_reached(self, request: Acquire) -> int | None:
        """Return the limit that one more waiter would exceed, or None."""
        if len(self._waiters) >= self._max_in_all:
            return self._max_in_all
        for name in (request.resource, *request.also):
            queue = self._queues.get((request.mesh, name))
            if queue is not None and len(queue.waiters) >= self._max_per_lock:
                return self._max_per_lock
        return None

    def add(
        self,
        owner: str,
        request: Acquire,
        since_boot_ns: int,
        on_answer: OnLockAnswer,
        is_gone: Callable[[], bool],
    ) -> Waiter:
        """Add a waiter at the end of the queues of its names."""
        waiter = Waiter(next(self._tickets), owner, request, since_boot_ns, on_answer, is_gone)
        mesh = request.mesh
        with self._gate:
            self._waiters[waiter.ticket] = waiter
            _count(self._sessions, waiter.holder, 1)
            if request.tree:
                _count(self._trees, mesh, 1)
            for claim in waiter.claims:
                queue = self._queues.get((mesh, claim.resource))
                if queue is None:
                    queue = self._queues[mesh, claim.resource] = WaitQueue(claim.resource)
                    insort(self._names.setdefault(mesh, []), claim.resource)
                queue.add(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, and each queue that it leaves empty."""
        if waiter.timeout is not None:
            waiter.timeout.cancel()
        mesh = waiter.request.mesh
        with self._gate:
            if self._waiters.pop(waiter.ticket, None) is None:
                return
            if waiter.request.tree:
                _count(self._trees, mesh, -1)
            _count(self._sessions, waiter.holder, -1)
            for claim in waiter.claims:
                queue = self._queues[mesh, claim.resource]
                queue.remove(waiter)
                if not queue.waiters:
                    del self._queues[mesh, claim.resource]
                    self._drop_name(mesh, claim.resource)

    def _drop_name(self, mesh: str, resource: str) -> None:
        names = self._names[mesh]
        del names[bisect_left(names, resource)]
        if not names:
            del self._names[mesh]

    def waits_again(self, waiter: Waiter) -> bool:
        """Return True if the session of a waiter also waits for something else."""
        return self._sessions.get(waiter.holder, 0) > 1

    def waiting_for(self, mesh: str, scope: Scope) -> int:
        """Return how many requests that overlap a scope wait."""
        with self._gate:
            queues = self._overlapping(mesh, (scope,))
            return len({ticket for queue in queues for ticket, each in queue.waiters.items() if _asks(each, (scope,))})

    def has_waiters(self, mesh: str, scope: Scope) -> bool:
        """Return True if a request that overlaps a scope may be waiting."""
        if mesh not in self._names:
            return False
        with self._gate:
            return bool(self._overlapping(mesh, (scope,)))

    def next_place(self) -> int:
        """Return the ticket of a request that does not wait: it precedes all waiters that are added later."""
        return next(self._tickets)

    def earlier_waiter(self, mesh: str, claims: Sequence[Asked], before: int) -> Asked | None:
        """Return a claim of an earlier waiter that these claims have to wait for."""
        is_only_one = len(self._waiters) == 1 and before in self._waiters
        if is_only_one or mesh not in self._names:  # usual; a waiter that is added now submits its own unit of work
            return None
        with self._gate:
            for queue in self._overlapping(mesh, claims):
                for ticket, waiter in queue.rivals(claims[0], before).items():
                    if ticket >= before:
                        break
                    rival = _first_ordered(claims, waiter)
                    if rival is not None and waiter.may_be_served:
                        return rival
        return None

    def serving_order(self, mesh: str, scopes: Sequence[Scope]) -> ServingOrder | None:
        """Return the waiters that may be served after a change of these scopes, or None if there are none."""
        if mesh not in self._names:
            return None
        with self._gate:
            found = self._overlapping(mesh, scopes)
        return ServingOrder(found, scopes, self._gate) if found else None

    def _overlapping(self, mesh: str, scopes: Sequence[Scope]) -> list[WaitQueue]:
        """Return the queues whose waiters may overlap one of these scopes; the caller has the gate."""
        if len(scopes) == 1 and not scopes[0].is_tree and mesh not in self._trees:  # usual
            queue = self._queues.get((mesh, scopes[0].resource))
            return [] if queue is None else [queue]
        names: dict[str, None] = {}
        known = self._names.get(mesh, [])
        for scope in scopes:
            names[scope.resource] = None
            if mesh in self._trees:
                names.update(dict.fromkeys(trees_above(scope.resource)))
            if scope.is_tree:
                first, end = range_below(scope.resource)
                names.update(dict.fromkeys(known[bisect_left(known, first) : bisect_left(known, end)]))
        return [queue for name in names if (queue := self._queues.get((mesh, name))) is not None]


def _first_ordered(claims: Sequence[Asked], waiter: Waiter) -> Asked | None:
    for other in waiter.claims:
        for claim in claims:
            if keeps_order(claim, other):
                return other
    return None


def _asks(waiter: Waiter, scopes: Sequence[Scope]) -> bool:
    for claim in waiter.claims:
        for scope in scopes:
            if overlaps(claim, scope):
                return True
    return False


class ServingOrder:
    """The waiters that overlap some scopes, in order of arrival, without those that certainly stay blocked.

    The caller reports with `block` every claim that still waits or is held, and with `hold` every new grant. A name
    with exclusive claims of two holders is closed to all later waiters; with those of one holder, to all but that
    holder's. Waiters of a session that was granted something are always visited: they may have to be refused.
    """

    def __init__(self, queues: Sequence[WaitQueue], scopes: Sequence[Scope], gate: threading.Lock) -> None:
        self._scopes = scopes
        self._granted: set[Holder] = set()
        self._cursors = {queue.resource: _Cursor(queue, gate, self._granted) for queue in queues}

    def __iter__(self) -> Iterator[Waiter]:
        heap = [(waiter.ticket, cursor) for cursor in self._cursors.values() if (waiter := cursor.peek()) is not None]
        heapq.heapify(heap)
        last = 0
        while heap:
            ticket, cursor = heap[0]
            waiter = cursor.take(ticket)
            if waiter is not None and ticket > last and waiter.may_be_served and _asks(waiter, self._scopes):
                last = ticket  # a waiter for several names stands in several queues
                yield waiter
            following = cursor.peek()
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.ticket, cursor))

    def block(self, claims: Iterable[Claim]) -> None:
        """Note claims that later waiters have to respect."""
        for claim in claims:
            if claim.is_shared:
                continue
            cursor = self._cursors.get(claim.resource)
            if cursor is not None:
                cursor.exclusive.add((claim.owner, claim.session))
            if claim.is_tree:
                for each in self._cursors.values():
                    if covers(claim, each.queue.resource):
                        each.exclusive.add((claim.owner, claim.session))

    def hold(self, claims: Sequence[Claim]) -> None:
        """Note claims that were granted."""
        self._granted.update([(claim.owner, claim.session) for claim in claims])
        self.block(claims)


_CHUNK = 2  # waiters read at first, more each time: most passes end after two


class _Cursor:
    """The place of a ServingOrder in one queue."""

    def __init__(self, queue: WaitQueue, gate: threading.Lock, granted: set[Holder]) -> None:
        self.queue = queue
        #: holders of exclusive claims that cover the name
        self.exclusive: set[Holder] = set()
        self._granted = granted
        self._gate = gate
        self._passed: dict[Holder, int] = {}
        self._ahead: deque[Waiter] = deque()
        self._last = 0
        self._chunk = _CHUNK

    def __lt__(self, other: _Cursor) -> bool:  # ties in the heap: the same waiter in two queues
        return self.queue.resource < other.queue.resource

    def peek(self) -> Waiter | None:
        """Return the next waiter, or None if all others are blocked."""
        if self._is_closed():
            return None
        if not self._ahead:
            self._read()
        return self._ahead[0] if self._ahead else None

    def take(self, ticket: int) -> Waiter | None:
        """Pass the waiter that `peek` returned; return None if it is blocked."""
        waiter = self._ahead.popleft()
        _count(self._passed, waiter.holder, 1)
        self._last = ticket
        is_blocked = self.exclusive - {waiter.holder} and waiter.holder not in self._granted
        return None if is_blocked else waiter

    def _is_closed(self) -> bool:
        """Return True if every later waiter is certainly blocked."""
        if not self.exclusive:
            return False
        visited = self._granted | self.exclusive if len(self.exclusive) == 1 else self._granted
        return all(self.queue.holders.get(holder, 0) <= self._passed.get(holder, 0) for holder in visited)

    def _read(self) -> None:
        with self._gate:
            later = (waiter for ticket, waiter in self.queue.waiters.items() if ticket > self._last)
            self._ahead.extend(islice(later, self._chunk))
        self._chunk *= 4
