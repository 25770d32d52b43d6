"""Waiters and their queues: who waits for which lock, first come first served.

The event loop adds and removes waiters; the writer's thread looks for the next one while it decides. It never removes
any: a transaction may be rolled back and run again, so what was decided counts only once the loop hears of the commit.
That a waiter was served is written in the lock's row (`turn`, the ticket served last), which a rollback undoes too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count

from posthouse.relay.wire.lock_operations import Acquire, LockAnswer, OnLockAnswer

Key = tuple[str, str]


class Waiter:
    """Somebody who waits for a lock."""

    __slots__ = (
        "_told",
        "alarm",
        "is_answered",
        "is_gone",
        "is_withdrawn",
        "owner",
        "since_boot_ns",
        "ticket",
        "wanted",
    )

    def __init__(
        self,
        ticket: int,
        owner: str,
        wanted: Acquire,
        since_boot_ns: int,
        told: OnLockAnswer,
        is_gone: Callable[[], bool],
    ) -> None:
        self.ticket = ticket
        self.owner = owner
        self.wanted = wanted
        self.since_boot_ns = since_boot_ns
        #: whether nobody is left to be answered; asked on the writer's thread too
        self.is_gone = is_gone
        #: set before its last look: from then on only that look may serve it
        self.is_withdrawn = False
        self._told = told
        self.is_answered = False
        #: ends the wait
        self.alarm: asyncio.TimerHandle | None = None

    @property
    def may_be_served(self) -> bool:
        """Whether a transaction may give the lock to this waiter."""
        return not self.is_withdrawn and not self.is_gone() and not self.is_answered

    def answer(self, answer: LockAnswer | None) -> None:
        """Tell the caller, once; None says that it is gone."""
        if not self.is_answered:
            self.is_answered = True
            self._told(answer, None)

    @property
    def request(self) -> tuple[str, str] | None:
        """Owner and request id, if there is one: those with the same get the same answer."""
        return None if self.wanted.request_id is None else (self.owner, self.wanted.request_id)


class WaitQueue:
    """Those who wait for one lock, in order."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.waiters: dict[int, Waiter] = {}
        self.by_request: dict[tuple[str, str], list[Waiter]] = {}
        #: when the present lease ends, as far as the loop knows; it is only a reason to look
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
        """Return the queue of a lock, if anybody waits."""
        return self._queues.get(key)

    def full_at(self, key: Key) -> int | None:
        """Return the limit that another waiter would pass, or None."""
        if self._waiting >= self._max_in_all:
            return self._max_in_all
        queue = self._queues.get(key)
        return self._max_per_lock if queue is not None and len(queue.waiters) >= self._max_per_lock else None

    def add(
        self, key: Key, owner: str, wanted: Acquire, since_boot_ns: int, told: OnLockAnswer, is_gone: Callable[[], bool]
    ) -> tuple[WaitQueue, Waiter]:
        """Let somebody wait at the end of the queue."""
        waiter = Waiter(next(self._tickets), owner, wanted, since_boot_ns, told, is_gone)
        with self._gate:
            queue = self._queues.setdefault(key, WaitQueue(key))
            queue.waiters[waiter.ticket] = waiter
        self._waiting += 1
        if waiter.request is not None:
            queue.by_request.setdefault(waiter.request, []).append(waiter)
        return queue, waiter

    def remove(self, queue: WaitQueue, waiter: Waiter) -> None:
        """Take a waiter out, and its queue when it was the last."""
        if waiter.alarm is not None:
            waiter.alarm.cancel()
        with self._gate:
            if queue.waiters.pop(waiter.ticket, None) is None:
                return
            if not queue.waiters:
                self._queues.pop(queue.key, None)
        self._waiting -= 1
        if waiter.request is not None:
            same = queue.by_request[waiter.request]
            same.remove(waiter)
            if not same:
                del queue.by_request[waiter.request]
        if not queue.waiters and queue.timer is not None:
            queue.timer.cancel()

    def next_waiter(self, key: Key, after: int, last_look: Waiter | None = None) -> Waiter | None:
        """Return the first waiter with a later ticket that may be served; called on the writer's thread.

        `last_look` may be served although it has been withdrawn.
        """
        if key not in self._queues:  # as nearly always; a queue that comes now sends an item of its own
            return None
        with self._gate:
            queue = self._queues.get(key)
            for ticket, waiter in queue.waiters.items() if queue is not None else ():
                if ticket > after and (waiter.may_be_served or (waiter is last_look and not waiter.is_gone())):
                    return waiter
        return None
