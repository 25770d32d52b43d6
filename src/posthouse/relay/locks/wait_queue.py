"""Waiters for locks and their queues, first come first served.

The event loop adds and removes waiters. The writer's thread only looks for the next one while it decides: a
transaction may be rolled back and run again, so a decision counts once the loop has seen the commit. That a waiter
was served is written in the lock's row (`last_ticket`), so a rollback undoes that as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count

from posthouse.relay.wire.lock_operations import Acquire, LockAnswer, OnLockAnswer

#: mesh and resource
Key = tuple[str, str]


class Waiter:
    """A caller that waits for a lock."""

    __slots__ = (
        "_on_answer",
        "is_answered",
        "is_gone",
        "is_withdrawn",
        "owner",
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
        self.owner = owner
        self.request = request
        self.since_boot_ns = since_boot_ns
        #: returns True once the caller has disconnected; also called on the writer's thread
        self.is_gone = is_gone
        #: set before the waiter's final check: from then on only that check may serve it
        self.is_withdrawn = False
        self.is_answered = False
        #: ends the wait
        self.timeout: asyncio.TimerHandle | None = None
        self._on_answer = on_answer

    @property
    def may_be_served(self) -> bool:
        """Whether a transaction may grant the lock to this waiter."""
        return not self.is_withdrawn and not self.is_gone() and not self.is_answered

    def answer(self, answer: LockAnswer | None) -> None:
        """Call the callback, once; None stands for a caller that is gone."""
        if not self.is_answered:
            self.is_answered = True
            self._on_answer(answer, None)

    @property
    def request_key(self) -> tuple[str, str] | None:
        """Owner and request id, if there is one: waiters with the same key get the same answer."""
        return None if self.request.request_id is None else (self.owner, self.request.request_id)


class WaitQueue:
    """The waiters of one lock, in order."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.waiters: dict[int, Waiter] = {}
        self.by_request: dict[tuple[str, str], list[Waiter]] = {}
        #: when the present lease ends, as far as the loop knows; only the writer decides whether it has ended
        self.deadline_boot_ns = 0
        self.timer: asyncio.TimerHandle | None = None


class WaitQueues:
    """The queues of all locks."""

    def __init__(self, max_per_lock: int, max_in_all: int) -> None:
        self._max_per_lock = max_per_lock
        self._max_in_all = max_in_all
        self._gate = threading.Lock()
        self._queues: dict[Key, WaitQueue] = {}
        self._tickets = count(1)
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[WaitQueue]:
        return iter(list(self._queues.values()))

    def get(self, key: Key) -> WaitQueue | None:
        """Return the queue of a lock, or None if it has no waiters."""
        return self._queues.get(key)

    def limit_reached(self, key: Key) -> int | None:
        """Return the limit that one more waiter would exceed, or None."""
        if self._waiting >= self._max_in_all:
            return self._max_in_all
        queue = self._queues.get(key)
        return self._max_per_lock if queue is not None and len(queue.waiters) >= self._max_per_lock else None

    def add(
        self,
        key: Key,
        owner: str,
        request: Acquire,
        since_boot_ns: int,
        on_answer: OnLockAnswer,
        is_gone: Callable[[], bool],
    ) -> tuple[WaitQueue, Waiter]:
        """Add a waiter at the end of the queue of a lock."""
        waiter = Waiter(next(self._tickets), owner, request, since_boot_ns, on_answer, is_gone)
        with self._gate:
            queue = self._queues.setdefault(key, WaitQueue(key))
            queue.waiters[waiter.ticket] = waiter
        self._waiting += 1
        if waiter.request_key is not None:
            queue.by_request.setdefault(waiter.request_key, []).append(waiter)
        return queue, waiter

    def remove(self, queue: WaitQueue, waiter: Waiter) -> None:
        """Remove a waiter, and its queue with the last one."""
        if waiter.timeout is not None:
            waiter.timeout.cancel()
        with self._gate:
            if queue.waiters.pop(waiter.ticket, None) is None:
                return
            if not queue.waiters:
                self._queues.pop(queue.key, None)
        self._waiting -= 1
        if waiter.request_key is not None:
            same = queue.by_request[waiter.request_key]
            same.remove(waiter)
            if not same:
                del queue.by_request[waiter.request_key]
        if not queue.waiters and queue.timer is not None:
            queue.timer.cancel()

    def next_waiter(self, key: Key, after: int, final: Waiter | None = None) -> Waiter | None:
        """Return the first waiter with a later ticket that may be served; called on the writer's thread.

        `final` is the waiter whose final check this is: it may be served although it has been withdrawn.
        """
        if key not in self._queues:  # the usual case; a waiter that is added now submits a unit of work of its own
            return None
        with self._gate:
            queue = self._queues.get(key)
            for ticket, waiter in queue.waiters.items() if queue is not None else ():
                if ticket > after and (waiter.may_be_served or (waiter is final and not waiter.is_gone())):
                    return waiter
        return None
