"""Serve one endpoint: its messages in order, one at a time, from new/ through cur/ to their end.

Runs only while this process holds the mailbox's serve.lock. All messages enter one FIFO queue: first those left in
cur/ (delivered again), then new/, then new arrivals. Messages of this process come directly from publishing; those
of other processes by inotify. Invariant: a publish that returned before another began is queued before it; when an
own message shows that earlier ids are unknown here, their files are looked up first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from posthouse.bus.admission import MailboxCopy
from posthouse.bus.handlers import Deadline, HandlerRun
from posthouse.bus.maildir import (
    SPARE_MAX_BYTES,
    Mailbox,
    ServeLock,
    encode_dead_letter,
    remove_stray,
    write_dead_letter,
)
from posthouse.bus.results import Endpoint
from posthouse.bus.settling import EXPIRED, EndMessage, FileStatus, dead_letter_body, decode_for_endpoint, settle_file
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.budget import is_expired
from posthouse.model.clock import format_utc
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.ulid import validate_ulid

if TYPE_CHECKING:
    from posthouse.bus.session import Session


log = get_log(__name__)
_SETTLE_BATCH = 256
_QUEUE_LOW = 64
_LETTER_RETRY_S = 1.0
_MAX_QUEUED_CONTENTS = 1024  # messages whose content stays in memory while they wait; beyond that the file is read


class EndpointServer:
    """The server of one endpoint in this process."""

    def __init__(self, session: Session, endpoint: Endpoint, lock: ServeLock) -> None:
        self._session = session
        self.endpoint = endpoint
        self._lock = lock
        self._deadline = Deadline(session.loop, session.context)
        #: settled messages: directory, id, content if it is at hand
        self._queue: deque[tuple[str, str, bytes | None]] = deque()
        #: names seen but not settled: directory, name
        self._unsettled: deque[tuple[str, str]] = deque()
        self._known: set[str] = set()
        #: reserved ids whose file was not there when it was looked for
        self._missing: set[str] = set()
        #: own messages of which the watch has not told yet
        self._own: set[str] = set()
        self._newest = ""
        self._is_settling = False
        self._is_busy = False
        self.is_stopped = False
        self._run: HandlerRun | None = None

    @property
    def _mailbox(self) -> Mailbox:
        return self._session.directory.mailbox(self.endpoint.hash)

    # what comes in

    def start(self, last_id: str | None) -> None:
        """Take up what is there: cur/ first, then new/; the watch on new/ is set already."""
        self._newest = last_id or ""
        for box in ("cur", "new"):
            self._see(box, self._mailbox.names(box))
        self._refill()

    def look(self) -> None:
        """Look at new/ again: the safety net, and after the watch lost events."""
        self._own.clear()
        self._see("new", self._mailbox.names("new"))
        self._refill()

    def arrived(self, name: str) -> bool:
        """Hear of a file in new/; own ones are known already and no news."""
        if name in self._own:
            self._own.discard(name)
            return False
        if name not in self._known:
            self._see("new", [name])
            self._refill()
        return True

    def expect(self, id_: str) -> None:
        """An own message is about to appear in new/: it comes by itself, the watch need not tell."""
        self._own.add(id_)

    def find_earlier(self, page: BusTransaction, copy: MailboxCopy) -> list[str]:
        """Settle files of other processes that belong before an own message; return their ids in order."""
        candidates = set(self._missing)
        if copy.previous_id is not None and copy.previous_id > self._newest:
            rows: Any = page.db.execute(SQL.mail_between, (self.endpoint.number, self._newest, copy.id))
            candidates.update(id_ for (id_,) in rows if id_ not in self._known)
        self._newest = max(self._newest, copy.id)
        found = []
        for id_ in sorted(candidates):
            verdict, _ = settle_file(page, self.endpoint, self._mailbox, "new", id_, self._session.instance.number)
            if verdict is FileStatus.READY and self._mailbox.has(f"new/{id_}"):
                found.append(id_)
                self._missing.discard(id_)
            elif page.db.execute(SQL.mail_state, (self.endpoint.number, id_)).get is None:
                self._missing.discard(id_)
            else:
                self._missing.add(id_)
        return found

    def offer_own(self, earlier: list[str], id_: str, data: bytes) -> None:
        """Take an own message, and those of others that come before it."""
        for other in earlier:
            self._enqueue("new", other, None)
        self._enqueue("new", id_, data if len(self._queue) < _MAX_QUEUED_CONTENTS else None)
        self._pump()

    def _enqueue(self, box: str, id_: str, data: bytes | None) -> None:
        if id_ in self._known:
            return
        self._known.add(id_)
        if self._is_settling or self._unsettled:  # keep the order
            self._unsettled.append((box, id_))
        else:
            self._queue.append((box, id_, data))

    def _see(self, box: str, names: list[str]) -> None:
        for name in names:
            if name not in self._known:
                self._known.add(name)
                self._unsettled.append((box, name))

    def _refill(self) -> None:
        if self._is_settling or self.is_stopped or not self._unsettled or len(self._queue) >= _QUEUE_LOW:
            return
        batch = [self._unsettled.popleft() for _ in range(min(_SETTLE_BATCH, len(self._unsettled)))]
        self._is_settling = True
        self._session.ledger.submit(_SettleFiles(self, batch))

    def settle_batch(
        self, page: BusTransaction, batch: list[tuple[str, str]]
    ) -> list[tuple[str, str, FileStatus, str | None]]:
        """Find out what each of the files is."""
        mailbox, number = self._mailbox, self._session.instance.number
        return [(box, name, *settle_file(page, self.endpoint, mailbox, box, name, number)) for box, name in batch]

    def settled(self, found: list[tuple[str, str, FileStatus, str | None]]) -> None:
        """Go on after the batch is committed."""
        self._is_settling = False
        for box, name, verdict, reason in found:
            self._missing.discard(name)
            if verdict is FileStatus.READY:
                self._queue.append((box, name, None))
                self._newest = max(self._newest, name)
                continue
            self._known.discard(name)
            if verdict is FileStatus.ENDED:
                self._mailbox.remove(f"{box}/{name}")
            elif verdict is FileStatus.STRAY:
                self._bury(box, name, reason or "")
        self._pump()

    def settling_failed(self, batch: list[tuple[str, str]]) -> None:
        self._is_settling = False
        self._unsettled.extendleft(reversed(batch))

    # what goes out

    def pump(self) -> None:
        """Start the next message if none is in work."""
        self._pump()

    def _pump(self) -> None:
        while self._queue and not self._is_busy and not self.is_stopped:
            box, id_, data = self._queue.popleft()
            self._take(box, id_, data)
        self._refill()
        if self._queue:
            self._session.serving.backlogged.add(self.endpoint.number)
            return
        self._session.serving.backlogged.discard(self.endpoint.number)
        if not self._is_busy:
            self._session.ledger.hurry()

    def _take(self, box: str, id_: str, data: bytes | None) -> None:
        try:
            content = self._mailbox.read(f"{box}/{id_}") if data is None else data
        except FileNotFoundError:
            self._gone(box, id_)
            return
        except OSError as failure:
            self._known.discard(id_)
            self._bury(box, id_, failure.strerror or str(failure))
            return
        envelope, reason = decode_for_endpoint(self.endpoint, id_, content)
        if envelope is None:
            self._known.discard(id_)
            self._bury(box, id_, reason or "")
        elif is_expired(envelope.budget, self._session.clock.wall_ns() // MILLISECOND_NS):
            self._fail(box, envelope, content, "bus.dead", EXPIRED, None)
        else:
            self._handle(box, envelope, content)

    def _handle(self, box: str, envelope: Envelope, data: bytes) -> None:
        subscriptions = self._session.subscriptions.match(envelope.subject)
        if not subscriptions:  # waits in new/ for read_inbox, or for a handler to come
            self._known.discard(envelope.id)
            return
        if box == "new":
            try:
                self._mailbox.move(f"new/{envelope.id}", f"cur/{envelope.id}")
            except FileNotFoundError:
                self._gone(box, envelope.id)
                return
        self._is_busy = True
        session = self._session
        session.serving.steps += 1
        run = self._run = HandlerRun(
            session.loop,
            session.context,
            session.threads,
            envelope,
            self._deadline,
            session.handler_timeout_s,
            lambda reason: self._outcome(envelope, data, reason),
            self._ended,
        )
        run.start(subscriptions)

    def _outcome(self, envelope: Envelope, data: bytes, reason: str | None) -> None:
        if reason is not None:
            self._fail("cur", envelope, data, "bus.failed", reason, False)
            return
        end = EndMessage(
            self._session,
            self.endpoint,
            envelope.id,
            f"cur/{envelope.id}",
            "bus.handled",
            actor=envelope.from_,
            succeeded=True,
            is_spare=len(data) <= SPARE_MAX_BYTES,
        )
        self._known.discard(envelope.id)
        self._session.ledger.submit_lazily(end)

    def _ended(self) -> None:
        self._run = None
        self._is_busy = False
        self._session.serving.steps += 1
        if self.is_stopped:
            self._session.serving.backlogged.discard(self.endpoint.number)
            self._session.serving.stopped(self)
        else:
            self._pump()

    def _gone(self, box: str, id_: str) -> None:
        """The file was taken away behind our back: its row must not stay."""
        self._known.discard(id_)
        body = dead_letter_body(None, self.endpoint, id_, "its file is gone")
        self._session.ledger.submit_lazily(
            EndMessage(self._session, self.endpoint, id_, f"{box}/{id_}", "bus.dead", actor=None, body=body)
        )

    def _fail(
        self, box: str, envelope: Envelope, data: bytes, record: str, reason: str, succeeded: bool | None
    ) -> None:
        """Put the dead letter in its place, then end the message."""
        self._known.discard(envelope.id)
        session = self._session
        letter = encode_dead_letter(data, reason, format_utc(session.clock.wall_ns()))
        try:
            write_dead_letter(
                self._mailbox, envelope.id, session.instance.name, letter, sync=session.syncer is not None
            )
        except OSError as failure:  # the message stays where it is until there is room for its letter
            log.error("dead_letter_unwritable", id=envelope.id, reason=str(failure))
            if not self.is_stopped:
                again = (box, envelope, data, record, reason, succeeded)
                session.loop.call_later(_LETTER_RETRY_S, self._fail, *again, context=session.context)
            return
        body = dead_letter_body(envelope, self.endpoint, envelope.id, reason)
        path = f"{box}/{envelope.id}"
        session.ledger.submit(
            EndMessage(
                session,
                self.endpoint,
                envelope.id,
                path,
                record,
                actor=envelope.from_,
                body=body,
                succeeded=succeeded,
            )
        )

    def _bury(self, box: str, name: str, reason: str) -> None:
        """Turn what is no message into a dead letter with an id of its own."""
        session, path = self._session, f"{box}/{name}"
        id_ = name if _is_id(name) else session.ledger.run(lambda page: page.mint())
        text = reason if id_ == name else f"stray file {name[:80]!r}: {reason}"
        try:
            raw = remove_stray(self._mailbox, path, id_)
            letter = encode_dead_letter(None, text, format_utc(session.clock.wall_ns()), raw)
            write_dead_letter(self._mailbox, id_, session.instance.name, letter)
        except FileNotFoundError:
            return
        except OSError as failure:
            log.error("stray_file_stays", path=str(self._mailbox.path / box), reason=str(failure))
            return
        body = dead_letter_body(None, self.endpoint, id_, text)
        session.ledger.submit(
            EndMessage(session, self.endpoint, id_, path, "bus.dead", actor=None, body=body, is_known=False)
        )

    # the end of serving

    def drop(self, id_: str) -> bool:
        """Forget a waiting message that was acknowledged; return False when it is in work."""
        if self._mailbox.has(f"cur/{id_}"):
            return False
        self._queue = deque(entry for entry in self._queue if entry[1] != id_)
        self._known.discard(id_)
        return True

    def stop(self) -> bool:
        """Take no more messages; return whether nothing is in work."""
        self.is_stopped = True
        return not self._is_busy

    def cancel(self) -> None:
        """Leave the message in work where it is."""
        if self._run is not None:
            self._run.cancel()

    def release(self) -> None:
        """Free the lock, and whatever else outlives the last message."""
        self._deadline.close()
        self._lock.close()

    @property
    def is_busy(self) -> bool:
        return self._is_busy


class _SettleFiles:
    """Files of other processes and of former servers on their way into the queue."""

    __slots__ = ("_batch", "_found", "_server")

    def __init__(self, server: EndpointServer, batch: list[tuple[str, str]]) -> None:
        self._server = server
        self._batch = batch
        self._found: list[tuple[str, str, FileStatus, str | None]] = []

    def apply(self, page: BusTransaction) -> None:
        self._found = [] if self._server.is_stopped else self._server.settle_batch(page, self._batch)

    def committed(self) -> None:
        if not self._server.is_stopped:
            self._server.settled(self._found)

    def failed(self, _failure: Exception) -> bool:
        return not self._server.is_stopped


def _is_id(name: str) -> bool:
    try:
        validate_ulid(name)
    except PosthouseError:
        return False
    return True
