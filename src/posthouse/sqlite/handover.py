"""Thread hand-over: waking the writer's thread, and handing its results back to event loops and threads.

One wake-up per event loop, however many of its callers wait. A caller that is gone (cancelled, loop closed) never
keeps another from its result. Results are handed over in the order of the commits. Wake-ups use the kernel's event
counter (a pipe where there is none), written with the interpreter lock released, so the woken thread runs at once;
wake-ups that are not yet seen count as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.log import get_log
from posthouse.sqlite.transaction import Item, TxT
from posthouse.sqlite.turns import Partner

_RING = (1).to_bytes(8, sys.byteorder)  # what an event counter is written with; a pipe takes anything
_MANY = 4_096  # bytes of a pipe; what is left rings once more, which harms nobody


class WakeUp:
    """Rung by any thread, heard by one."""

    def __init__(self) -> None:
        self._fd, self._rope = _event_counter() if hasattr(os, "eventfd") else _pipe()
        for fd in {self._fd, self._rope}:
            weakref.finalize(self, os.close, fd)
        self._rung = select.poll()
        self._rung.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """Return what an event loop watches: readable from a ring until it is heard."""
        return self._fd

    def ring(self) -> None:
        """Wake who waits, or the next who does."""
        try:
            os.write(self._rope, _RING)
        except BlockingIOError:  # as many rings wait as the kernel holds
            return

    def hear(self) -> None:
        """Take note of the rings so far, without waiting."""
        try:
            os.read(self._fd, _MANY)
        except BlockingIOError:  # there was none
            return

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring and return whether there was one."""
        if not self._rung.poll(timeout_s * 1000):
            return False
        self.hear()
        return True


def _event_counter() -> tuple[int, int]:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    return fd, fd


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends


log = get_log(__name__)
LOOK_OUT_NS = 80_000  # how long a loop that takes turns with the writer stays awake for the next item
#: Called on the caller's loop with the result, or with what the work raised.
OnDone = Callable[[Any, BaseException | None], None]


class LoopResults:
    """Where an event loop finds the answers to its items; made on that loop, filled by the writer's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.partner = Partner()
        self._until_ns = 0
        self._bell = WakeUp()
        self._batches: deque[Sequence[PendingItem[Any]]] = deque()
        #: whether callbacks of futures that were settled here are still to run
        self._is_behind = False
        loop.add_reader(self._bell.fileno(), self._empty)

    def put(self, items: Sequence[PendingItem[Any]]) -> None:
        """Let the loop settle `items`, after those put before."""
        if self.loop.is_closed():  # nobody is left to hear the answer
            log.debug("answers_unheard", items=len(items))
            return
        self._batches.append(items)
        self._bell.ring()

    def asked(self) -> None:
        """Stop looking out, the next item is there: the writer needs the processor that they share."""
        self._until_ns = 0

    def close(self) -> None:
        """Release what the loop watches, once it has settled everything; called after the last `put`."""
        with contextlib.suppress(RuntimeError):  # a closed loop has released it
            self.loop.call_soon_threadsafe(self._end)

    def _empty(self) -> None:
        self._bell.hear()
        while self._batches:
            for item in self._batches.popleft():
                self._settle(item)
        if self.partner.takes_turns:
            self._until_ns = time.monotonic_ns() + LOOK_OUT_NS
            self.loop.call_soon(self._look_out)
        if self._is_behind:
            self.loop.call_soon(self._catch_up)  # after the callbacks and calls of this turn

    def _settle(self, item: PendingItem[Any]) -> None:
        waiting = item.answer
        if isinstance(waiting, asyncio.Future):
            if not waiting.done():  # done: cancelled by its caller
                self._is_behind = True
                _settle_future(waiting, item)
        elif isinstance(waiting, threading.Event):  # a thread's: `answer` has told it
            pass
        elif self._is_behind:
            self.loop.call_soon(self._tell, waiting, item)
        else:
            self._tell(waiting, item)

    def _tell(self, heard: OnDone, item: PendingItem[Any]) -> None:
        try:
            heard(item.result, item.error)
        except Exception as defect:  # noqa: BLE001 - as a callback of a future: the others still hear theirs
            self.loop.call_exception_handler({"message": "an answer was not taken", "exception": defect})

    def _look_out(self) -> None:
        """Keep the loop from sleeping: whoever was answered mostly asks again before a processor could be woken."""
        if time.monotonic_ns() < self._until_ns:
            self.loop.call_soon(self._look_out)

    def _catch_up(self) -> None:
        self._is_behind = False

    def _end(self) -> None:
        self._empty()
        self.loop.remove_reader(self._bell.fileno())


def answer(batch: Sequence[PendingItem[TxT]]) -> None:
    """Tell every caller of the batch what became of its item."""
    if len(batch) == 1 and (alone := batch[0].letterbox) is not None:
        alone.put(batch)
        return
    by_letterbox: dict[LoopResults, list[PendingItem[TxT]]] = {}
    for item in batch:
        if item.letterbox is not None:
            by_letterbox.setdefault(item.letterbox, []).append(item)
        elif isinstance(item.answer, threading.Event):
            item.answer.set()
    for letterbox, items in by_letterbox.items():
        letterbox.put(items)


class PendingItem(Item[TxT], eq=False):
    """An item whose caller waits on an event loop or on a thread, or is called on its loop."""

    size: int = 0
    #: None: `answer` is the event a thread waits for.
    letterbox: LoopResults | None = None
    answer: asyncio.Future[Any] | threading.Event | OnDone = msgspec.field(default_factory=threading.Event)


def _settle_future(future: asyncio.Future[Any], item: PendingItem[Any]) -> None:
    if item.error is not None:
        future.set_exception(item.error)
    else:
        future.set_result(item.result)
