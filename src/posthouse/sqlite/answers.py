"""Handing out answers: from the writer's thread to the loops and threads that wait for them.

One wake-up per event loop, however many of its callers wait. A caller that is gone (cancelled, its loop closed)
never keeps another from its answer. Answers are heard in the order of the commits: by a call at once, or, behind a
future whose callbacks are still to run, by a call after those. While a loop and the writer take turns (turns.py), the
loop stays awake for a moment after an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from posthouse.log import get_log
from posthouse.sqlite.bell import Bell
from posthouse.sqlite.transaction import Item, TxT
from posthouse.sqlite.turns import Partner

log = get_log(__name__)

LOOK_OUT_NS = 80_000  # how long a loop that takes turns with the writer stays awake for the next item

#: Called on the caller's loop with the result, or with what the work raised.
Heard = Callable[[Any, BaseException | None], None]


class Letterbox:
    """Where an event loop finds the answers to its items; made on that loop, filled by the writer's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.partner = Partner()
        self._until_ns = 0
        self._bell = Bell()
        self._batches: deque[Sequence[Waiting[Any]]] = deque()
        #: whether callbacks of futures that were settled here are still to run
        self._is_behind = False
        loop.add_reader(self._bell.fileno(), self._empty)

    def put(self, items: Sequence[Waiting[Any]]) -> None:
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

    def _settle(self, item: Waiting[Any]) -> None:
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

    def _tell(self, heard: Heard, item: Waiting[Any]) -> None:
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


class Waiting(Item[TxT], eq=False):
    """An item whose caller waits on an event loop or on a thread, or is called on its loop."""

    size: int = 0
    #: None: `answer` is the event a thread waits for.
    letterbox: Letterbox | None = None
    answer: asyncio.Future[Any] | threading.Event | Heard = msgspec.field(default_factory=threading.Event)


def answer(batch: Sequence[Waiting[TxT]]) -> None:
    """Tell every caller of the batch what became of its item."""
    if len(batch) == 1 and (alone := batch[0].letterbox) is not None:
        alone.put(batch)
        return
    by_letterbox: dict[Letterbox, list[Waiting[TxT]]] = {}
    for item in batch:
        if item.letterbox is not None:
            by_letterbox.setdefault(item.letterbox, []).append(item)
        elif isinstance(item.answer, threading.Event):
            item.answer.set()
    for letterbox, items in by_letterbox.items():
        letterbox.put(items)


def _settle_future(future: asyncio.Future[Any], item: Waiting[Any]) -> None:
    if item.error is not None:
        future.set_exception(item.error)
    else:
        future.set_result(item.result)
