"""Signals: in-memory hints for the handlers of this process only.

A handler that raises does not stop other handlers; async handlers run as tasks. Many listeners on one pattern are
usually a leak, so the bus warns once per pattern above `max_listeners`.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any

from posthouse.bus.options import check_handler
from posthouse.log import get_log
from posthouse.model.envelope import Signal
from posthouse.model.subjects import PatternTrie, validate_subject

SignalHandler = Callable[[str, Signal], Awaitable[Any] | Any]
log = get_log(__name__)


class TooManyListenersWarning(UserWarning):
    """More signal handlers listen to one pattern than `max_listeners`."""


class Signals:
    """The signal handlers of one open Bus."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context, max_listeners: int) -> None:
        self._loop = loop
        self._context = context
        self._max = max_listeners
        self._trie: PatternTrie[SignalHandler] = PatternTrie()
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, pattern: str, handler: SignalHandler) -> Callable[[], Coroutine[Any, Any, None]]:
        """Call `handler` for signals to matching subjects; return the async function that removes it."""
        validate_subject(pattern, allow_wildcards=True)
        check_handler("handler", handler)
        ticket = self._trie.add(pattern, handler)
        self._counts[pattern] += 1
        if self._counts[pattern] == self._max + 1:
            text = f"{self._max + 1} signal handlers listen to {pattern}; are handlers added and never removed?"
            warnings.warn(text, TooManyListenersWarning, stacklevel=3)
        is_listening = True

        async def remove() -> None:
            nonlocal is_listening
            if is_listening:
                is_listening = False
                self._trie.remove(ticket)
                self._counts[pattern] -= 1

        return remove

    def emit(self, subject: str, signal: Signal) -> int:
        """Pass a signal to every matching handler; return how many there are."""
        handlers = self._trie.match(subject)
        for handler in handlers:
            try:
                result = handler(subject, signal)
            except Exception as failure:  # noqa: BLE001 - the other handlers still run
                log.warning("signal_handler_failed", subject=subject, reason=repr(failure))
                continue
            if inspect.isawaitable(result):
                task = self._loop.create_task(_await(result, subject), context=self._context.copy())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return len(handlers)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


async def _await(result: Awaitable[Any], subject: str) -> None:
    try:
        await result
    except Exception as failure:  # noqa: BLE001 - as above
        log.warning("signal_handler_failed", subject=subject, reason=repr(failure))
