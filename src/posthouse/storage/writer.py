"""The group-commit writer: it owns the write connection of a store for its whole life, and commits on its own thread.

Callers submit items. While one batch syncs, the next one collects, so there is no artificial delay and one sync serves
many callers. Items belong to the writer, not to the request: a caller that goes away affects neither the commit nor the
results of other callers. Waiting items are bounded by count and bytes; beyond the bound `submit` raises store_busy
before anything is queued.

An event loop wakes the sleeping writer at the end of its iteration, not at the first item: callers whose results
arrive together submit again together, and so share the next sync too. If only one short item is waiting then, the loop
commits it on its own thread: the hand-over to a sleeping thread and back costs a lone caller a quarter of its time.
Before it answers, the loop polls its sockets: if other callers have submitted during the commit, the writer's thread
commits for a while, and the loop keeps reading (docs/adr/0018-lone-commits.md).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, Transient, copy_error, error
from posthouse.storage.batch import Item, as_fatal
from posthouse.storage.handover import LoopResults, OnDone, PendingItem, WakeUp, deliver_results

R = TypeVar("R")
log = get_log(__name__)

MAX_WAITING_ITEMS = 16_384
MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_BATCH_ITEMS = 512  # keeps one commit, and so the latency of every item in it, in the low milliseconds
MAX_BATCH_BYTES = 8 * 1024 * 1024
THREADED_NS = 20_000_000  # after a sign of other work, or of a slow disk, the writer's thread commits for this long
SLOW_COMMIT_NS = 2_000_000  # several times a usual sync: what keeps the disk busy would keep the loop busy too
_POLLS_AFTER_LONE = 3  # after this many polls of its sockets, a loop has submitted what arrived during a commit
_CHECK_EVERY_S = 1.0  # a loop that stops in the middle of an iteration may never notify: its items still commit


class BatchTransaction(Protocol):
    """The write connection of a store, as its writer uses it."""

    def commit_items(self, items: Sequence[Item[Any]], clock: Clock, path: str) -> Fatal | None:
        """Run items in one transaction and set the result or error of each; return an error that ends the process."""
        ...

    @property
    def changes(self) -> int:
        """A number that grows with each changed row."""
        ...

    def close(self, *, is_failed: bool) -> None:
        """Close the connection; after a failure without another write."""
        ...

    def take_news(self) -> Any:
        """Return news about commits of other processes since the last call, or None if there is none."""
        ...


TxT = TypeVar("TxT", bound=BatchTransaction)


class Writer(Generic[TxT]):
    """Commits items in batches, in the order of submission."""

    def __init__(
        self,
        open_transaction: Callable[[], TxT],
        clock: Clock,
        path: str,
        *,
        on_fatal: Callable[[Fatal], None],
        max_items: int = MAX_WAITING_ITEMS,
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._clock = clock
        self._path = path
        self._on_fatal = on_fatal
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._mutex = threading.Lock()  # guards the queue, its counters, _closed_with and the two flags of the wake-up
        self._committing = threading.Lock()  # held by the thread that uses the write connection
        self._queue: list[PendingItem[TxT]] = []
        self._waiting_items = 0
        self._waiting_bytes = 0
        self._wake_up = WakeUp()
        self._is_asleep = False
        self._notified_by: LoopResults | None = None
        self._loop_results: dict[asyncio.AbstractEventLoop, LoopResults] = {}
        self._threaded_until_ns = 0
        self._failed_lone: list[PendingItem[TxT]] = []
        self._closed_with: PosthouseError | None = None
        self._transient_error: PosthouseError | None = None
        self._batches = 0
        self._committed_items = 0
        self._committed_ns = 0
        self._news_for: tuple[LoopResults, OnDone] | None = None
        self._tx = open_transaction()
        self._thread = threading.Thread(target=self._serve, name=f"writer {path}", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[TxT], R], *, size: int = 0, is_short: bool = False) -> R:
        """Commit `work` and return its result once it is durable; cancelling the wait does not undo the work.

        `work` runs inside a transaction, and may run more than once (only its last run counts): it must depend only
        on its arguments and the rows it reads, have no effects besides rows, let SQLite's errors through, and not
        block. An exception that it raises goes to the caller, and none of its rows stay. It runs on the writer's
        thread, or on the loop's if it `is_short` (a few rows that a caller waits for) and no other item waits.
        """
        return await self.submit(work, size=size, is_short=is_short)

    def submit(self, work: Callable[[TxT], R], *, size: int = 0, is_short: bool = False) -> asyncio.Future[R]:
        """Queue `work` at once, in call order, and return the future of its result."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._submit_from_loop(work, future, size, is_short)
        return future

    def submit_with_callback(
        self, work: Callable[[TxT], Any], on_done: OnDone, *, size: int = 0, is_short: bool = False
    ) -> None:
        """Queue `work` at once, in call order; `on_done` is called on this loop with its result.

        A callback comes without the loop iterations that the callbacks of a future wait for.
        """
        self._submit_from_loop(work, on_done, size, is_short)

    def listen(self, on_news: OnDone) -> None:
        """Call `on_news` on this loop with the news of each batch, before its results and after earlier ones."""
        self._news_for = (self.loop_results(), on_news)

    def loop_results(self) -> LoopResults:
        """Return the results of this loop."""
        loop = asyncio.get_running_loop()
        return self._loop_results.get(loop) or self._open_loop_results(loop)

    def run_blocking(self, work: Callable[[TxT], R], *, size: int = 0) -> R:
        """Commit `work` from a thread that may block."""
        event = threading.Event()
        item = PendingItem(work, None, None, size, None, event)
        if self._enqueue(item):
            self._wake_up.notify()
        event.wait()
        if item.error is not None:
            raise item.error
        result: R = item.result
        return result

    def refuse(self, fatal: Fatal) -> None:
        """Fail every later call with `fatal`: another part of the store found that the disk failed."""
        with self._mutex:
            self._closed_with = fatal
        self._wake_up.notify()

    def close(self) -> None:
        """Commit the items that wait, then end the thread; later calls raise store_closed."""
        with self._mutex:
            if self._closed_with is None:
                self._closed_with = error("store_closed", path=self._path)
        self._wake_up.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def state(self) -> str:
        """Return "open", "full" or "locked" (read-only until a commit succeeds), "damaged", "failed" or "closed"."""
        if isinstance(self._closed_with, Fatal):
            return "damaged" if self._closed_with.code == "store_damaged" else "failed"
        if self._closed_with is not None:
            return "closed"
        if not self._thread.is_alive():
            return "failed"
        if self._transient_error is not None:
            return "full" if self._transient_error.code == "store_full" else "locked"
        return "open"

    def statistics(self) -> dict[str, int | str]:
        """Return the state, the items and bytes that wait, and the counters of batches and items."""
        return {
            "state": self.state,
            "waiting_items": self._waiting_items,
            "waiting_bytes": self._waiting_bytes,
            "batches": self._batches,
            "committed_items": self._committed_items,
        }

    def _submit_from_loop(
        self, work: Callable[[TxT], Any], waiter: asyncio.Future[Any] | OnDone, size: int, is_short: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        loop_results = self._loop_results.get(loop) or self._open_loop_results(loop)
        if self._enqueue(PendingItem(work, None, None, size, loop_results, waiter, is_short)):
            loop.call_soon(self._end_iteration, loop_results)

    def _end_iteration(self, loop_results: LoopResults) -> None:
        """Commit what this iteration submitted: a lone short item here, anything else on the writer's thread."""
        self._answer_after(0, loop_results)
        lone = self._take_lone(loop_results)
        if lone is None:
            self._wake_up.notify()
            return
        try:
            fatal = self._commit([lone])
            if fatal is None:  # before another commit can begin: results arrive in the order of commits
                loop_results.keep([lone], self._committed_ns)
        except Exception as defect:  # noqa: BLE001 - the caller must not wait for a result that never comes
            fatal = as_fatal(defect, self._path, "writer")
            lone.error = copy_error(fatal)
        finally:
            self._committing.release()
        if fatal is not None:
            with self._mutex:
                self._closed_with, self._failed_lone = fatal, [lone]
            self._wake_up.notify()
            return
        self._answer_after(_POLLS_AFTER_LONE, loop_results)

    def _answer_after(self, polls: int, loop_results: LoopResults) -> None:
        """Answer the caller of a lone item, unless it is answered already, once the loop has submitted what came during
        the commit.

        A request after the answer shows nothing: it may be the next one of the same caller.
        """
        if not loop_results.is_keeping:
            return
        if polls and not self._queue:
            loop_results.loop.call_soon(self._answer_after, polls - 1, loop_results)
            return
        if self._queue:
            self._threaded_until_ns = self._clock.boot_ns() + THREADED_NS
        loop_results.deliver_all()

    def _take_lone(self, loop_results: LoopResults) -> PendingItem[TxT] | None:
        """If the loop may commit the only waiting item, take that item and the write connection."""
        with self._mutex:
            lone = self._queue[0] if len(self._queue) == 1 and self._closed_with is None else None
            if lone is None or not lone.is_short or lone.loop_results is not loop_results:
                return None
            if self._clock.boot_ns() < self._threaded_until_ns or self._transient_error is not None:
                return None
            if not self._committing.acquire(blocking=False):
                return None
            self._queue, self._notified_by = [], None
            return lone

    def _commit(self, batch: list[PendingItem[TxT]]) -> Fatal | None:
        """Commit a batch and account for it; the caller holds the write connection."""
        began_ns = self._clock.boot_ns()
        changes_before = None if self._transient_error is None else self._tx.changes
        fatal = self._tx.commit_items(batch, self._clock, self._path)
        ended_ns = self._committed_ns = self._clock.boot_ns()
        if len(batch) > 1 or ended_ns - began_ns > SLOW_COMMIT_NS:
            self._threaded_until_ns = ended_ns + THREADED_NS
        self._account(batch, changes_before)
        return fatal

    def _enqueue(self, item: PendingItem[TxT]) -> bool:
        """Queue the item; return True if the caller has to wake the writer (once per sleep and loop)."""
        with self._mutex:
            if self._closed_with is not None:
                raise copy_error(self._closed_with)
            waiting = self._waiting_items
            if waiting >= self._max_items or (waiting and self._waiting_bytes + item.size > self._max_bytes):
                raise error("store_busy", items=waiting, bytes=self._waiting_bytes)
            self._waiting_items = waiting + 1
            self._waiting_bytes += item.size
            self._queue.append(item)
            if not self._is_asleep or (item.loop_results is not None and self._notified_by is item.loop_results):
                return False
            self._notified_by = item.loop_results
            return True

    def _open_loop_results(self, loop: asyncio.AbstractEventLoop) -> LoopResults:
        with self._mutex:
            if self._closed_with is not None:  # the thread that closes LoopResults may have ended
                raise copy_error(self._closed_with)
            for closed in [each for each in self._loop_results if each.is_closed()]:
                del self._loop_results[closed]
            loop_results = self._loop_results[loop] = LoopResults(loop)
            return loop_results

    def _serve(self) -> None:
        batch: list[PendingItem[TxT]] = []
        try:
            while batch := self._next_batch():
                with self._committing:
                    fatal = self._commit(batch)
                    if not fatal:  # before a lone commit can begin: results arrive in the order of commits
                        deliver_results(self._with_news(batch), self._committed_ns)
                if fatal:
                    self._fail(fatal, batch)
                    return
                batch = []  # its callers have their results
            if isinstance(self._closed_with, Fatal):
                self._fail(self._closed_with, self._failed_lone)
        except BaseException as defect:
            log.exception("writer_failed", path=self._path)
            fatal = as_fatal(defect, self._path, "writer")
            for item in batch:  # a caller must not take an unknown outcome for a commit
                item.error = copy_error(fatal)
            self._fail(fatal, batch)
        finally:
            with self._committing:
                self._tx.close(is_failed=isinstance(self._closed_with, Fatal))
            for loop_results in self._loop_results.values():
                loop_results.close()

    def _with_news(self, batch: list[PendingItem[TxT]]) -> list[PendingItem[TxT]]:
        """Put the news that a batch learned before its items."""
        if self._news_for is None or (news := self._tx.take_news()) is None:
            return batch
        loop_results, on_news = self._news_for
        return [PendingItem(_no_work, news, None, 0, loop_results, on_news), *batch]

    def _next_batch(self) -> list[PendingItem[TxT]]:
        """Return the items that wait, sleeping until there are some; return none when the writer has to end."""
        while True:
            with self._mutex:
                if self._queue and not isinstance(self._closed_with, Fatal):
                    self._is_asleep, self._notified_by = False, None
                    return self._cut_batch()
                if self._closed_with is not None:
                    return []
                self._is_asleep = True
            if not self._wake_up.wait(_CHECK_EVERY_S):
                with self._mutex:
                    self._notified_by = None

    def _cut_batch(self) -> list[PendingItem[TxT]]:
        queue = self._queue
        if len(queue) <= MAX_BATCH_ITEMS and self._waiting_bytes <= MAX_BATCH_BYTES:
            self._queue = []
            return queue
        count, size = 1, queue[0].size
        for item in queue[1:MAX_BATCH_ITEMS]:
            size += item.size
            if size > MAX_BATCH_BYTES:
                break
            count += 1
        self._queue = queue[count:]
        return queue[:count]

    def _account(self, batch: list[PendingItem[TxT]], changes_before: int | None) -> None:
        """Count a batch; `changes_before` is None if the store was writable before it."""
        failed, size, transient = 0, 0, None
        for item in batch:
            size += item.size
            if item.error is not None:
                failed += 1
                transient = _read_only_error(item.error) or transient
        with self._mutex:
            self._waiting_items -= len(batch)
            self._waiting_bytes -= size
        self._batches += 1
        self._committed_items += len(batch) - failed
        if transient is self._transient_error:
            return
        if transient is not None or self._tx.changes != changes_before:
            self._log_state_change(transient)  # a commit without a change does not show that the disk has room

    def _log_state_change(self, transient: PosthouseError | None) -> None:
        if transient is not None and self._transient_error is None:
            log.warning("store_read_only", path=self._path, reason=str(transient))
        if transient is None:
            log.info("store_writable_again", path=self._path)
        self._transient_error = transient

    def _fail(self, fatal: Fatal, batch: list[PendingItem[TxT]]) -> None:
        with self._mutex:
            self._closed_with = fatal
            rest, self._queue = self._queue, []
        for item in rest:
            item.error = copy_error(fatal)
        log.error(fatal.code, path=self._path, reason=str(fatal))
        try:
            self._on_fatal(fatal)
        finally:
            deliver_results([*batch, *rest], self._committed_ns)


def _no_work(_tx: Any) -> None:
    """Do nothing: the item only carries news."""


def _read_only_error(failure: BaseException) -> PosthouseError | None:
    if isinstance(failure, Transient) and failure.code in ("store_full", "store_locked"):
        return failure
    return None
