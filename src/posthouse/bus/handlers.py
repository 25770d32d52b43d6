"""Subscriptions of this process, and running the handlers of one message concurrently within a time limit.

Async handlers are tasks on the loop, sync handlers run in daemon threads (one per blocked handler, reused when idle,
so that hanging handlers cannot starve other endpoints); both see the message's budget in their context. The outcome
is known when all handlers have returned or the time is over. After a time-out the run still reports when the last
handler has really returned: until then the endpoint takes no other message.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from posthouse.bus.admission import handler_context
from posthouse.bus.results import SubscriptionView
from posthouse.log import get_log
from posthouse.model.envelope import Envelope
from posthouse.model.subjects import ONE, REST, PatternTrie, is_pattern, validate_subject

Handler = Callable[[Envelope], Awaitable[Any] | Any]
Unsubscribe = Callable[[], Awaitable[None]]
_MAX_CACHED_SUBJECTS = 1_024  # subjects remembered: bounds the memory of a bus with many


class Subscription:
    """A handler and the pattern it listens to."""

    __slots__ = ("handler", "is_async", "pattern")

    def __init__(self, pattern: str, handler: Handler) -> None:
        self.pattern = validate_subject(pattern, allow_wildcards=True)
        self.handler = handler
        self.is_async = is_async(handler)


class Subscriptions:
    """All subscriptions of one open Bus."""

    def __init__(self) -> None:
        self._trie: PatternTrie[Subscription] = PatternTrie()
        #: what was found since the last change, by subject
        self._found: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> int:
        """Add a subscription and return the ticket that removes it."""
        self._found.clear()
        return self._trie.add(subscription.pattern, subscription)

    def remove(self, ticket: int) -> None:
        self._found.clear()
        self._trie.remove(ticket)

    def match(self, subject: str) -> list[Subscription]:
        """Return the subscriptions a message with this subject reaches, oldest first."""
        found = self._found.get(subject)
        if found is None:
            if len(self._found) >= _MAX_CACHED_SUBJECTS:
                self._found.clear()
            found = self._found[subject] = self._trie.match(subject)
        return found

    def reach(self, endpoint: str) -> bool:
        """Tell whether any message of the endpoint could reach a subscription."""
        if not is_pattern(endpoint):
            return bool(self._trie.match(endpoint))
        return any(overlaps(endpoint, pattern) for pattern, _ in self._trie.items())

    def views(self) -> list[SubscriptionView]:
        return [SubscriptionView(pattern) for pattern, _ in self._trie.items()]


def is_async(handler: Callable[..., Any]) -> bool:
    """Tell whether calling the handler gives something to await, as far as can be seen."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def overlaps(endpoint: str, pattern: str) -> bool:
    """Tell whether a subject below the endpoint pattern `prefix.>` can match `pattern`."""
    prefix = endpoint.split(".")[:-1]
    tokens = pattern.split(".")
    for want, token in zip(tokens, prefix, strict=False):
        if want == REST:
            return True
        if want not in (ONE, token):
            return False
    return len(tokens) > len(prefix)


Work = Callable[[], None]
_KEPT_IDLE = 8


class HandlerThreads:
    """Runs each piece of work on a thread of its own, at once."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Work | None]] = []
        self._gate = threading.Lock()
        self._is_closed = False

    def run(self, work: Work) -> None:
        """Run `work` on an idle thread or a new one; it must not raise."""
        with self._gate:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="bus handler", daemon=True).start()
        inbox.put(work)

    def close(self) -> None:
        """End idle threads; busy ones end after their work."""
        with self._gate:
            self._is_closed = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()

    def _serve(self, inbox: queue.SimpleQueue[Work | None]) -> None:
        while (work := inbox.get()) is not None:
            work()
            with self._gate:
                if self._is_closed or len(self._idle) >= _KEPT_IDLE:
                    return
                self._idle.append(inbox)


class Deadline:
    """Calls what was last set when its time is over, unless it was cleared before."""

    __slots__ = ("_act", "_at", "_context", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._at = 0.0
        self._act: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, limit_s: float, act: Callable[[], None]) -> None:
        """Call `act` in `limit_s` seconds instead of what was set before."""
        self._at = self._loop.time() + limit_s
        self._act = act
        if self._timer is None:
            self._wait()

    def clear(self) -> None:
        """Call nothing; the timer rings once more for what may be set by then."""
        self._act = None

    def close(self) -> None:
        """Let go of the timer and of whom it would call."""
        self._act = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._at, self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer = None
        if self._act is None:
            return
        if self._loop.time() < self._at:
            self._wait()
            return
        act, self._act = self._act, None
        act()


log = get_log(__name__)


class HandlerRun:
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
            self._reason = failure_reason(failure)
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


def failure_reason(failure: BaseException) -> str:
    """Return what a dead letter says about a handler's exception."""
    try:
        text = str(failure)
    except Exception:  # noqa: BLE001 - a __str__ that raises
        text = ""
    name = type(failure).__name__
    return f"handler failed: {name}: {text}" if text else f"handler failed: {name}"


def _nothing() -> None:
    pass
