"""The handlers running in this process: message and deadline of each, which may run now, and what publishes inherit.

A context variable holds the running handler; its tasks and its calls from threads inherit it. A publish inherits the
budgets of its causes (the message being handled and the one that the publisher names), with the narrowest value of each
field, so that no chain of messages gains by naming another message. The same causes decide whether a publish is a
return (posthouse.model.budget has the rule).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, NamedTuple, Protocol

import apsw
import msgspec

from posthouse.bus.core import Core
from posthouse.bus.data_directory import endpoint_hash
from posthouse.bus.transaction import SQL
from posthouse.model.budget import Budget, BudgetCeiling, effective_budget, find_answered
from posthouse.model.envelope import Envelope, decode_envelope
from posthouse.model.errors import error
from posthouse.model.limits import INT64_MAX
from posthouse.model.ulid import validate_ulid


class RunningHandler(NamedTuple):
    """The handler that runs in a context."""

    #: the message that it handles
    envelope: Envelope
    #: loop time of its deadline
    deadline_s: float


#: None outside handlers
RUNNING: ContextVar[RunningHandler | None] = ContextVar("posthouse_bus_handler", default=None)
_UNLIMITED = BudgetCeiling(max_hops=INT64_MAX, ttl_ms=INT64_MAX, call_budget=INT64_MAX)


class PublishedBody(msgspec.Struct):
    """The part of a bus.published record that readers of messages need."""

    envelope: Envelope


decode_published = msgspec.json.Decoder(PublishedBody).decode


def clean_context() -> Context:
    """Return a copy of the current context in which no message is being handled."""
    context = copy_context()
    context.run(RUNNING.set, None)
    return context


def handler_context(base: Context, envelope: Envelope, deadline_s: float) -> Context:
    """Return the context in which a handler of the message runs."""
    context = base.copy()
    context.run(RUNNING.set, RunningHandler(envelope, deadline_s))
    return context


class TimedCall(Protocol):
    """A running handler with its time limit."""

    #: loop time at which `on_due` is called
    due_s: float

    def on_due(self) -> None:
        """Warn about the handler, or time it out; it may have returned a moment ago."""


class Deadlines:
    """The time limits of the running handlers of one open Bus, kept with one timer for all of them.

    Nearly every handler returns long before its limit, so a separate timer for each would hardly ever fire.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._calls: set[TimedCall] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    def add(self, call: TimedCall) -> None:
        """Call `on_due` when the call is due, unless it is removed before."""
        self._calls.add(call)
        if call.due_s < self._timer_s:
            self._set_timer(call.due_s)

    def remove(self, call: TimedCall) -> None:
        self._calls.discard(call)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, at_s: float) -> None:
        self.close()
        self._timer_s = at_s
        self._timer = self._loop.call_at(at_s, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer, due_s, self._timer_s = None, self._timer_s, math.inf
        for call in [call for call in self._calls if call.due_s <= due_s]:
            self._calls.discard(call)
            self._loop.call_soon(call.on_due, context=self._context)
        if self._calls:
            self._set_timer(min(call.due_s for call in self._calls))


class RunGate:
    """Makes sure that a message on its last attempt runs alone in this process.

    While a handler waits for work that another handler of this process may have to do, the gate lets messages pass;
    otherwise both would wait until they time out.
    """

    def __init__(self) -> None:
        self._running = 0
        self._is_alone = False
        #: handlers that wait for a reply or for room in a mailbox
        self._dependent = 0
        #: servers that wait, in order; True if the server has to run alone
        self._waiting: dict[Callable[[], None], bool] = {}

    def enter(self, resume: Callable[[], None], *, alone: bool) -> bool:
        """Count a run and return True, or return False and call `resume` when another try may succeed."""
        first = resume
        if self._waiting:
            first = next((server for server, needs_own_run in self._waiting.items() if needs_own_run), resume)
        if alone:
            has_to_wait = bool(self._running) or first != resume
        else:
            has_to_wait = (self._is_alone or first != resume) and not self._dependent
        if has_to_wait:
            self._waiting[resume] = alone
            return False
        if self._waiting:
            self._waiting.pop(resume, None)
        self._running += 1
        self._is_alone |= alone
        return True

    def leave(self) -> None:
        """Count the end of a run."""
        self._running -= 1
        if not self._running:
            self._is_alone = False
            if self._waiting:
                self._wake()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let messages pass while the running handler waits for other handlers; in plain code this does nothing."""
        if RUNNING.get() is None:
            yield
            return
        self._dependent += 1
        try:
            self._wake()
            yield
        finally:
            self._dependent -= 1

    def forget(self, resume: Callable[[], None]) -> None:
        """Remove a server that stops."""
        if self._waiting.pop(resume, False) and not self._running:
            self._wake()

    def _wake(self) -> None:
        """Resume the servers, first those that have to run alone."""
        if not self._waiting:
            return
        waiting = sorted(self._waiting, key=lambda resume: not self._waiting[resume])
        for resume in waiting:
            resume()


class Inheritance(NamedTuple):
    """The part of a publish that it inherits from the messages that caused it."""

    budget: Budget | None = None
    #: the message that the publish answers as a return
    in_reply_to: str | None = None


_NOTHING = Inheritance()


def inherit_running(subject: str) -> Inheritance:
    """Return the inheritance of a publish from the message being handled."""
    running = RUNNING.get()
    return _NOTHING if running is None else _inherit_from((running.envelope,), subject)


async def inherit_named(core: Core, subject: str, from_: str, named_id: str) -> Inheritance:
    """Return the inheritance of a publish from the message that the publisher names and from the one being handled."""
    running = RUNNING.get()
    named = await find_message(core, named_id, from_)
    return _inherit_from(named if running is None else (*named, running.envelope), subject)


def _inherit_from(causes: Sequence[Envelope], subject: str) -> Inheritance:
    budget: Budget | None = None
    for envelope in causes:  # the narrowest: a false claim gains nothing
        budget = envelope.budget if budget is None else effective_budget(_UNLIMITED, 0, budget, envelope.budget)
    answered = find_answered(subject, [envelope.as_cause for envelope in causes])
    return Inheritance(budget, None if answered is None else answered.id)


async def find_message(core: Core, message_id: str, replier: str) -> Sequence[Envelope]:
    """Return the copy of a stored message that the replier received; if it received none, all copies."""
    validate_ulid(message_id)
    await core.ledger.flush()
    copies = _copies_in_mailbox(core, message_id, replier)
    if not copies:
        copies = await core.store.pool.run(lambda db: _copies_in_journal(db, message_id))
    if not copies:
        raise error("message_unknown", id=message_id)
    return [envelope for envelope in copies if envelope.subject == replier] or copies


def _copies_in_journal(db: apsw.Connection, message_id: str) -> list[Envelope]:
    rows: Any = db.execute(SQL.published, (message_id,))
    return [decode_published(body.encode()).envelope for (body,) in rows]


def _copies_in_mailbox(core: Core, message_id: str, replier: str) -> list[Envelope]:
    mailbox = core.directory.find_mailbox(endpoint_hash(replier))
    if mailbox is None:
        return []
    for folder in ("new", "cur"):
        try:
            return [decode_envelope(mailbox.read(f"{folder}/{message_id}"))]
        except FileNotFoundError:
            continue
    return []
