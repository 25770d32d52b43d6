"""Serve one endpoint: start its messages in order, from new/ through cur/ to their end.

Runs only while this process has its row in `servers`. Without a group it is the only server of the endpoint and owns
the whole mailbox; with a concurrency of 1, each message starts when the previous one has ended. The processes of a
group share the mailbox: each claims a message in bus.db before it starts it, so that no two start the same one. A
message that cannot be started is logged and tried again; it never keeps the other messages waiting.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from posthouse.bus import settling
from posthouse.bus.arrivals import RETRY_S, Arrivals, Queued
from posthouse.bus.core import Core
from posthouse.bus.handlers import HandlerRun, HandlerThreads, MessageFailure, ServeMode, Subscriptions
from posthouse.bus.maildir import SPARE_MAX_BYTES, Mailbox, encode_dead_letter, remove_invalid, write_dead_letter
from posthouse.bus.redelivery import announce_again, exhausted_reason
from posthouse.bus.results import Endpoint
from posthouse.bus.running import Deadlines, RunGate
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.budget import is_expired
from posthouse.model.clock import format_utc
from posthouse.model.envelope import Envelope
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.subjects import REPLIES
from posthouse.model.ulid import RANDOM_BYTES, next_ulid

log = get_log(__name__)
_CLAIMS_TRIED = 256  # messages that one transaction looks at: most of them may be claimed by other processes


class EndpointServer:
    """The server of one endpoint in this process."""

    def __init__(
        self,
        core: Core,
        endpoint: Endpoint,
        mode: ServeMode,
        subscriptions: Subscriptions,
        threads: HandlerThreads,
        deadlines: Deadlines,
        gate: RunGate,
        on_stopped: Callable[[EndpointServer], None],
    ) -> None:
        self._core = core
        self.endpoint = endpoint
        self.mode = mode
        self._subscriptions = subscriptions
        self._threads = threads
        self._deadlines = deadlines
        self._gate = None if endpoint.subject.startswith(REPLIES) else gate
        self._on_stopped = on_stopped
        self.arrivals = Arrivals(core, endpoint, self._pump, self._dead_letter_invalid)
        #: messages that this process of a group has claimed and not started
        self._claimed: deque[Queued] = deque()
        self._is_claiming = False
        #: by message id, until the last handler has returned
        self._runs: dict[str, HandlerRun] = {}
        #: ids of messages that went back to new/ when the server stopped
        self._given_back: list[str] = []
        self.is_stopped = False

    @property
    def _mailbox(self) -> Mailbox:
        return self._core.directory.mailbox(self.endpoint.hash)

    # starting messages

    def _pump(self) -> None:
        """Start the next messages as far as the concurrency allows."""
        ready = self._claimed if self.mode.group else self.arrivals.queue
        while ready and len(self._runs) < self.mode.concurrency and not self.is_stopped:
            if not self._may_start(ready[0]):
                break
            message = ready.popleft()
            count = len(self._runs)
            try:
                self._start_next(message)
            except Exception as failure:  # one message must not stop the endpoint; a rescan finds it again
                log.error("message_not_started", id=message.id, exc_info=failure)
                self.arrivals.forget(message.id)
                self.arrivals.rescan_later()
            if len(self._runs) == count and self._gate is not None:
                self._gate.leave()
        if self.mode.group:
            self._claim_more()
        self.arrivals.refill()
        self._report_backlog()

    def _may_start(self, message: Queued) -> bool:
        if self._gate is None:
            return True
        return self._gate.enter(self._pump, alone=0 < message.attempts == self._core.max_attempts - 1)

    def _report_backlog(self) -> None:
        backlogged = self._core.ledger.activity.backlogged
        if self.arrivals.queue:
            backlogged.add(self.endpoint.number)
            return
        backlogged.discard(self.endpoint.number)
        if not self._runs:
            self._core.ledger.commit_soon()

    def _claim_more(self) -> None:
        free = self.mode.concurrency - len(self._runs) - len(self._claimed)
        if free > 0 and self.arrivals.queue and not self._is_claiming and not self.is_stopped:
            self._is_claiming = True
            tried = [self.arrivals.queue.popleft() for _ in range(min(_CLAIMS_TRIED, len(self.arrivals.queue)))]
            self._core.ledger.submit(_ClaimMessages(self, tried, free, self._core.instance.number))

    def on_claimed(self, claimed: list[Queued], taken: list[Queued], untried: list[Queued]) -> None:
        """Start the messages that this process has claimed; other processes work on those in `taken`."""
        self._is_claiming = False
        self.arrivals.queue.extendleft(reversed(untried))
        for message in taken:
            self.arrivals.forget(message.id)
        self._claimed += claimed
        self._pump()

    def on_claiming_failed(self, tried: list[Queued]) -> None:
        """Find the messages again after a rescan."""
        self._is_claiming = False
        for message in tried:
            self.arrivals.forget(message.id)
        self.arrivals.rescan_later()

    def _start_next(self, message: Queued) -> None:
        path = f"new/{message.id}"
        try:
            if message.data is None:
                mailbox = self._mailbox
                data = mailbox.read(path)
            else:  # this process has just stored it
                mailbox, data = self._core.directory.recent_mailbox(self.endpoint.hash), message.data
        except FileNotFoundError:
            self._end_missing(message.id)
            return
        except OSError as failure:
            self._dead_letter_invalid(message.id, failure.strerror or str(failure))
            return
        envelope, reason = settling.decode_for_endpoint(self.endpoint, message.id, data)
        if envelope is None:
            self._dead_letter_invalid(message.id, reason)
        elif is_expired(envelope.budget, self._core.clock.wall_ns() // MILLISECOND_NS):
            self._dead_letter(path, envelope, data, "bus.dead", MessageFailure(settling.EXPIRED, counts=False))
        elif 0 < message.attempts >= self._core.max_attempts:
            buried = MessageFailure(exhausted_reason(self._core.max_attempts), counts=False)
            self._core.on_handler_failed(envelope, buried.reason)
            self._dead_letter(path, envelope, data, "bus.dead", buried)
        else:
            self._handle(mailbox, path, envelope, data)

    def _handle(self, mailbox: Mailbox, path: str, envelope: Envelope, data: bytes) -> None:
        subscriptions = self._subscriptions.match(envelope.subject)
        if not subscriptions:  # it stays in new/ for read_inbox, or until a handler subscribes
            self.arrivals.forget(envelope.id)
            if self.mode.group:
                self._core.ledger.defer(_Unclaim(self.endpoint.number, envelope.id))
            return
        try:
            mailbox.move(path, f"cur/{envelope.id}")
        except FileNotFoundError:
            self._end_missing(envelope.id)
            return
        core = self._core
        core.ledger.activity.steps += 1
        run = self._runs[envelope.id] = HandlerRun(
            core.loop,
            core.context,
            self._threads,
            self._deadlines,
            envelope,
            core.handler_timeout_s,
            lambda failure: self._on_outcome(envelope, data, failure),
            lambda: self._on_run_ended(envelope.id),
        )
        run.start(subscriptions)

    # ends

    def _on_outcome(self, envelope: Envelope, data: bytes, failure: MessageFailure | None) -> None:
        path = f"cur/{envelope.id}"
        if failure is not None:
            self._core.on_handler_failed(envelope, failure.reason)
            self._dead_letter(path, envelope, data, "bus.failed", failure)
            return
        end = settling.EndMessage(
            self._core,
            self.endpoint,
            envelope.id,
            path,
            "bus.handled",
            actor=envelope.from_,
            outcome=True,
            is_spare=len(data) <= SPARE_MAX_BYTES,
        )
        self.arrivals.forget(envelope.id)
        self._core.ledger.defer(end)

    def _on_run_ended(self, id_: str) -> None:
        del self._runs[id_]
        activity = self._core.ledger.activity
        activity.steps += 1
        if self._gate is not None:
            self._gate.leave()
        if not self.is_stopped:
            self._pump()
        elif not self._runs:
            activity.backlogged.discard(self.endpoint.number)
            self._on_stopped(self)

    def _end_missing(self, id_: str) -> None:
        """End a message whose file another program has removed, so that its row does not stay."""
        self.arrivals.forget(id_)
        body = settling.dead_letter_body(self.endpoint, None, id_, "its file is gone")
        self._core.ledger.defer(
            settling.EndMessage(self._core, self.endpoint, id_, f"new/{id_}", "bus.dead", actor=None, body=body)
        )

    def _dead_letter(self, path: str, envelope: Envelope, data: bytes, record: str, failure: MessageFailure) -> None:
        """Write the dead letter, then end the message; until there is room for the dead letter, the message stays."""
        self.arrivals.forget(envelope.id)
        core = self._core
        try:
            end = settling.write_message_dead_letter(
                core,
                self.endpoint,
                self._mailbox,
                path,
                envelope,
                data,
                failure.reason,
                record=record,
                outcome=False if failure.counts else None,
                raised=failure.raised,
            )
        except OSError as fault:
            log.error("dead_letter_unwritable", id=envelope.id, reason=str(fault))
            if not self.is_stopped:
                arguments = (path, envelope, data, record, failure)
                core.loop.call_later(RETRY_S, self._dead_letter, *arguments, context=core.context)
            return
        core.ledger.submit(end)

    def _dead_letter_invalid(self, name: str, reason: str) -> None:
        """Turn a file of new/ that is not a message into a dead letter; a file not named by an id gets one."""
        core, mailbox, path = self._core, self._mailbox, f"new/{name}"
        self.arrivals.forget(name)
        id_ = name if settling.is_message_id(name) else _letter_id(core)
        text = reason if id_ == name else f"stray file {name[:80]!r}: {reason}"
        try:
            raw = remove_invalid(mailbox, path, id_)
            dead_letter = encode_dead_letter(None, text, format_utc(core.clock.wall_ns()), raw)
            write_dead_letter(mailbox, id_, core.instance.name, dead_letter)
        except FileNotFoundError:
            return
        except OSError as failure:
            log.error("stray_file_stays", path=str(mailbox.path / "new"), reason=str(failure))
            return
        body = settling.dead_letter_body(self.endpoint, None, id_, text)
        end = settling.EndMessage(
            core,
            self.endpoint,
            id_,
            path,
            "bus.dead",
            actor=None,
            body=body,
            needs_row=False,
            letter_bytes=len(dead_letter),
        )
        core.ledger.submit(end)

    # stopping

    def forget_acked(self, id_: str) -> bool:
        """Remove an acknowledged message from the queue; return False if it is being handled."""
        if id_ in self._runs or any(message.id == id_ for message in self._claimed):
            return False
        self.arrivals.withdraw(id_)
        return True

    def stop(self) -> bool:
        """Stop starting messages; return True if none is being handled."""
        self.is_stopped = True
        self.arrivals.stop()
        if self._gate is not None:
            self._gate.forget(self._pump)
        return not self._runs

    def cancel(self) -> None:
        """Cancel the running handlers; `give_back` returns their messages to new/."""
        for run in self._runs.values():
            run.cancel()
            if self._gate is not None:
                self._gate.leave()

    def give_back(self) -> None:
        """Return unfinished messages to new/ before this process gives up its row: no attempt is counted."""
        mailbox = self._core.directory.find_mailbox(self.endpoint.hash)
        if mailbox is None:
            return
        for id_ in self._runs:
            try:
                mailbox.move(f"cur/{id_}", f"new/{id_}")
            except OSError:  # it has ended; if not, it is delivered again like a message of a dead process
                continue
        self._given_back += [*self._runs, *(message.id for message in self._claimed)]
        self._runs.clear()
        self._claimed.clear()

    def announce_given_back(self) -> None:
        """Show the other processes of the group the messages that this one has returned."""
        mailbox = self._core.directory.find_mailbox(self.endpoint.hash)
        for id_ in self._given_back if mailbox is not None else ():
            announce_again(mailbox, id_)  # type: ignore[arg-type]


def _letter_id(core: Core) -> str:
    """Return an id for the dead letter of a file that has none; it is not a message, so its id need not be in order."""
    return next_ulid(None, core.clock.wall_ns() // MILLISECOND_NS, os.urandom(RANDOM_BYTES))


class _ClaimMessages:
    """Ledger operation: claim up to `count` messages for this process of a group."""

    __slots__ = ("_claimed", "_count", "_instance", "_server", "_taken", "_tried", "_untried")

    def __init__(self, server: EndpointServer, tried: list[Queued], count: int, instance: int) -> None:
        self._server = server
        self._tried = tried
        self._count = count
        self._instance = instance
        self._claimed: list[Queued] = []
        self._taken: list[Queued] = []
        self._untried: list[Queued] = []

    def apply(self, tx: BusTransaction) -> None:
        self._claimed, self._taken, self._untried = [], [], []
        number = self._server.endpoint.number
        for position, message in enumerate(self._tried):
            if len(self._claimed) == self._count or self._server.is_stopped:
                self._untried = self._tried[position:]
                return
            attempts = tx.claim(number, message.id, self._instance)
            if attempts is None:
                self._taken.append(message)
            else:
                self._claimed.append(Queued(message.id, message.data, attempts))

    def on_committed(self) -> None:
        self._server.on_claimed(self._claimed, self._taken, self._untried)

    def on_failed(self, failure: Exception) -> bool:
        self._server.on_claiming_failed(self._tried)
        return False


class _Unclaim:
    """Ledger operation: leave a message in new/ that no handler of this process matches."""

    __slots__ = ("_id", "_number")

    def __init__(self, number: int, id_: str) -> None:
        self._number = number
        self._id = id_

    def apply(self, tx: BusTransaction) -> None:
        tx.db.execute(SQL.unclaim_mail, (self._number, self._id))

    def on_committed(self) -> None:
        """Do nothing: the file is where it was."""

    def on_failed(self, _failure: Exception) -> bool:
        return True
