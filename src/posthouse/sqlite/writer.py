"""The group-commit writer: one thread that owns the write connection of a store for ever.

Callers hand in items; while one batch syncs the next gathers, so there is no artificial delay and one sync serves
many callers. Items belong to the writer, not to the request: a caller that goes away changes nothing about what
is committed, and cannot take the answers of others with it. What waits is bounded by items and bytes; beyond
that the caller is refused (store_busy) before anything is queued.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, Transient, error
from posthouse.sqlite.transaction import Item, TxT, run_items

R = TypeVar("R")
log = structlog.get_logger(__name__)

MAX_WAITING_ITEMS = 16_384
MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_BATCH_ITEMS = 512  # keeps one commit, and so every answer in it, in the low milliseconds
MAX_BATCH_BYTES = 8 * 1024 * 1024


class _Waiting(Item[TxT]):
    """An item whose caller waits on an event loop or on a thread."""

    __slots__ = ("answer", "loop", "size")

    def __init__(
        self,
        work: Callable[[TxT], Any],
        size: int,
        loop: asyncio.AbstractEventLoop | None,
        answer: asyncio.Future[Any] | threading.Event,
    ) -> None:
        super().__init__(work)
        self.size = size
        self.loop = loop
        self.answer = answer


class Writer(Generic[TxT]):
    """Commits items in batches, in the order they came."""

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
        self._open_transaction = open_transaction
        self._clock = clock
        self._path = path
        self._on_fatal = on_fatal
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._queue: queue.SimpleQueue[_Waiting[TxT] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._waiting_items = 0
        self._waiting_bytes = 0
        self._refusal: PosthouseError | None = None
        self._batches = 0
        self._committed_items = 0
        self._last_failure: PosthouseError | None = None
        self._thread = threading.Thread(target=self._serve, name=f"writer {path}", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[TxT], R], *, size: int = 0) -> R:
        """Commit `work` and return its result once it is durable; cancelling the wait does not undo the work."""
        result: R = await self.submit(work, size=size)
        return result

    def submit(self, work: Callable[[TxT], R], *, size: int = 0) -> asyncio.Future[R]:
        """Queue `work` at once, keeping the order of calls, and return the future of its answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._put(_Waiting(work, size, loop, future))
        return future

    def run_blocking(self, work: Callable[[TxT], R], *, size: int = 0) -> R:
        """Commit `work` from a thread that may block."""
        event = threading.Event()
        item = _Waiting(work, size, None, event)
        self._put(item)
        event.wait()
        if item.error is not None:
            raise item.error
        result: R = item.result
        return result

    def close(self) -> None:
        """Commit what waits, then end the thread; later calls get store_closed."""
        with self._gate:
            if self._refusal is None:
                self._refusal = error("store_closed", path=self._path)
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def state(self) -> str:
        """Return "open", "full" (read-only until a commit finds room), "failed" or "closed"."""
        if isinstance(self._refusal, Fatal):
            return "failed"
        if self._refusal is not None:
            return "closed"
        return "full" if self._last_failure is not None else "open"

    def statistics(self) -> dict[str, int | str]:
        """Return the counters that show how the writer is doing."""
        return {
            "state": self.state,
            "waiting_items": self._waiting_items,
            "waiting_bytes": self._waiting_bytes,
            "batches": self._batches,
            "committed_items": self._committed_items,
        }

    def _put(self, item: _Waiting[TxT]) -> None:
        with self._gate:
            if self._refusal is not None:
                raise self._refusal
            over_items = self._waiting_items >= self._max_items
            if over_items or (self._waiting_items and self._waiting_bytes + item.size > self._max_bytes):
                raise error("store_busy", items=self._waiting_items, bytes=self._waiting_bytes)
            self._waiting_items += 1
            self._waiting_bytes += item.size
            self._queue.put(item)

    def _serve(self) -> None:
        tx = self._open_transaction()
        try:
            while batch := self._gather():
                fatal = run_items(tx, batch, self._clock, self._path)
                self._account(batch)
                if fatal:
                    self._fail(fatal, batch)
                    return
                _answer(batch)
        finally:
            tx.db.close()

    def _gather(self) -> list[_Waiting[TxT]]:
        first = self._queue.get()
        if first is None:
            return []
        batch, size = [first], first.size
        while len(batch) < MAX_BATCH_ITEMS and size < MAX_BATCH_BYTES:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                self._queue.put(None)  # commit this batch first, then end
                break
            batch.append(item)
            size += item.size
        return batch

    def _account(self, batch: list[_Waiting[TxT]]) -> None:
        with self._gate:
            self._waiting_items -= len(batch)
            self._waiting_bytes -= sum(item.size for item in batch)
        failure = next((item.error for item in batch if _is_store_failure(item.error)), None)
        if failure is not None and self._last_failure is None:
            log.warning("store_read_only", path=self._path, reason=str(failure))
        if failure is None and self._last_failure is not None:
            log.info("store_writable_again", path=self._path)
        self._last_failure = failure if isinstance(failure, PosthouseError) else None
        self._batches += 1
        self._committed_items += sum(item.error is None for item in batch)

    def _fail(self, fatal: Fatal, batch: list[_Waiting[TxT]]) -> None:
        with self._gate:
            self._refusal = fatal
            while not self._queue.empty():
                item = self._queue.get_nowait()
                if item is not None:
                    item.error = fatal
                    batch.append(item)
        log.error("store_failed", path=self._path, reason=str(fatal))
        self._on_fatal(fatal)
        _answer(batch)


def _is_store_failure(failure: BaseException | None) -> bool:
    return isinstance(failure, Transient) and failure.code == "store_full"


def _answer(batch: list[_Waiting[TxT]]) -> None:
    """Hand out the answers: one wake-up per event loop, however many items it waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting[TxT]]] = {}
    for item in batch:
        if item.loop is None:
            assert isinstance(item.answer, threading.Event)
            item.answer.set()
        else:
            by_loop.setdefault(item.loop, []).append(item)
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, items)
        except RuntimeError:  # the loop has been closed: nobody is left to hear the answer
            log.debug("answers_unheard", items=len(items))


def _settle(items: list[_Waiting[TxT]]) -> None:
    for item in items:
        assert isinstance(item.answer, asyncio.Future)
        if item.answer.done():  # cancelled by its caller
            continue
        if item.error is not None:
            item.answer.set_exception(item.error)
        else:
            item.answer.set_result(item.result)
