"""Subscriptions of this process, and running the handlers of one message concurrently, each within its time limit.

Async handlers are tasks on the loop; sync handlers run in daemon threads (one per blocked handler, reused when idle, so
that hanging handlers cannot starve other endpoints). Both see the message's budget and their own deadline in their
context. The outcome is known when each handler has returned or has run out of time. After a timeout the run still
reports when the last handler returns: until then the endpoint starts no other message. The exception of a handler is
logged with its traceback. If the bus refuses a handler's publish, that says nothing about the endpoint, so the breaker
does not count it.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

import msgspec

from posthouse.bus.maildir import clean_text
from posthouse.bus.options import check_handler, check_positive
from posthouse.bus.results import SubscriptionView
from posthouse.bus.running import Deadlines, handler_context
from posthouse.log import get_log
from posthouse.model.envelope import Envelope, HandlerError
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SLOW_AFTER_S
from posthouse.model.subjects import ONE, REPLIES, REST, PatternTrie, is_pattern, matches, validate_subject

log = get_log(__name__)
Handler = Callable[[Envelope], Awaitable[Any] | Any]
Unsubscribe = Callable[[], Coroutine[Any, Any, None]]
MAX_CONCURRENCY = 1_000  # asking for more handlers at once than this is a mistake
_MAX_CACHED_SUBJECTS = 1_024  # bounds the memory of a bus with many subjects


class ServeMode(msgspec.Struct, frozen=True):
    """How this process serves an endpoint."""

    #: the processes that share the endpoint; "" if one process serves it alone
    group: str = ""
    #: how many of its messages this process handles at the same time
    concurrency: int = 1


class Subscription:
    """A handler, the pattern it subscribes to, its own time limit, and how the endpoints it reaches are served."""

    __slots__ = ("handler", "is_async", "mode", "pattern", "timeout_s")

    def __init__(
        self,
        pattern: str,
        handler: Handler,
        timeout_s: float | None = None,
        concurrency: int = 1,
        group: str | None = None,
    ) -> None:
        self.pattern = validate_subject(pattern, allow_wildcards=True)
        check_handler("handler", handler)
        self.handler = handler
        self.is_async = is_async(handler)
        check_positive("handler_timeout_s", timeout_s)
        self.timeout_s = timeout_s
        if type(concurrency) is not int or not 1 <= concurrency <= MAX_CONCURRENCY:
            reason = f"{concurrency!r} is not a number from 1 to {MAX_CONCURRENCY}"
            raise error("value_invalid", name="concurrency", reason=reason)
        if group is not None and (type(group) is not str or not group):
            raise error("value_invalid", name="group", reason="it is not a string, or is empty")
        self.mode = ServeMode(group or "", concurrency)


class Subscriptions:
    """All subscriptions of one open Bus."""

    def __init__(self) -> None:
        self._trie: PatternTrie[Subscription] = PatternTrie()
        #: results of `match` since the last change, by subject
        self._matched: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> int:
        """Add a subscription and return the ticket that removes it."""
        self._matched.clear()
        return self._trie.add(subscription.pattern, subscription)

    def remove(self, ticket: int) -> None:
        self._matched.clear()
        self._trie.remove(ticket)

    def match(self, subject: str) -> list[Subscription]:
        """Return the subscriptions that a message with this subject reaches, oldest first."""
        found = self._matched.get(subject)
        if found is None:
            if len(self._matched) >= _MAX_CACHED_SUBJECTS:
                self._matched.clear()
            found = self._matched[subject] = self._trie.match(subject)
        return found

    def serve_mode(self, endpoint: str) -> ServeMode | None:
        """Return how to serve an endpoint, or None if its messages can reach no subscription.

        Subscriptions that differ in their concurrency get the smallest, so that none loses the order it asked for.
        """
        if is_pattern(endpoint):
            found = [subscription for pattern, subscription in self._trie.items() if overlaps(endpoint, pattern)]
        else:
            found = self._trie.match(endpoint)
        if not found:
            return None
        if endpoint.startswith(REPLIES):  # replies belong to one process, whatever group a pattern such as `>` asks for
            return ServeMode()
        groups = {subscription.mode.group for subscription in found}
        if len(groups) > 1:
            raise group_conflict(endpoint, *sorted(groups)[:2])
        return ServeMode(groups.pop(), min(subscription.mode.concurrency for subscription in found))

    def views(self) -> list[SubscriptionView]:
        return [SubscriptionView(pattern) for pattern, _ in self._trie.items()]


def group_conflict(endpoint: str, first: str, second: str) -> PosthouseError:
    """Return the error for an endpoint that is served in two ways."""
    names = [f"as the group {name!r}" if name else "without a group" for name in (first, second)]
    return error("endpoint_group_conflict", subject=endpoint, first=names[0], second=names[1])


def is_async(handler: Callable[..., Any]) -> bool:
    """Return True if the handler is a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def is_reached(endpoint: str, pattern: str) -> bool:
    """Return True if a message of the endpoint can match the pattern of a subscription."""
    return overlaps(endpoint, pattern) if is_pattern(endpoint) else matches(endpoint, pattern)


def overlaps(endpoint: str, pattern: str) -> bool:
    """Return True if a subject below the endpoint pattern `prefix.>` can match `pattern`."""
    prefix = endpoint.split(".")[:-1]
    tokens = pattern.split(".")
    for expected, token in zip(tokens, prefix, strict=False):
        if expected == REST:
            return True
        if expected not in (ONE, token):
            return False
    return len(tokens) > len(prefix)


Work = Callable[[], None]
_MAX_IDLE_THREADS = 8


class HandlerThreads:
    """Runs each sync handler on its own thread, without queueing."""

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
                if self._is_closed or len(self._idle) >= _MAX_IDLE_THREADS:
                    return
                self._idle.append(inbox)


class MessageFailure(msgspec.Struct, frozen=True):
    """Why a message ends as a dead letter."""

    reason: str
    #: the exception, if a handler raised
    raised: HandlerError | None = None
    #: the endpoint has failed, and its breaker counts that
    counts: bool = True


class _Call:
    """One handler of a message, until it has returned."""

    __slots__ = ("deadline_s", "due_s", "is_late", "run", "task", "timeout_s")

    def __init__(self, run: HandlerRun, timeout_s: float, now_s: float) -> None:
        self.run = run
        self.timeout_s = timeout_s
        #: loop time of its deadline
        self.deadline_s = now_s + timeout_s
        #: loop time of its warning, then of its deadline
        self.due_s = self.deadline_s if timeout_s <= SLOW_AFTER_S else now_s + SLOW_AFTER_S
        self.task: asyncio.Task[Any] | None = None
        #: True: it has passed its deadline and has not returned
        self.is_late = False

    def on_due(self) -> None:
        self.run.on_due(self)

    def cancel_task(self) -> None:
        if self.task is not None:
            self.task.cancel()


class HandlerRun:
    """The handlers of one message, from their start to the return of the last."""

    __slots__ = (
        "_base_context",
        "_calls",
        "_deadlines",
        "_envelope",
        "_failure",
        "_is_slow",
        "_loop",
        "_on_ended",
        "_on_outcome",
        "_threads",
        "_timeout_s",
        "_undecided",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        base_context: Context,
        threads: HandlerThreads,
        deadlines: Deadlines,
        envelope: Envelope,
        timeout_s: float,
        on_outcome: Callable[[MessageFailure | None], None],
        on_ended: Callable[[], None],
    ) -> None:
        """`on_outcome` gets the failure, or None; `on_ended` follows when the last handler has returned.

        `timeout_s` is the limit for handlers without one.
        """
        self._loop = loop
        self._base_context = base_context
        self._threads = threads
        self._deadlines = deadlines
        self._envelope = envelope
        self._timeout_s = timeout_s
        self._on_outcome: Callable[[MessageFailure | None], None] | None = on_outcome
        self._on_ended: Callable[[], None] | None = on_ended
        #: handlers that have not returned
        self._calls: set[_Call] = set()
        #: how many of them have not passed their deadline
        self._undecided = 0
        self._is_slow = False
        self._failure: MessageFailure | None = None

    def start(self, subscriptions: list[Subscription]) -> None:
        """Start every handler; one that cannot be started counts as failed, so that the run always ends."""
        now_s = self._loop.time()
        calls = [_Call(self, subscription.timeout_s or self._timeout_s, now_s) for subscription in subscriptions]
        self._calls.update(calls)
        self._undecided = len(calls)
        for call, subscription in zip(calls, subscriptions, strict=True):
            self._deadlines.add(call)
            try:
                self._start_handler(call, subscription)
            except Exception as failure:  # noqa: BLE001 - a handler without a parameter, no thread left, no coroutine
                self._loop.call_soon(self._on_handler_done, call, failure, context=self._base_context)

    def cancel(self) -> None:
        """Cancel the async handlers and report nothing; the message stays in cur/."""
        self._on_outcome = None
        self._on_ended = None
        for call in self._calls:
            self._deadlines.remove(call)
            call.cancel_task()

    def _start_handler(self, call: _Call, subscription: Subscription) -> None:
        context = handler_context(self._base_context, self._envelope, call.deadline_s)
        if subscription.is_async:
            self._await(call, subscription.handler(self._envelope), context)
        else:
            self._start_thread(call, subscription, context)

    def _await(self, call: _Call, coroutine: Any, context: Context) -> None:
        call.task = self._loop.create_task(coroutine, context=context)
        call.task.add_done_callback(partial(self._on_task_done, call), context=self._base_context)
        if call.is_late:
            call.task.cancel()

    def _start_thread(self, call: _Call, subscription: Subscription, context: Context) -> None:
        def work() -> None:
            result, failure = None, None
            try:
                result = context.run(subscription.handler, self._envelope)
            except BaseException as raised:  # noqa: BLE001 - a handler may raise anything; it counts as failed
                failure = raised
            done = (call, result, failure, context)
            try:
                self._loop.call_soon_threadsafe(self._on_thread_done, *done, context=self._base_context)
            except RuntimeError:
                log.debug("handler_outlived_its_loop", id=self._envelope.id)

        self._threads.run(work)

    def _on_thread_done(self, call: _Call, result: Any, failure: BaseException | None, context: Context) -> None:
        if failure is None and inspect.iscoroutine(result):  # a plain function that returns a coroutine
            self._await(call, result, context)
        else:
            self._on_handler_done(call, failure)

    def _on_task_done(self, call: _Call, task: asyncio.Task[Any]) -> None:
        self._on_handler_done(call, asyncio.CancelledError() if task.cancelled() else task.exception())

    def _on_handler_done(self, call: _Call, failure: BaseException | None) -> None:
        self._deadlines.remove(call)
        self._calls.discard(call)
        if failure is not None and not (call.is_late and isinstance(failure, asyncio.CancelledError)):
            self._on_handler_failed(failure)
        if not call.is_late:
            self._decide()
        if not self._calls and self._on_ended is not None:
            self._on_ended()

    def _on_handler_failed(self, failure: BaseException) -> None:
        """Log the exception; the dead letter keeps the first one that counts for the breaker."""
        described = describe_failure(failure)
        if described.counts:  # the refusal of a publish is logged once per sender and minute
            trace = "".join(traceback.format_exception(failure)).rstrip()
            log.error("handler_failed", id=self._envelope.id, subject=self._envelope.subject, exception=trace)
        if self._failure is None or (described.counts and not self._failure.counts):
            self._failure = described

    def on_due(self, call: _Call) -> None:
        """Warn about a slow handler, or time it out; it may have returned meanwhile."""
        if call not in self._calls:
            return
        if call.due_s < call.deadline_s:
            self._warn_slow(call)
            call.due_s = call.deadline_s
            self._deadlines.add(call)
        else:
            self._on_timeout(call)

    def _warn_slow(self, call: _Call) -> None:
        """Warn once for each message, so that a hanging handler shows in the log long before its time limit."""
        if not self._is_slow:
            self._is_slow = True
            fields = {"id": self._envelope.id, "subject": self._envelope.subject, "timeout_s": call.timeout_s}
            log.warning("handler_is_slow", after_s=SLOW_AFTER_S, **fields)

    def _on_timeout(self, call: _Call) -> None:
        call.is_late = True
        if self._failure is None or not self._failure.counts:
            self._failure = MessageFailure(f"handler exceeded {call.timeout_s:g} s")
        call.cancel_task()
        self._decide()

    def _decide(self) -> None:
        """Report the outcome once every handler has returned or has run out of time."""
        self._undecided -= 1
        if not self._undecided and self._on_outcome is not None:
            report, self._on_outcome = self._on_outcome, None
            report(self._failure)


class UnwantedMessage(Exception):
    """Raised by handlers of the bus itself: the message becomes a dead letter, but its endpoint has not failed."""


_MAX_FRAMES = 8
_MAX_ERROR_CHARS = 4_096  # per text, so that a dead letter stays readable whatever an exception carries
_REFUSED_CODES = {"publish_refused", "request_undelivered"}


def describe_failure(failure: BaseException) -> MessageFailure:
    """Return the part of a handler's exception that a dead letter keeps."""
    if isinstance(failure, UnwantedMessage):
        return MessageFailure(str(failure), counts=False)
    try:
        text = str(failure)[:_MAX_ERROR_CHARS]
    except Exception:  # noqa: BLE001 - a __str__ that raises
        text = ""
    kind = type(failure)
    reason = f"handler failed: {kind.__name__}: {text}" if text else f"handler failed: {kind.__name__}"
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raised = HandlerError(clean_text(name), clean_text(text), _innermost_frames(failure))
    return MessageFailure(reason, raised, counts=not _is_refused_publish(failure))


def _is_refused_publish(failure: BaseException) -> bool:
    """Return True if the handler failed only because the bus refused its publish."""
    if isinstance(failure, BaseExceptionGroup):
        return all(_is_refused_publish(inner) for inner in failure.exceptions)
    return isinstance(failure, PosthouseError) and failure.code in _REFUSED_CODES


def _innermost_frames(failure: BaseException) -> tuple[str, ...]:
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if frame.filename != __file__]
    return tuple(
        clean_text(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"[:_MAX_ERROR_CHARS])
        for frame in frames[-_MAX_FRAMES:]
    )
