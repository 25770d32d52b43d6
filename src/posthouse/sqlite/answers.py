"""Handing out answers: from the writer's thread to the loops and threads that wait for them.

One wake-up per event loop, however many of its callers wait. A caller that is gone (cancelled, its loop closed)
never keeps another from its answer.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec

from posthouse.log import get_log
from posthouse.sqlite.transaction import Item, TxT

log = get_log(__name__)


class Waiting(Item[TxT], eq=False):
    """An item whose caller waits on an event loop or on a thread."""

    size: int = 0
    #: None: `answer` is the event a thread waits for.
    loop: asyncio.AbstractEventLoop | None = None
    answer: asyncio.Future[Any] | threading.Event = msgspec.field(default_factory=threading.Event)


def answer(batch: list[Waiting[TxT]]) -> None:
    """Tell every caller of the batch what became of its item."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Waiting[TxT]]] = {}
    for item in batch:
        if item.loop is not None:
            by_loop.setdefault(item.loop, []).append(item)
        elif isinstance(item.answer, threading.Event):
            item.answer.set()
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, items)
        except RuntimeError:  # the loop has been closed: nobody is left to hear the answer
            log.debug("answers_unheard", items=len(items))


def _settle(items: list[Waiting[TxT]]) -> None:
    for item in items:
        future = item.answer
        if not isinstance(future, asyncio.Future) or future.done():  # done: cancelled by its caller
            continue
        if item.error is not None:
            future.set_exception(item.error)
        else:
            future.set_result(item.result)
