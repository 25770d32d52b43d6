"""The group-commit writer: one thread that owns the write connection of a store for ever.

Callers hand in items; while one batch syncs the next gathers, so there is no artificial delay and one sync serves
many callers. Items belong to the writer, not to the request: a caller that goes away changes nothing about what
is committed, and cannot take the answers of others with it. What waits is bounded by items and bytes; beyond
that the caller is refused (store_busy) before anything is queued.

An event loop wakes the sleeping writer at the end of its turn, not at the first item: callers that were answered
together come back together, and so share the next sync too. While items come one by one there is nobody to wait for:
loop and writer take turns (turns.py), and the item is rung for at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, Transient, error
from posthouse.sqlite.connection import copy_error, leave_wal
from posthouse.sqlite.handover import LoopResults, OnDone, PendingItem, WakeUp, answer
from posthouse.sqlite.transaction import TxT, run_items
from posthouse.sqlite.turns import SILENCE_S, Turns

R = TypeVar("R")
log = get_log(__name__)

MAX_WAITING_ITEMS = 16_384
MAX_WAITING_BYTES = 64 * 1024 * 1024
MAX_BATCH_ITEMS = 512  # keeps one commit, and so every answer in it, in the low milliseconds
MAX_BATCH_BYTES = 8 * 1024 * 1024
_LOOK_EVERY_S = 1.0  # a loop that stopped before its turn ended rings late or never: its items still commit


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
        self._clock = clock
        self._path = path
        self._on_fatal = on_fatal
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._gate = threading.Lock()
        self._arrived: list[PendingItem[TxT]] = []
        self._waiting_items = 0
        self._waiting_bytes = 0
        self._bell = WakeUp()
        self._is_asleep = False
        self._ringing: LoopResults | None = None
        self._letterboxes: dict[asyncio.AbstractEventLoop, LoopResults] = {}
        self._refusal: PosthouseError | None = None
        self._trouble: PosthouseError | None = None
        self._batches = 0
        self._committed_items = 0
        self._tx = open_transaction()
        self._thread = threading.Thread(target=self._serve, name=f"writer {path}", daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[TxT], R], *, size: int = 0) -> R:
        """Commit `work` and return its result once it is durable; cancelling the wait does not undo the work.

        `work` runs on the writer's thread, inside a transaction, and may run more than once before it is answered
        (only its last run counts): it must depend on nothing but its arguments and the rows it reads, leave nothing
        behind but rows, let SQLite's errors through, and not block. What it raises is the answer, and none of its
        rows stay.
        """
        return await self.submit(work, size=size)

    def submit(self, work: Callable[[TxT], R], *, size: int = 0) -> asyncio.Future[R]:
        """Queue `work` at once, keeping the order of calls, and return the future of its answer."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._hand_in(work, future, size)
        return future

    def hand_in(self, work: Callable[[TxT], Any], heard: OnDone, *, size: int = 0) -> None:
        """Queue `work` at once, keeping the order of calls; `heard` is called on this loop with its answer.

        That is what a future would say without the turns of the loop that its callbacks wait for.
        """
        self._hand_in(work, heard, size)

    def run_blocking(self, work: Callable[[TxT], R], *, size: int = 0) -> R:
        """Commit `work` from a thread that may block."""
        event = threading.Event()
        item = PendingItem(work, None, None, size, None, event)
        if self._put(item):
            self._bell.ring()
        event.wait()
        if item.error is not None:
            raise item.error
        result: R = item.result
        return result

    def refuse(self, fatal: Fatal) -> None:
        """Answer everything with `fatal` from now on: another part of the store found that the disk failed."""
        with self._gate:
            self._refusal = fatal
        self._bell.ring()

    def close(self) -> None:
        """Commit what waits, then end the thread; later calls get store_closed."""
        with self._gate:
            if self._refusal is None:
                self._refusal = error("store_closed", path=self._path)
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def state(self) -> str:
        """Return "open", "full" or "locked" (read-only until a commit succeeds), "failed" or "closed"."""
        if isinstance(self._refusal, Fatal):
            return "failed"
        if self._refusal is not None:
            return "closed"
        if self._trouble is not None:
            return "full" if self._trouble.code == "store_full" else "locked"
        return "open"

    def statistics(self) -> dict[str, int | str]:
        """Return the counters that show how the writer is doing."""
        return {
            "state": self.state,
            "waiting_items": self._waiting_items,
            "waiting_bytes": self._waiting_bytes,
            "batches": self._batches,
            "committed_items": self._committed_items,
        }

    def _hand_in(self, work: Callable[[TxT], Any], answer: asyncio.Future[Any] | OnDone, size: int) -> None:
        loop = asyncio.get_running_loop()
        letterbox = self._letterboxes.get(loop) or self._open_letterbox(loop)
        must_ring = self._put(PendingItem(work, None, None, size, letterbox, answer))
        letterbox.asked()
        if must_ring and letterbox.partner.takes_turns:
            self._bell.ring()
        elif must_ring:
            loop.call_soon(self._bell.ring)

    def _put(self, item: PendingItem[TxT]) -> bool:
        """Take the item in; return whether the caller has to wake the writer."""
        with self._gate:
            if self._refusal is not None:
                raise copy_error(self._refusal)
            waiting = self._waiting_items
            if waiting >= self._max_items or (waiting and self._waiting_bytes + item.size > self._max_bytes):
                raise error("store_busy", items=waiting, bytes=self._waiting_bytes)
            self._waiting_items = waiting + 1
            self._waiting_bytes += item.size
            self._arrived.append(item)
            if not self._is_asleep or (item.letterbox is not None and self._ringing is item.letterbox):
                return False
            self._ringing = item.letterbox
            return True

    def _open_letterbox(self, loop: asyncio.AbstractEventLoop) -> LoopResults:
        with self._gate:
            if self._refusal is not None:  # the thread that closes letterboxes may have ended
                raise copy_error(self._refusal)
            for former in [each for each in self._letterboxes if each.is_closed()]:
                del self._letterboxes[former]
            letterbox = self._letterboxes[loop] = LoopResults(loop)
            return letterbox

    def _serve(self) -> None:
        turns = Turns()
        try:
            while batch := self._gather(turns):
                fatal = run_items(self._tx, batch, self._clock, self._path)
                self._account(batch)
                if fatal:
                    self._fail(fatal, batch)
                    return
                answer(batch)
                alone = batch[0].letterbox if len(batch) == 1 else None
                turns.note(alone.partner if alone is not None else None)
            if isinstance(self._refusal, Fatal):
                self._fail(self._refusal, [])
        except BaseException as defect:
            log.exception("writer_failed", path=self._path)
            self._fail(_as_fatal(defect, self._path), [])
            raise
        finally:
            turns.end()
            self._tx.db.close()
            for letterbox in self._letterboxes.values():
                letterbox.close()

    def _gather(self, turns: Turns) -> list[PendingItem[TxT]]:
        """Return what has arrived, waiting for it if there is nothing; empty when the writer has to end."""
        while True:
            with self._gate:
                if self._arrived and not isinstance(self._refusal, Fatal):
                    self._is_asleep, self._ringing = False, None
                    return self._take()
                if self._refusal is not None:
                    return []
                self._is_asleep = True
            if not self._bell.wait(SILENCE_S if turns.is_dialogue else _LOOK_EVERY_S):
                turns.end()
                with self._gate:
                    self._ringing = None

    def _take(self) -> list[PendingItem[TxT]]:
        arrived = self._arrived
        if len(arrived) <= MAX_BATCH_ITEMS and self._waiting_bytes <= MAX_BATCH_BYTES:
            self._arrived = []
            return arrived
        count, size = 1, arrived[0].size
        for item in arrived[1:MAX_BATCH_ITEMS]:
            size += item.size
            if size > MAX_BATCH_BYTES:
                break
            count += 1
        self._arrived = arrived[count:]
        return arrived[:count]

    def _account(self, batch: list[PendingItem[TxT]]) -> None:
        failed, size, trouble = 0, 0, None
        for item in batch:
            size += item.size
            if item.error is not None:
                failed += 1
                trouble = _store_trouble(item.error) or trouble
        with self._gate:
            self._waiting_items -= len(batch)
            self._waiting_bytes -= size
        self._batches += 1
        self._committed_items += len(batch) - failed
        if trouble is not self._trouble:
            self._note(trouble)

    def _note(self, trouble: PosthouseError | None) -> None:
        if trouble is not None and self._trouble is None:
            log.warning("store_read_only", path=self._path, reason=str(trouble))
        if trouble is None:
            log.info("store_writable_again", path=self._path)
        self._trouble = trouble

    def _fail(self, fatal: Fatal, batch: list[PendingItem[TxT]]) -> None:
        with self._gate:
            self._refusal = fatal
            rest, self._arrived = self._arrived, []
        for item in rest:
            item.error = copy_error(fatal)
        log.error("store_failed", path=self._path, reason=str(fatal))
        leave_wal(self._tx.db)
        try:
            self._on_fatal(fatal)
        finally:
            answer([*batch, *rest])


def _store_trouble(failure: BaseException) -> PosthouseError | None:
    if isinstance(failure, Transient) and failure.code in ("store_full", "store_locked"):
        return failure
    return None


def _as_fatal(defect: BaseException, path: str) -> Fatal:
    failure = error("store_failed", path=path, reason=f"the writer broke: {defect!r}")
    assert isinstance(failure, Fatal)
    return failure
