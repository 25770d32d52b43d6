"""Running the handlers of one message: all of them at once, none in another's way, within their time.

Async handlers are tasks on the loop, sync handlers run in threads; both see the message's budget in their context.
The outcome is known when all have ended or the time is over, whichever comes first. After a time-out the run still
tells when the last handler has really ended: until then the endpoint takes no other message.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context
from typing import Any

from posthouse.bus.deadline import Deadline
from posthouse.bus.inherit import handler_context
from posthouse.bus.subscriptions import Subscription
from posthouse.bus.threads import HandlerThreads
from posthouse.log import get_log
from posthouse.model.envelope import Envelope

log = get_log(__name__)


class Run:
    """The handlers of one message at work."""

    __slots__ = (
        "_clean",
        "_deadline",
        "_envelope",
        "_loop",
        "_on_ended",
        "_on_outcome",
        "_reason",
        "_running",
        "_tasks",
        "_threads",
        "_timeout_s",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clean: Context,
        threads: HandlerThreads,
        envelope: Envelope,
        deadline: Deadline,
        timeout_s: float,
        on_outcome: Callable[[str | None], None],
        on_ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clean = clean
        self._threads = threads
        self._envelope = envelope
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._on_outcome: Callable[[str | None], None] | None = on_outcome
        self._on_ended = on_ended
        self._running = 0
        self._reason: str | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, subscriptions: list[Subscription]) -> None:
        """Start every handler."""
        self._running = len(subscriptions)
        self._deadline.set(self._timeout_s, self._time_is_over)
        for subscription in subscriptions:
            context = handler_context(self._clean, self._envelope)
            if subscription.is_async:
                self._start_task(subscription.handler(self._envelope), context)
            else:
                self._start_thread(subscription, context)

    def cancel(self) -> None:
        """End the async handlers and tell nobody; the message stays in cur/."""
        self._on_outcome = None
        self._on_ended = _nothing
        self._deadline.clear()
        for task in self._tasks:
            task.cancel()

    def _start_task(self, coroutine: Any, context: Context) -> None:
        task: asyncio.Task[Any] = self._loop.create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended, context=self._clean)

    def _start_thread(self, subscription: Subscription, context: Context) -> None:
        def work() -> None:
            result, failure = None, None
            try:
                result = context.run(subscription.handler, self._envelope)
            except BaseException as raised:  # noqa: BLE001 - a handler may raise anything; it counts as failed
                failure = raised
            try:
                self._loop.call_soon_threadsafe(self._thread_ended, result, failure, context, context=self._clean)
            except RuntimeError:
                log.debug("handler_outlived_its_loop", id=self._envelope.id)

        self._threads.run(work)

    def _thread_ended(self, result: Any, failure: BaseException | None, context: Context) -> None:
        if failure is None and inspect.iscoroutine(result):  # a plain function that hands back a coroutine
            self._start_task(result, context)
        else:
            self._one_ended(failure)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._one_ended(asyncio.CancelledError() if task.cancelled() else task.exception())

    def _one_ended(self, failure: BaseException | None) -> None:
        self._running -= 1
        if failure is not None and self._reason is None:
            self._reason = describe(failure)
        if self._running:
            return
        self._deadline.clear()
        self._tell()
        self._on_ended()

    def _time_is_over(self) -> None:
        self._reason = self._reason or f"handler exceeded {self._timeout_s:g} s"
        for task in self._tasks:
            task.cancel()
        self._tell()

    def _tell(self) -> None:
        if self._on_outcome is not None:
            tell, self._on_outcome = self._on_outcome, None
            tell(self._reason)


def describe(failure: BaseException) -> str:
    """Return what a dead letter says about a handler's exception."""
    try:
        text = str(failure)
    except Exception:  # noqa: BLE001 - a __str__ that raises
        text = ""
    name = type(failure).__name__
    return f"handler failed: {name}: {text}" if text else f"handler failed: {name}"


def _nothing() -> None:
    pass
