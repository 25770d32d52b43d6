"""Arriving messages of one endpoint: from files in new/ into the one FIFO queue of its server.

Messages of this process arrive directly from publishing, those of other processes through inotify, with a rescan of
new/ as the safety net. Invariant: a publish that returned before another began is queued before it; if a message of
this process shows that earlier ids are unknown here, their files are looked up first. A file that cannot be settled is
logged and tried again; it never keeps the other messages waiting. Nothing is started, moved or ended here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from posthouse.bus.core import Core
from posthouse.bus.maildir import Mailbox
from posthouse.bus.results import Endpoint
from posthouse.bus.settling import FileStatus, Settled, settle_file
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.errors import Fatal, PosthouseError, Transient

log = get_log(__name__)
_SETTLE_BATCH = 256
_QUEUE_LOW = 64
RETRY_S = 1.0  # after a full disk or an unexpected failure
_MAX_QUEUED_CONTENTS = 1024  # queued messages whose content stays in memory; the files of the others are read


class Queued(msgspec.Struct, frozen=True, gc=False):
    """A settled message in new/ that waits for its handlers; `data` is None if the file must be read."""

    id: str
    data: bytes | None = None
    #: how often it was delivered before and not finished
    attempts: int = 0


class Arrivals:
    """The queue of one served endpoint."""

    def __init__(
        self, core: Core, endpoint: Endpoint, on_queued: Callable[[], None], on_invalid: Callable[[str, str], None]
    ) -> None:
        """`on_queued` follows new entries of `queue`; `on_invalid` gets the name of a file that is not a message."""
        self._core = core
        self._endpoint = endpoint
        self._on_queued = on_queued
        self._on_invalid = on_invalid
        self.queue: deque[Queued] = deque()
        self._unsettled: deque[str] = deque()
        self._settle_batch = _SETTLE_BATCH
        #: names of files that are unsettled, queued or being handled
        self._seen: set[str] = set()
        #: reserved ids whose file did not exist when the server looked for it
        self._reserved_without_file: set[str] = set()
        #: messages of this process whose inotify event has not arrived yet
        self._expected_own: set[str] = set()
        self._newest = ""
        self._is_settling = False
        #: False until `start` has listed the files: files that arrive before that are in the listing
        self._is_started = False
        self.is_stopped = False
        self._rescan: asyncio.TimerHandle | None = None

    @property
    def _mailbox(self) -> Mailbox:
        return self._core.directory.mailbox(self._endpoint.hash)

    def start(self, last_id: str | None) -> None:
        """Queue the files that exist; new/ is being watched already."""
        self._newest = last_id or ""
        self._is_started = True
        self.rescan()

    def stop(self) -> None:
        """Stop queueing messages."""
        self.is_stopped = True
        if self._rescan is not None:
            self._rescan.cancel()

    # news

    def rescan(self) -> None:
        """Scan new/ again: the safety net, and the answer to lost inotify events."""
        if not self._is_started:
            return
        self._expected_own.clear()
        try:
            names = self._mailbox.names("new")
        except (OSError, PosthouseError) as failure:  # damaged or removed: housekeeping scans it again
            log.error("mailbox_not_scanned", subject=self._endpoint.subject, reason=str(failure))
            return
        self._discover(names)
        self.refill()

    def rescan_later(self) -> None:
        """Rescan after a short delay, once for all files that fail until then."""
        if self._rescan is None and not self.is_stopped:
            self._rescan = self._core.loop.call_later(RETRY_S, self._rescan_now, context=self._core.context)

    def _rescan_now(self) -> None:
        self._rescan = None
        if not self.is_stopped:
            self.rescan()

    def on_file(self, name: str) -> bool:
        """Queue a file that appeared in new/; return False for messages of this process, which publishing queues."""
        if name in self._expected_own:
            self._expected_own.discard(name)
            return False
        if name not in self._seen and self._is_started:
            self._discover([name])
            self.refill()
        return True

    def expect_own(self, id_: str) -> None:
        """Ignore the next inotify event for this id."""
        self._expected_own.add(id_)

    def find_earlier(self, tx: BusTransaction, id_: str, previous_id: str | None) -> list[str]:
        """Settle messages of other processes reserved before one of this process; return their ids in order."""
        if not self._is_started:
            return []
        is_next = previous_id is None or previous_id <= self._newest
        if is_next and not self._reserved_without_file:  # nearly every message
            self._newest = max(self._newest, id_)
            return []
        candidates = set(self._reserved_without_file)
        if not is_next:
            rows: Any = tx.db.execute(SQL.mail_between, (self._endpoint.number, self._newest, id_))
            candidates.update(found for (found,) in rows if found not in self._seen)
        self._newest = max(self._newest, id_)
        return [candidate for candidate in sorted(candidates) if self._settle_earlier(tx, candidate)]

    def _settle_earlier(self, tx: BusTransaction, id_: str) -> bool:
        mailbox, number = self._mailbox, self._endpoint.number
        status = settle_file(tx, self._endpoint, mailbox, "new", id_, self._core.instance.number).status
        if status is FileStatus.READY and mailbox.has(f"new/{id_}"):
            self._reserved_without_file.discard(id_)
            return True
        if tx.db.execute(SQL.mail_row, (number, id_)).get is None or status is FileStatus.CLAIMED:
            self._reserved_without_file.discard(id_)
        else:
            self._reserved_without_file.add(id_)
        return False

    def offer_own(self, earlier: list[str], id_: str, data: bytes) -> None:
        """Queue a message of this process, after earlier messages of other processes."""
        if not self._is_started:
            return
        for other in earlier:
            self._enqueue(Queued(other))
        self._enqueue(Queued(id_, data if len(self.queue) < _MAX_QUEUED_CONTENTS else None))
        self._on_queued()

    def forget(self, id_: str) -> None:
        """Forget a message that has ended, or that another process works on."""
        self._seen.discard(id_)

    def withdraw(self, id_: str) -> None:
        """Remove a message from the queue."""
        self.queue = deque(message for message in self.queue if message.id != id_)
        self._seen.discard(id_)

    # settling

    def _enqueue(self, message: Queued) -> None:
        if message.id in self._seen:
            return
        self._seen.add(message.id)
        if self._is_settling or self._unsettled:  # files seen before it go first
            self._unsettled.append(message.id)
        else:
            self.queue.append(message)

    def _discover(self, names: list[str]) -> None:
        for name in names:
            if name not in self._seen:
                self._seen.add(name)
                self._unsettled.append(name)

    def refill(self) -> None:
        """Settle the next files if the queue runs low."""
        if self._is_settling or self.is_stopped or not self._unsettled or len(self.queue) >= _QUEUE_LOW:
            return
        batch = [self._unsettled.popleft() for _ in range(min(self._settle_batch, len(self._unsettled)))]
        self._is_settling = True
        self._core.ledger.submit(_SettleFiles(self, batch))

    def settle(self, tx: BusTransaction, batch: list[str]) -> list[Settled]:
        """Settle the files of a batch."""
        mailbox, instance = self._mailbox, self._core.instance.number
        return [settle_file(tx, self._endpoint, mailbox, "new", name, instance) for name in batch]

    def on_settled(self, batch: list[str], found: list[Settled]) -> None:
        """Queue the messages of a committed batch and remove the other files."""
        self._is_settling = False
        self._settle_batch = min(_SETTLE_BATCH, self._settle_batch * 2)
        for name, settled in zip(batch, found, strict=True):
            self._reserved_without_file.discard(name)
            if settled.status is FileStatus.READY:
                self.queue.append(Queued(name, None, settled.attempts))
                self._newest = max(self._newest, name)
                continue
            self._seen.discard(name)
            try:
                self._remove_settled(name, settled)
            except Exception as failure:  # the rest of the batch must be queued whatever happens to one file
                log.error("settled_file_stays", path=f"new/{name}", exc_info=failure)
        self._on_queued()

    def _remove_settled(self, name: str, settled: Settled) -> None:
        if settled.status is FileStatus.ENDED:
            self._mailbox.remove(f"new/{name}")
        elif settled.status is FileStatus.INVALID:
            self._on_invalid(name, settled.reason)

    def on_settling_failed(self, batch: list[str], failure: Exception) -> None:
        """Settle the files of a failed batch one by one; leave out a file that fails alone until the next rescan."""
        self._is_settling = False
        if len(batch) > 1:
            self._unsettled.extendleft(reversed(batch))
            self._settle_batch = 1
        else:
            log.error("file_not_settled", path=f"new/{batch[0]}", exc_info=failure)
            self._seen.discard(batch[0])
            self.rescan_later()
        self.refill()


class _SettleFiles:
    """Ledger operation: settle files of other processes and of former servers."""

    __slots__ = ("_arrivals", "_batch", "_found")

    def __init__(self, arrivals: Arrivals, batch: list[str]) -> None:
        self._arrivals = arrivals
        self._batch = batch
        self._found: list[Settled] = []

    def apply(self, tx: BusTransaction) -> None:
        if not self._arrivals.is_stopped:
            self._found = self._arrivals.settle(tx, self._batch)

    def on_committed(self) -> None:
        if not self._arrivals.is_stopped:
            self._arrivals.on_settled(self._batch, self._found)

    def on_failed(self, failure: Exception) -> bool:
        if self._arrivals.is_stopped or isinstance(failure, Fatal):
            return False
        if isinstance(failure, Transient):
            return True
        self._arrivals.on_settling_failed(self._batch, failure)
        return False
