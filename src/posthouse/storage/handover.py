"""Thread hand-over: wake the writer's thread, and deliver its results to event loops and threads.

Results are delivered in commit order, with one wake-up per event loop and batch. A caller that has cancelled its future
or closed its loop never delays the result of another caller. Wake-ups use the kernel's event counter, or a pipe on
systems without one: the write releases the interpreter lock, so the woken thread starts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.log import get_log
from posthouse.storage.batch import AnyTx, Item

_ONE = (1).to_bytes(8, sys.byteorder)  # an event counter takes exactly 8 bytes; a pipe takes anything
_READ_BYTES = 4_096  # drains a pipe; bytes beyond that cause one more wake-up, which does no harm

log = get_log(__name__)
#: Called on the caller's loop with the result of the work, or with the exception that it raised.
OnDone = Callable[[Any, BaseException | None], None]


class WakeUp:
    """A wake-up signal that any thread sends and one thread or event loop receives; unseen signals count as one."""

    def __init__(self) -> None:
        self._fd, self._write_fd = _event_counter() if hasattr(os, "eventfd") else _pipe()
        for fd in {self._fd, self._write_fd}:
            weakref.finalize(self, os.close, fd)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor for an event loop to watch: readable from `notify` until `clear`."""
        return self._fd

    def notify(self) -> None:
        """Wake the receiver, now or at its next wait."""
        try:
            os.write(self._write_fd, _ONE)
        except BlockingIOError:  # the kernel's buffer is full of signals already
            return

    def clear(self) -> None:
        """Consume all signals so far without waiting."""
        try:
            os.read(self._fd, _READ_BYTES)
        except BlockingIOError:  # there was no signal
            return

    def wait(self, timeout_s: float) -> bool:
        """Wait for a signal and consume it; return False if none came in time."""
        if not self._poll.poll(timeout_s * 1000):
            return False
        self.clear()
        return True


def _event_counter() -> tuple[int, int]:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    return fd, fd


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends


class LoopResults:
    """Finished items of one event loop: created on that loop, filled only by the writer's thread.

    Callbacks and futures complete in commit order. The loop runs the callbacks of a future one iteration after the
    future is set, so a callback that follows a future in the same batch is deferred by one iteration too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wake_up = WakeUp()
        #: items and the boot time of their commit
        self._batches: deque[tuple[Sequence[PendingItem[Any]], int]] = deque()
        #: boot time of the commit whose results are delivered now
        self.committed_ns = 0
        #: whether results wait for `deliver_all` without a wake-up
        self.is_keeping = False
        self._defers_callbacks = False
        loop.add_reader(self._wake_up.fileno(), self._wake)

    def post(self, items: Sequence[PendingItem[Any]], committed_ns: int) -> None:
        """Let the loop deliver the results of `items`, after those posted before."""
        if self.loop.is_closed():  # its callers ended with it
            log.debug("answers_unheard", items=len(items))
            return
        self._batches.append((items, committed_ns))
        self._wake_up.notify()

    def close(self) -> None:
        """Stop watching the descriptor once everything is delivered; called after the last `post`."""
        with contextlib.suppress(RuntimeError):  # a closed loop has released the descriptor itself
            self.loop.call_soon_threadsafe(self._end)

    def keep(self, items: Sequence[PendingItem[Any]], committed_ns: int) -> None:
        """Add the results of `items` after those posted before; the loop's thread delivers them with `deliver_all`."""
        self._batches.append((items, committed_ns))
        self.is_keeping = True

    def deliver_all(self) -> None:
        """Deliver everything that was posted or kept; called on the loop's thread."""
        self.is_keeping = False
        while self._batches:
            items, self.committed_ns = self._batches.popleft()
            for item in items:
                self._deliver(item)
        if self._defers_callbacks:
            self.loop.call_soon(self._stop_deferring)  # runs after the future and item callbacks scheduled above

    def _wake(self) -> None:
        self._wake_up.clear()
        self.deliver_all()

    def _deliver(self, item: PendingItem[Any]) -> None:
        waiter = item.waiter
        if isinstance(waiter, asyncio.Future):
            if not waiter.done():  # a done future was cancelled by its caller
                self._defers_callbacks = True
                _set_future(waiter, item)
        elif isinstance(waiter, threading.Event):  # `deliver_results` has set it
            pass
        elif self._defers_callbacks:
            self.loop.call_soon(self._call_back, waiter, item)
        else:
            self._call_back(waiter, item)

    def _call_back(self, on_done: OnDone, item: PendingItem[Any]) -> None:
        try:
            on_done(item.result, item.error)
        except Exception as defect:  # noqa: BLE001 - handled as in a future's callback: other items continue
            self.loop.call_exception_handler({"message": "a commit callback raised", "exception": defect})

    def _stop_deferring(self) -> None:
        self._defers_callbacks = False

    def _end(self) -> None:
        self._wake()
        self.loop.remove_reader(self._wake_up.fileno())


class PendingItem(Item[AnyTx], eq=False):
    """An item with its size in bytes and its waiter: a future or callback on a loop, or the event of a thread."""

    size: int = 0
    #: None if the waiter is the event of a thread.
    loop_results: LoopResults | None = None
    waiter: asyncio.Future[Any] | threading.Event | OnDone = msgspec.field(default_factory=threading.Event)
    #: A few rows that a caller waits for: if no other item waits, the loop commits it on its own thread.
    is_short: bool = False


def deliver_results(batch: Sequence[PendingItem[AnyTx]], committed_ns: int) -> None:
    """Give every caller of the batch the result of its item; `committed_ns` is the boot time of the commit."""
    if len(batch) == 1 and (only := batch[0].loop_results) is not None:
        only.post(batch, committed_ns)
        return
    by_loop: dict[LoopResults, list[PendingItem[AnyTx]]] = {}
    for item in batch:
        if item.loop_results is not None:
            by_loop.setdefault(item.loop_results, []).append(item)
        elif isinstance(item.waiter, threading.Event):
            item.waiter.set()
    for loop_results, items in by_loop.items():
        loop_results.post(items, committed_ns)


def _set_future(future: asyncio.Future[Any], item: PendingItem[Any]) -> None:
    if item.error is not None:
        future.set_exception(item.error)
    else:
        future.set_result(item.result)
