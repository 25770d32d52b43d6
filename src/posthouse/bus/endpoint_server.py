"""Serve one endpoint: its messages in order, one at a time, from new/ through cur/ to their end.

Runs only while this process holds the mailbox's serve.lock. All messages enter one FIFO queue: first those left in
cur/ (delivered again), then new/, then new arrivals. Messages of this process come directly from publishing; those
of other processes by inotify. Invariant: a publish that returned before another began is queued before it; if an own
message shows that earlier ids are unknown here, the server looks up their files first. A file that cannot be settled
or started is logged and tried again; it never keeps the other messages waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from posthouse.bus.core import Core
from posthouse.bus.handlers import HandlerRun, HandlerThreads, MessageFailure, Subscriptions
from posthouse.bus.maildir import (
    SPARE_MAX_BYTES,
    Mailbox,
    ServeLock,
    encode_dead_letter,
    remove_invalid,
    write_dead_letter,
)
from posthouse.bus.results import Endpoint
from posthouse.bus.settling import (
    EXPIRED,
    EndMessage,
    FileStatus,
    Settled,
    dead_letter_body,
    decode_for_endpoint,
    is_message_id,
    settle_file,
    write_message_dead_letter,
)
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.budget import is_expired
from posthouse.model.clock import format_utc
from posthouse.model.envelope import Envelope
from posthouse.model.errors import Fatal, PosthouseError, Transient
from posthouse.model.limits import MILLISECOND_NS

log = get_log(__name__)
_SETTLE_BATCH = 256
_QUEUE_LOW = 64
_RETRY_S = 1.0  # after a full disk or an unexpected failure
_MAX_QUEUED_CONTENTS = 1024  # queued messages whose content stays in memory; the files of the others are read


class _File(msgspec.Struct, frozen=True):
    """A file that was seen in new/ or cur/ and is not settled yet."""

    folder: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"


class _Queued(msgspec.Struct, frozen=True):
    """A settled message that waits for its handlers; `data` is None if the file must be read."""

    folder: str
    id: str
    data: bytes | None


class EndpointServer:
    """The server of one endpoint in this process."""

    def __init__(
        self,
        core: Core,
        endpoint: Endpoint,
        lock: ServeLock,
        subscriptions: Subscriptions,
        threads: HandlerThreads,
        on_stopped: Callable[[EndpointServer], None],
    ) -> None:
        self._core = core
        self.endpoint = endpoint
        self._lock = lock
        self._subscriptions = subscriptions
        self._threads = threads
        self._on_stopped = on_stopped
        self._queue: deque[_Queued] = deque()
        self._unsettled: deque[_File] = deque()
        self._settle_batch = _SETTLE_BATCH
        #: names of files that are unsettled, queued or being handled
        self._seen: set[str] = set()
        #: reserved ids whose file did not exist when the server looked for it
        self._reserved_without_file: set[str] = set()
        #: own messages whose inotify event has not arrived yet
        self._expected_own: set[str] = set()
        self._newest = ""
        self._is_settling = False
        self._is_busy = False
        self.is_stopped = False
        self._run: HandlerRun | None = None
        self._rescan: asyncio.TimerHandle | None = None

    @property
    def _mailbox(self) -> Mailbox:
        return self._core.directory.mailbox(self.endpoint.hash)

    # arrivals

    def start(self, last_id: str | None) -> None:
        """Queue the files that exist, cur/ first, then new/; new/ is being watched already."""
        self._newest = last_id or ""
        for folder in ("cur", "new"):
            self._discover(folder, self._mailbox.names(folder))
        self._refill()

    def rescan(self) -> None:
        """Scan new/ again: the safety net, and the answer to lost inotify events."""
        self._expected_own.clear()
        try:
            names = self._mailbox.names("new")
        except (OSError, PosthouseError) as failure:  # damaged or removed: housekeeping scans it again
            log.error("mailbox_not_scanned", subject=self.endpoint.subject, reason=str(failure))
            return
        self._discover("new", names)
        self._refill()

    def rescan_later(self) -> None:
        """Rescan after a short delay, once for all files that failed meanwhile."""
        if self._rescan is None and not self.is_stopped:
            self._rescan = self._core.loop.call_later(_RETRY_S, self._rescan_now, context=self._core.context)

    def _rescan_now(self) -> None:
        self._rescan = None
        if not self.is_stopped:
            self.rescan()

    def on_file(self, name: str) -> bool:
        """Queue a file that appeared in new/; return False for own messages, which come from publishing."""
        if name in self._expected_own:
            self._expected_own.discard(name)
            return False
        if name not in self._seen:
            self._discover("new", [name])
            self._refill()
        return True

    def expect_own(self, id_: str) -> None:
        """Ignore the next inotify event for this id."""
        self._expected_own.add(id_)

    def find_earlier(self, tx: BusTransaction, id_: str, previous_id: str | None) -> list[str]:
        """Settle messages of other processes that were reserved before an own message; return their ids in order."""
        candidates = set(self._reserved_without_file)
        if previous_id is not None and previous_id > self._newest:
            rows: Any = tx.db.execute(SQL.mail_between, (self.endpoint.number, self._newest, id_))
            candidates.update(found for (found,) in rows if found not in self._seen)
        self._newest = max(self._newest, id_)
        return [candidate for candidate in sorted(candidates) if self._settle_earlier(tx, candidate)]

    def _settle_earlier(self, tx: BusTransaction, id_: str) -> bool:
        mailbox, number = self._mailbox, self.endpoint.number
        status = settle_file(tx, self.endpoint, mailbox, "new", id_, self._core.instance.number).status
        if status is FileStatus.READY and mailbox.has(f"new/{id_}"):
            self._reserved_without_file.discard(id_)
            return True
        if tx.db.execute(SQL.mail_state, (number, id_)).get is None:
            self._reserved_without_file.discard(id_)
        else:
            self._reserved_without_file.add(id_)
        return False

    def offer_own(self, earlier: list[str], id_: str, data: bytes) -> None:
        """Queue an own message, after the messages of other processes that come before it."""
        for other in earlier:
            self._enqueue(_Queued("new", other, None))
        self._enqueue(_Queued("new", id_, data if len(self._queue) < _MAX_QUEUED_CONTENTS else None))
        self._pump()

    def _enqueue(self, message: _Queued) -> None:
        if message.id in self._seen:
            return
        self._seen.add(message.id)
        if self._is_settling or self._unsettled:  # files seen before it go first
            self._unsettled.append(_File(message.folder, message.id))
        else:
            self._queue.append(message)

    def _discover(self, folder: str, names: list[str]) -> None:
        for name in names:
            if name not in self._seen:
                self._seen.add(name)
                self._unsettled.append(_File(folder, name))

    def _refill(self) -> None:
        """Settle the next files if the queue runs low."""
        if self._is_settling or self.is_stopped or not self._unsettled or len(self._queue) >= _QUEUE_LOW:
            return
        batch = [self._unsettled.popleft() for _ in range(min(self._settle_batch, len(self._unsettled)))]
        self._is_settling = True
        self._core.ledger.submit(_SettleFiles(self, batch))

    def settle(self, tx: BusTransaction, batch: list[_File]) -> list[Settled]:
        """Settle the files of a batch."""
        mailbox, instance = self._mailbox, self._core.instance.number
        return [settle_file(tx, self.endpoint, mailbox, file.folder, file.name, instance) for file in batch]

    def on_settled(self, batch: list[_File], found: list[Settled]) -> None:
        """Queue the messages of a committed batch and remove the other files."""
        self._is_settling = False
        self._settle_batch = min(_SETTLE_BATCH, self._settle_batch * 2)
        for file, settled in zip(batch, found, strict=True):
            self._reserved_without_file.discard(file.name)
            if settled.status is FileStatus.READY:
                self._queue.append(_Queued(file.folder, file.name, None))
                self._newest = max(self._newest, file.name)
                continue
            self._seen.discard(file.name)
            try:
                self._remove_settled(file, settled)
            except Exception as failure:  # the rest of the batch must be queued whatever happens to one file
                log.error("settled_file_stays", path=file.path, exc_info=failure)
        self._pump()

    def _remove_settled(self, file: _File, settled: Settled) -> None:
        if settled.status is FileStatus.ENDED:
            self._mailbox.remove(file.path)
        elif settled.status is FileStatus.INVALID:
            self._dead_letter_invalid(file, settled.reason)

    def on_settling_failed(self, batch: list[_File], failure: Exception) -> None:
        """Settle the files of a failed batch one by one; leave out a file that fails alone until the next rescan."""
        self._is_settling = False
        if len(batch) > 1:
            self._unsettled.extendleft(reversed(batch))
            self._settle_batch = 1
        else:
            log.error("file_not_settled", path=batch[0].path, exc_info=failure)
            self._seen.discard(batch[0].name)
            self.rescan_later()
        self._refill()

    # handling

    def _pump(self) -> None:
        """Start the next message unless one is being handled."""
        while self._queue and not self._is_busy and not self.is_stopped:
            message = self._queue.popleft()
            try:
                self._start_next(message)
            except Exception as failure:  # one message must not stop the endpoint; a rescan finds it again
                log.error("message_not_started", id=message.id, exc_info=failure)
                self._seen.discard(message.id)
                self.rescan_later()
        self._refill()
        backlogged = self._core.ledger.activity.backlogged
        if self._queue:
            backlogged.add(self.endpoint.number)
            return
        backlogged.discard(self.endpoint.number)
        if not self._is_busy:
            self._core.ledger.commit_soon()

    def _start_next(self, message: _Queued) -> None:
        file = _File(message.folder, message.id)
        try:
            mailbox = self._mailbox
            data = mailbox.read(file.path) if message.data is None else message.data
        except FileNotFoundError:
            self._end_missing(file)
            return
        except OSError as failure:
            self._seen.discard(message.id)
            self._dead_letter_invalid(file, failure.strerror or str(failure))
            return
        envelope, reason = decode_for_endpoint(self.endpoint, message.id, data)
        if envelope is None:
            self._seen.discard(message.id)
            self._dead_letter_invalid(file, reason)
        elif is_expired(envelope.budget, self._core.clock.wall_ns() // MILLISECOND_NS):
            self._dead_letter(file, envelope, data, "bus.dead", MessageFailure(EXPIRED, counts=False))
        else:
            self._handle(mailbox, file, envelope, data)

    def _handle(self, mailbox: Mailbox, file: _File, envelope: Envelope, data: bytes) -> None:
        subscriptions = self._subscriptions.match(envelope.subject)
        if not subscriptions:  # it stays in new/ for read_inbox, or until a handler subscribes
            self._seen.discard(envelope.id)
            return
        if file.folder == "new":
            try:
                mailbox.move(file.path, f"cur/{envelope.id}")
            except FileNotFoundError:
                self._end_missing(file)
                return
        self._is_busy = True
        core = self._core
        core.ledger.activity.steps += 1
        run = self._run = HandlerRun(
            core.loop,
            core.context,
            self._threads,
            envelope,
            core.handler_timeout_s,
            lambda failure: self._on_outcome(envelope, data, failure),
            self._on_run_ended,
        )
        run.start(subscriptions)

    def _on_outcome(self, envelope: Envelope, data: bytes, failure: MessageFailure | None) -> None:
        file = _File("cur", envelope.id)
        if failure is not None:
            self._core.on_handler_failed(envelope, failure.reason)
            self._dead_letter(file, envelope, data, "bus.failed", failure)
            return
        end = EndMessage(
            self._core,
            self.endpoint,
            envelope.id,
            file.path,
            "bus.handled",
            actor=envelope.from_,
            outcome=True,
            is_spare=len(data) <= SPARE_MAX_BYTES,
        )
        self._seen.discard(envelope.id)
        self._core.ledger.defer(end)

    def _on_run_ended(self) -> None:
        self._run = None
        self._is_busy = False
        activity = self._core.ledger.activity
        activity.steps += 1
        if self.is_stopped:
            activity.backlogged.discard(self.endpoint.number)
            self._on_stopped(self)
        else:
            self._pump()

    # dead letters

    def _end_missing(self, file: _File) -> None:
        """End a message whose file another program has removed, so that its row does not stay."""
        self._seen.discard(file.name)
        body = dead_letter_body(self.endpoint, None, file.name, "its file is gone")
        self._core.ledger.defer(
            EndMessage(self._core, self.endpoint, file.name, file.path, "bus.dead", actor=None, body=body)
        )

    def _dead_letter(self, file: _File, envelope: Envelope, data: bytes, record: str, failure: MessageFailure) -> None:
        """Write the dead letter, then end the message; until there is room for the dead letter, the message stays."""
        self._seen.discard(envelope.id)
        core = self._core
        try:
            end = write_message_dead_letter(
                core,
                self.endpoint,
                self._mailbox,
                file.path,
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
                arguments = (file, envelope, data, record, failure)
                core.loop.call_later(_RETRY_S, self._dead_letter, *arguments, context=core.context)
            return
        core.ledger.submit(end)

    def _dead_letter_invalid(self, file: _File, reason: str) -> None:
        """Turn a file that is not a message into a dead letter; a file not named by an id gets one."""
        core, mailbox = self._core, self._mailbox
        id_ = file.name if is_message_id(file.name) else core.ledger.run(lambda tx: tx.next_id())
        text = reason if id_ == file.name else f"stray file {file.name[:80]!r}: {reason}"
        try:
            raw = remove_invalid(mailbox, file.path, id_)
            dead_letter = encode_dead_letter(None, text, format_utc(core.clock.wall_ns()), raw)
            write_dead_letter(mailbox, id_, core.instance.name, dead_letter)
        except FileNotFoundError:
            return
        except OSError as failure:
            log.error("stray_file_stays", path=str(mailbox.path / file.folder), reason=str(failure))
            return
        body = dead_letter_body(self.endpoint, None, id_, text)
        core.ledger.submit(
            EndMessage(core, self.endpoint, id_, file.path, "bus.dead", actor=None, body=body, needs_row=False)
        )

    # stopping

    def forget_acked(self, id_: str) -> bool:
        """Remove an acknowledged message from the queue; return False if it is being handled."""
        if self._mailbox.has(f"cur/{id_}"):
            return False
        self._queue = deque(message for message in self._queue if message.id != id_)
        self._seen.discard(id_)
        return True

    def stop(self) -> bool:
        """Start no more messages; return True if none is being handled."""
        self.is_stopped = True
        return not self._is_busy

    def cancel(self) -> None:
        """Cancel the running handlers; their message stays in cur/."""
        if self._run is not None:
            self._run.cancel()

    def release(self) -> None:
        """Free the serve lock."""
        if self._rescan is not None:
            self._rescan.cancel()
        self._lock.close()


class _SettleFiles:
    """Ledger operation: settle files of other processes and of former servers."""

    __slots__ = ("_batch", "_found", "_server")

    def __init__(self, server: EndpointServer, batch: list[_File]) -> None:
        self._server = server
        self._batch = batch
        self._found: list[Settled] = []

    def apply(self, tx: BusTransaction) -> None:
        if not self._server.is_stopped:
            self._found = self._server.settle(tx, self._batch)

    def on_committed(self) -> None:
        if not self._server.is_stopped:
            self._server.on_settled(self._batch, self._found)

    def on_failed(self, failure: Exception) -> bool:
        if self._server.is_stopped or isinstance(failure, Fatal):
            return False
        if isinstance(failure, Transient):
            return True
        self._server.on_settling_failed(self._batch, failure)
        return False
