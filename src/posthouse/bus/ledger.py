"""Group commit: all operations of this process on bus.db, in one short transaction per event-loop iteration.

Operations run in the order in which they were submitted; all that wait at the end of a loop iteration share a
transaction. Deferred operations (the ends of messages, on which no caller waits) join the next transaction of others,
or start one after two milliseconds. Each operation is applied inside the transaction and notified after the commit, in
the same order; only then may it answer a caller. Runs on the event loop's thread only, and that thread never waits for
another process: while a transaction of another process holds the write lock, the operations stay queued and the ledger
tries again on a timer. When the store refuses (disk full, locked for too long), operations that must not be lost are
retried, and the rest fail.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextvars import Context
from typing import Generic, Protocol, TypeVar

from posthouse.bus.transaction import BusTransaction, EndpointRegistry, RowCache
from posthouse.journal.append import JournalTransaction
from posthouse.journal.store import DirectStore
from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, Transient, error

R = TypeVar("R")
log = get_log(__name__)
DEFERRED_MAX_WAIT_S = 0.002  # how long an ended message may wait to share a transaction
DEFERRED_MAX_OPERATIONS = 64
BATCH_MAX_WAIT_S = 0.002  # the longest a publish waits for handlers that are working through a backlog
BATCH_MAX_OPERATIONS = 256
_MAX_ROUNDS = 3  # a publish's two halves, and what a server then finds; other callbacks run before further rounds
_MAX_IDLE_ITERATIONS = 3  # a handler that does not wait takes two iterations of the loop
_RETRY_REFUSED_S = 0.05  # when the store was busy or full
_RETRY_UNEXPECTED_S = 1.0  # after a defect: often enough to recover, too seldom to flood the log
_FLUSH_MAX_ROUNDS = 8  # an operation leads to one or two more; if the store refuses, the next open recovers the rest
LOCK_PATIENCE_MS = 10  # how long the loop may block on the commit of another process, which takes far less
_RETRY_LOCKED_S = 0.005
_FILES_CHECK_S = 0.05  # operations that admit nothing see a change of the operator's files within this time
_LOCKED_MAX_S = 5.0  # how long an operation waits for another process's write lock before it fails


class Operation(Protocol):
    """One entry of the ledger."""

    def apply(self, tx: BusTransaction) -> None:
        """Write to the transaction; an exception undoes it."""

    def on_committed(self) -> None:
        """Continue after the commit."""

    def on_failed(self, failure: Exception) -> bool:
        """Handle a failure, after which nothing is written; return True to be applied again later."""


class _Work(Generic[R]):
    """Operation of `Ledger.run`: a function in its own transaction, and the caller that waits for its result."""

    __slots__ = ("_result", "_work", "future")

    def __init__(self, work: Callable[[BusTransaction], R], future: asyncio.Future[R]) -> None:
        self._work = work
        self.future = future

    def apply(self, tx: BusTransaction) -> None:
        self._result = self._work(tx)

    def on_committed(self) -> None:
        if not self.future.done():  # the caller was cancelled
            self.future.set_result(self._result)

    def on_failed(self, failure: Exception) -> bool:
        if not self.future.done():
            self.future.set_exception(failure)
        return False


class _Barrier:
    """Operation of `Ledger.flush`: writes nothing; it is reached when everything before it has been tried."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def apply(self, tx: BusTransaction) -> None:
        """Write nothing."""

    def on_committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def on_failed(self, _failure: Exception) -> bool:
        self.on_committed()
        return False


class HandlerActivity:
    """Progress of this process's handlers, reported by the endpoint servers."""

    __slots__ = ("backlogged", "steps")

    def __init__(self) -> None:
        #: endpoints whose next message waits only for the running handler
        self.backlogged: set[int] = set()
        #: how many handler runs have started or ended
        self.steps = 0


class Ledger:
    """The queue of operations of one open Bus."""

    def __init__(
        self,
        store: DirectStore,
        registry: EndpointRegistry,
        clock: Clock,
        tick_fd: int,
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        self._store = store
        self.registry = registry
        self._clock = clock
        self._tick_fd = tick_fd
        self._loop = loop
        self._context = context
        self._cache = RowCache()
        self._waiting: list[Operation] = []
        #: operations deferred after everything in `_waiting`
        self._deferred: list[Operation] = []
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_notifying = False
        self._has_more = False
        self.activity = HandlerActivity()
        self._batch_until = 0.0
        self._seen_steps = -1
        self._idle_iterations = 0
        self._head = -1
        #: operations that another process's write lock delays, and when they were first tried
        self._delayed: dict[Operation, float] = {}
        store.writer.set_patience(LOCK_PATIENCE_MS)
        #: checks the operator's files for changes, given the loop's time: at least once between a publish and its
        #: transaction
        self.check_files: Callable[[float], None] = lambda _now_s: None
        self._files_checked_at = 0.0
        #: hooks that run after each commit that appended records
        self.on_commit: list[Callable[[], None]] = []

    def submit(self, operation: Operation) -> None:
        """Queue an operation after everything submitted or deferred so far.

        From inside `on_committed` it follows in the next transaction at once, otherwise in the next loop iteration.
        """
        if self._deferred:
            self._merge_queues()
        self._waiting.append(operation)
        self._schedule()

    def submit_publish(self, operation: Operation) -> None:
        """Queue a publish: the operator's files are checked before its transaction."""
        self._files_checked_at = 0.0
        self.submit(operation)

    def defer(self, operation: Operation) -> None:
        """Queue an operation that no caller waits for; it joins a later transaction within DEFERRED_MAX_WAIT_S."""
        self._deferred.append(operation)
        if len(self._deferred) >= DEFERRED_MAX_OPERATIONS:
            self.commit_soon()
        self._start_timer()

    def commit_soon(self) -> None:
        """Commit everything queued in the next loop iteration."""
        if self._handle is None and self._count():
            self._handle = self._loop.call_soon(self._run, context=self._context)

    async def flush(self) -> None:
        """Wait until everything queued, and the operations that follow from it, is committed."""
        for _ in range(_FLUSH_MAX_ROUNDS):
            if self._is_closed or not self._count():
                return
            reached: asyncio.Future[None] = self._loop.create_future()
            self.submit(_Barrier(reached))
            self.commit_soon()
            await reached

    async def run(self, work: Callable[[BusTransaction], R]) -> R:
        """Run `work` in its own transaction, after everything queued, and return its result.

        `work` may change any row: the rows that the ledger has cached are read again afterwards.
        """
        if self._is_closed:
            raise error("store_closed", path=str(self._store.path))
        done: asyncio.Future[R] = self._loop.create_future()
        self.submit(_Work(work, done))
        self.commit_soon()
        return await done

    def close(self) -> None:
        """Cancel all timers; operations that are still queued are dropped, and the callers that wait for them fail."""
        self._is_closed = True
        self._cancel_timers()
        self._merge_queues()
        closed = error("store_closed", path=str(self._store.path))
        for operation in self._waiting:
            if isinstance(operation, _Work | _Barrier):
                operation.on_failed(closed)

    def _begin(self, journal: JournalTransaction) -> BusTransaction:
        return BusTransaction(journal, self.registry, self._cache, self._clock.boot_ns(), self._clock.boot_id)

    def _count(self) -> int:
        return len(self._waiting) + len(self._deferred)

    def _merge_queues(self) -> None:
        """Fix the order of everything queued so far."""
        self._waiting += self._deferred
        self._deferred = []

    def _schedule(self) -> None:
        if self._is_notifying:
            self._has_more = True
        elif self._handle is None:
            self._batch_until = self._loop.time() + BATCH_MAX_WAIT_S
            self._handle = self._loop.call_soon(self._run_or_gather, context=self._context)

    def _start_timer(self, delay_s: float = DEFERRED_MAX_WAIT_S) -> None:
        if self._handle is None and self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._run, context=self._context)

    def _run_or_gather(self) -> None:
        """Commit, unless handlers are working through a backlog: then let their operations join for up to 2 ms.

        Each handled message usually leads to another publish. Gathering them more than doubles the throughput of 64
        publishers that wait until their message is handled (bench: in_flight_64_until_handled).
        """
        activity = self.activity
        self._idle_iterations = self._idle_iterations + 1 if activity.steps == self._seen_steps else 0
        self._seen_steps = activity.steps
        is_gathering = (
            activity.backlogged
            and self._idle_iterations < _MAX_IDLE_ITERATIONS
            and self._count() < BATCH_MAX_OPERATIONS
            and self._loop.time() < self._batch_until
        )
        if is_gathering:
            self._handle = self._loop.call_soon(self._run_or_gather, context=self._context)
        else:
            self._run()

    def _run(self) -> None:
        for _ in range(_MAX_ROUNDS):
            self._has_more = False
            self._run_once()
            if self._timer is not None:  # the store refused: the operations are tried again later
                return
            if not self._has_more and not self._waiting:
                if self._deferred:
                    self._start_timer()
                return
        self.commit_soon()

    def _run_once(self) -> None:
        self._cancel_timers()
        operations = self._take()
        if not operations:
            return
        self._check_files()
        try:
            head = self._write(operations)
        except Exception as failure:  # noqa: BLE001 - each operation decides what any failure means for it
            if isinstance(failure, PosthouseError) and failure.code == "store_locked":
                self._delay(operations, failure)
            else:
                self._on_write_failed(operations, failure)
            return
        if self._delayed:
            self._delayed.clear()
            self._store.writer.set_patience(LOCK_PATIENCE_MS)
        self._announce(head)
        self._is_notifying = True
        try:
            for operation in operations:
                _notify_committed(operation)
        finally:
            self._is_notifying = False

    def _check_files(self) -> None:
        now = self._loop.time()
        if now - self._files_checked_at >= _FILES_CHECK_S:
            self._files_checked_at = now
            self.check_files(now)

    def _take(self) -> list[Operation]:
        """Return the operations of the next transaction."""
        self._merge_queues()
        waiting = enumerate(self._waiting)
        count = next((position for position, operation in waiting if type(operation) is _Work), len(self._waiting))
        count = count or 1  # a function has its own transaction, because it may change any row
        operations, self._waiting = self._waiting[:count], self._waiting[count:]
        return operations

    def _delay(self, operations: list[Operation], failure: PosthouseError) -> None:
        """Keep operations queued while another process holds the write lock; those that waited too long fail."""
        now = self._loop.time()
        self._store.writer.set_patience(0)
        for operation in operations:
            self._delayed.setdefault(operation, now)
        late = [operation for operation in operations if now - self._delayed[operation] >= _LOCKED_MAX_S]
        for operation in late:
            del self._delayed[operation]
        self._waiting[:0] = [operation for operation in operations if operation in self._delayed]
        if late:
            self._on_write_failed(late, failure)
        self._start_timer(_RETRY_LOCKED_S)

    def _write(self, operations: list[Operation]) -> int:
        def work(journal: JournalTransaction) -> BusTransaction:
            tx = self._begin(journal)
            for operation in operations:
                operation.apply(tx)
            tx.write()
            return tx

        tx = self._store.writer.run(work)
        if isinstance(operations[0], _Work):
            self._cache.invalidate()
        else:
            tx.update_cache()
        return tx.journal.head

    def _on_write_failed(self, operations: list[Operation], failure: Exception) -> None:
        """Run the operations one by one, so that a bad one cannot fail the others, unless the store itself failed."""
        if len(operations) > 1 and not isinstance(failure, Transient | Fatal):
            for operation in operations:
                self._run_alone(operation)
            return
        retried = [operation for operation in operations if operation.on_failed(failure)]
        if not retried or isinstance(failure, Fatal):
            return
        if isinstance(failure, Transient):
            self._run_functions()
            self._waiting[:0] = retried
            self._start_timer(_RETRY_REFUSED_S)
        else:
            log.error("bus_operation_failed", operation=type(retried[0]).__name__, exc_info=failure)
            self._loop.call_later(_RETRY_UNEXPECTED_S, self._retry, retried, context=self._context)

    def _run_functions(self) -> None:
        """Let functions overtake operations that the store refuses, so that no caller waits until a disk has room."""
        functions = [operation for operation in self._waiting if isinstance(operation, _Work)]
        self._waiting = [operation for operation in self._waiting if not isinstance(operation, _Work)]
        for function in functions:
            self._run_alone(function)

    def _retry(self, operations: list[Operation]) -> None:
        if not self._is_closed:
            for operation in operations:
                self.submit(operation)

    def _run_alone(self, operation: Operation) -> None:
        try:
            self._announce(self._write([operation]))
        except Exception as failure:  # noqa: BLE001 - as above
            self._on_write_failed([operation], failure)
        else:
            _notify_committed(operation)

    def _announce(self, head: int) -> None:
        """Wake the journal's readers in all processes if there are new records."""
        if head == self._head:
            return
        self._head = head
        os.utime(self._tick_fd)
        for hook in self.on_commit:
            hook()

    def _cancel_timers(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _notify_committed(operation: Operation) -> None:
    """Let an operation continue; a failure there (such as a mailbox that vanished) must not stop the others."""
    try:
        operation.on_committed()
    except Exception as failure:
        log.error("bus_operation_interrupted", operation=type(operation).__name__, exc_info=failure)
