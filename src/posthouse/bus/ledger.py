"""Group commit: all operations of this process on bus.db, in one short transaction per event-loop iteration.

Operations run in the order they were submitted; those that wait when the loop comes round share a transaction,
without an artificial delay. Deferred operations (the ends of messages, on which no caller waits) let publishes go
first and join the transaction that follows. Each operation is applied inside the transaction and notified after the
commit, in the same order; only then may it touch files or answer a caller. When the store refuses (disk full,
locked), operations that must not be lost are retried and the others fail. Runs on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextvars import Context
from typing import Protocol, TypeVar

from posthouse.bus.transaction import BusTransaction, EndpointRegistry, RowCache
from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import DirectStore
from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, Transient

R = TypeVar("R")
log = get_log(__name__)
DEFERRED_MAX_WAIT_S = 0.002  # how long an ended message may wait for company before it is booked
DEFERRED_MAX_OPERATIONS = 64
OPERATOR_FILES_CHECK_S = 0.02  # how long a changed settings file may go unnoticed under load
BATCH_MAX_WAIT_S = 0.001  # the longest a publish waits for handlers that are running through a backlog
BATCH_MAX_OPERATIONS = 256
_MAX_ROUNDS = 3  # reserve, close, and what a server then finds; more lets the loop turn first
_MAX_IDLE_ITERATIONS = 3  # a handler that does not wait takes two turns of the loop
_RETRY_S = 0.05
_FLUSH_MAX_ROUNDS = (
    8  # an operation leads to one or two more; when the store refuses, the sweep of the next open goes on
)


class Operation(Protocol):
    """One entry of the ledger."""

    def apply(self, page: BusTransaction) -> None:
        """Do the writing; raising undoes it."""

    def committed(self) -> None:
        """Go on after the commit."""

    def failed(self, failure: Exception) -> bool:
        """Hear that nothing was written; return whether to try again."""


class Ledger:
    """The queue of operations of one open Bus."""

    def __init__(
        self,
        store: DirectStore,
        book: EndpointRegistry,
        clock: Clock,
        tick_fd: int,
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._store = store
        self.book = book
        self._clock = clock
        self._tick_fd = tick_fd
        self._loop = loop
        self._context = context
        self._rows = RowCache()
        self._waiting: list[Operation] = []
        #: what came after all that waits, in no order between the two
        self._openings: list[Operation] = []
        self._lazies: list[Operation] = []
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_telling = False
        self._has_more = False
        self._next_look = 0.0
        self._wait_until = 0.0
        self._steps = -1
        self._still = 0
        #: grows while handlers run through a backlog; -1 when there is none
        self.steps: Callable[[], int] = lambda: -1
        self._head = -1
        #: called before transactions, such as to notice changed files
        self.before: list[Callable[[], None]] = []
        #: called after each commit
        self.after: list[Callable[[], None]] = []

    def submit(self, operation: Operation) -> None:
        """Queue an operation for the next turn of the loop; what a commit leads to follows at once."""
        if self._lazies or self._openings:
            self._put_in_order()
        self._waiting.append(operation)
        self._schedule()

    def submit_opening(self, operation: Operation) -> None:
        """Queue an operation whose commit leads to another one: lazy ones may wait for that."""
        self._openings.append(operation)
        self._schedule()

    def submit_lazily(self, operation: Operation) -> None:
        """Queue an operation nobody waits for: it rides with the next transaction, or goes after a moment."""
        self._lazies.append(operation)
        if self._handle is None and len(self._lazies) >= DEFERRED_MAX_OPERATIONS:
            self._handle = self._loop.call_soon(self._run, context=self._context)
        else:
            self._watch_lazies()

    def hurry(self) -> None:
        """Write what waits at the next turn of the loop."""
        if self._handle is None and self._count():
            self._handle = self._loop.call_soon(self._run, context=self._context)

    def flush(self) -> None:
        """Write what waits, and what that leads to, now."""
        for _ in range(_FLUSH_MAX_ROUNDS):
            if self._is_telling or not self._count():
                return
            self._put_in_order()
            self._run()

    def run(self, work: Callable[[BusTransaction], R]) -> R:
        """Run one piece of work at once, after what waits, and return its answer.

        From inside `committed` what waits goes on waiting: it must not overtake operations of the same batch.
        """
        if not self._is_telling and self._count():
            self._put_in_order()
            self._run()

        def inside(tx: JournalTransaction) -> tuple[R, int]:
            page = self._page(tx)
            answer = work(page)
            page.write()
            return answer, tx.head

        try:
            answer, head = self._store.writer.run(inside)
        finally:
            self._rows.forget()
        self._announce(head)
        return answer

    def _page(self, tx: JournalTransaction) -> BusTransaction:
        return BusTransaction(tx, self.book, self._rows, self._clock.boot_ns(), self._clock.boot_id)

    def _count(self) -> int:
        return len(self._waiting) + len(self._openings) + len(self._lazies)

    def _put_in_order(self) -> None:
        """Let all that is there go before what comes next."""
        self._waiting += self._lazies
        self._waiting += self._openings
        self._lazies, self._openings = [], []

    def _schedule(self) -> None:
        if self._is_telling:
            self._has_more = True
        elif self._handle is None:
            self._wait_until = self._loop.time() + BATCH_MAX_WAIT_S
            self._handle = self._loop.call_soon(self._turn, context=self._context)

    def _watch_lazies(self) -> None:
        if self._lazies and self._handle is None and self._timer is None:
            self._timer = self._loop.call_later(DEFERRED_MAX_WAIT_S, self._run, context=self._context)

    def _turn(self) -> None:
        """Write, unless handlers are running through a backlog right now: what they lead to then comes along."""
        steps = self.steps()
        self._still = self._still + 1 if steps == self._steps else 0
        self._steps = steps
        may_wait = steps >= 0 and self._still < _MAX_IDLE_ITERATIONS and self._count() < BATCH_MAX_OPERATIONS
        if may_wait and self._loop.time() < self._wait_until:
            self._handle = self._loop.call_soon(self._turn, context=self._context)
        else:
            self._run()

    def _run(self) -> None:
        for _ in range(_MAX_ROUNDS):
            self._has_more = False
            self._run_once()
            if not self._has_more:
                self._watch_lazies()
                return
        self.hurry()

    def _run_once(self) -> None:
        self._forget_timers()
        operations = self._take()
        if not operations:
            return
        if self._loop.time() >= self._next_look:
            self._next_look = self._loop.time() + OPERATOR_FILES_CHECK_S
            for prepare in self.before:
                prepare()
        try:
            head = self._write(operations)
        except Exception as failure:  # noqa: BLE001 - whatever it was, every operation hears of it
            self._failed(operations, failure)
            return
        self._announce(head)
        self._is_telling = True
        try:
            for operation in operations:
                _notify_committed(operation)
        finally:
            self._is_telling = False

    def _take(self) -> list[Operation]:
        """Return what is written now: openings alone when nothing else is due."""
        if self._openings and not self._waiting and len(self._lazies) < DEFERRED_MAX_OPERATIONS:
            operations, self._openings = self._openings, []
            return operations
        self._put_in_order()
        operations, self._waiting = self._waiting, []
        return operations

    def _write(self, operations: list[Operation]) -> int:
        def work(tx: JournalTransaction) -> BusTransaction:
            page = self._page(tx)
            for operation in operations:
                operation.apply(page)
            page.write()
            return page

        page = self._store.writer.run(work)
        page.keep()
        return page.tx.head

    def _failed(self, operations: list[Operation], failure: Exception) -> None:
        """One bad operation must not take the others with it: run them singly, unless the store itself fails."""
        if len(operations) > 1 and not isinstance(failure, Transient | Fatal):
            for operation in operations:
                self._run_alone(operation)
            return
        again = [operation for operation in operations if operation.failed(failure)]
        if again and isinstance(failure, Transient):
            self._waiting[:0] = again
            if self._timer is None:
                self._timer = self._loop.call_later(_RETRY_S, self._run, context=self._context)
        elif again and not isinstance(failure, PosthouseError):
            log.error("bus_operation_failed", exc_info=failure)

    def _run_alone(self, operation: Operation) -> None:
        try:
            self._announce(self._write([operation]))
        except Exception as failure:  # noqa: BLE001 - as above
            self._failed([operation], failure)
        else:
            _notify_committed(operation)

    def _announce(self, head: int) -> None:
        """Wake the readers of the journal if there is something to read."""
        if head == self._head:
            return
        self._head = head
        os.utime(self._tick_fd)
        for listener in self.after:
            listener()

    def _forget_timers(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _notify_committed(operation: Operation) -> None:
    """Let an operation go on; what goes wrong there (a mailbox that vanished) must not keep the others from it."""
    try:
        operation.committed()
    except Exception as failure:
        log.error("bus_operation_interrupted", operation=type(operation).__name__, exc_info=failure)
