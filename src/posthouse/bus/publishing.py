"""Publishing: reserve, write the files, close the reservations, answer the publisher.

A reservation is committed before its file appears; it is closed, with its journal record, after the file is in new/
(and synced, with durability "power"); then the publisher is answered. If the process dies in between, the process
that finds the file writes the record. Publishes of one loop iteration share both transactions and never wait for
handlers. Refusals are recorded in aggregate (first one at once, then one record per minute), so that no sender can
fill the disk.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.admission import Draft, MailboxCopy, reserve
from posthouse.bus.maildir import Mailbox, encode_dead_letter
from posthouse.bus.results import Reason
from posthouse.bus.settling import CloseReservation, WithdrawReservation
from posthouse.bus.transaction import BusTransaction
from posthouse.model.clock import format_utc
from posthouse.model.errors import Transient, error
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.reliability import pressure_signal

if TYPE_CHECKING:
    from posthouse.bus.ledger import Ledger
    from posthouse.bus.session import Session


class ReservePublish:
    """The first half of a publish: its place in the ledger."""

    __slots__ = ("_draft", "_session")

    def __init__(self, session: Session, draft: Draft) -> None:
        self._session = session
        self._draft = draft

    def apply(self, page: BusTransaction) -> None:
        reserve(page, self._draft, self._session.policy, self._session.instance.number)

    def committed(self) -> None:
        for copy in self._draft.copies:
            server = self._session.serving.server(copy.number)
            if server is not None:
                server.expect(copy.id)
        if self._session.syncer is not None:
            self._session.syncer.store(self._draft)
            return
        outcomes = [(copy, store_copy(self._session, copy)) for copy in (*self._draft.copies, *self._draft.letters)]
        close_reservations(self._session, self._draft, outcomes)

    def failed(self, failure: Exception) -> bool:
        if not self._draft.future.done():
            self._draft.future.set_exception(failure)
        return False


def store_copy(session: Session, copy: MailboxCopy) -> OSError | None:
    """Put one file in its place; return why it could not be."""
    try:
        mailbox = session.directory.mailbox(copy.hash)
        data, box = copy_file(copy)
        target = f"{box}/{copy.id}"
        if not session.spares.write(copy.hash, mailbox, data, target):
            mailbox.write(copy.id, data)
            mailbox.move(f"tmp/{copy.id}", target)
    except OSError as failure:
        return failure
    return None


def copy_file(copy: MailboxCopy) -> tuple[bytes, str]:
    """Return the content of a copy's file and the directory it belongs in."""
    if copy.reason is None:
        return copy.data, "new"
    return encode_dead_letter(copy.data, copy.reason, format_utc(copy.draft.created_ms * MILLISECOND_NS)), "failed"


def close_reservations(session: Session, draft: Draft, outcomes: list[tuple[MailboxCopy, OSError | None]]) -> None:
    """Close what was stored, give back what could not be, and answer when that is committed."""
    for copy, failure in outcomes:
        draft.failure = failure or draft.failure
        draft.stored += failure is None and copy.reason is None
        session.ledger.submit(
            CloseReservation(session, copy) if failure is None else WithdrawReservation(session, copy)
        )
    session.ledger.submit(_AnswerPublisher(session, draft))


class _AnswerPublisher:
    """The last entry of a publish: everything before it is booked."""

    __slots__ = ("_draft", "_session")

    def __init__(self, session: Session, draft: Draft) -> None:
        self._session = session
        self._draft = draft

    def apply(self, page: BusTransaction) -> None:
        """Nothing is left to write."""

    def committed(self) -> None:
        _answer_publisher(self._session, self._draft)

    def failed(self, failure: Exception) -> bool:
        """Answer all the same when the store has no room: the files are in place, their records follow."""
        if isinstance(failure, Transient):
            _answer_publisher(self._session, self._draft)
        elif not self._draft.future.done():
            self._draft.future.set_exception(failure)
        return False


def _answer_publisher(session: Session, draft: Draft) -> None:
    """Tell the publisher, and its subject about mailboxes under pressure."""
    if not draft.future.done():
        if draft.failure is None:
            draft.future.set_result(draft.result())
        else:
            draft.future.set_exception(_unwritable(draft, draft.failure))
    for subject, pressure in draft.warnings:
        signal = pressure_signal(pressure, subject, session.clock.wall_ns())
        if signal is not None:
            session.signals.emit(draft.from_, signal)
    if draft.rejected:
        session.refusals.count(draft)


def _unwritable(draft: Draft, failure: OSError) -> Exception:
    failed = len(draft.copies) + len(draft.letters) - draft.stored
    return error(
        "mailbox_unwritable",
        message_id=draft.message_id,
        delivered_to=draft.stored,
        failed=failed,
        reason=failure.strerror or str(failure),
    )


_Outcome = tuple[Draft, list[tuple[MailboxCopy, OSError | None]]]


class Syncer:
    """The syncing thread of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queue: queue.SimpleQueue[Draft | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="bus syncer", daemon=True)
        self._thread.start()

    def store(self, draft: Draft) -> None:
        """Write and sync the files of a draft, then answer it."""
        self._queue.put(draft)

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            drafts = [self._queue.get()]
            while not self._queue.empty():
                drafts.append(self._queue.get())
            is_open = None not in drafts
            outcomes = self._sync([draft for draft in drafts if draft is not None])
            self._session.loop.call_soon_threadsafe(self._tell, outcomes, context=self._session.context)
        self._session.loop.call_soon_threadsafe(self._ended.set)

    def _sync(self, drafts: list[Draft]) -> list[_Outcome]:
        opened: dict[str, Mailbox] = {}
        touched: set[tuple[str, str]] = set()
        outcomes: list[_Outcome] = []
        for draft in drafts:
            results: list[tuple[MailboxCopy, OSError | None]] = []
            outcomes.append((draft, results))
            for copy in (*draft.copies, *draft.letters):
                results.append((copy, self._write(copy, opened, touched)))
        failures = {place: _sync_directory(opened[place[0]], place[1]) for place in touched}
        for mailbox in opened.values():
            mailbox.close()
        return [
            (draft, [(copy, failure or failures.get((copy.hash, _box(copy)))) for copy, failure in results])
            for draft, results in outcomes
        ]

    def _write(
        self,
        copy: MailboxCopy,
        opened: dict[str, Mailbox],
        touched: set[tuple[str, str]],
    ) -> OSError | None:
        try:
            mailbox = opened.get(copy.hash) or opened.setdefault(copy.hash, self._open(copy))
            data, box = copy_file(copy)
            mailbox.write(copy.id, data, sync=True)
            mailbox.move(f"tmp/{copy.id}", f"{box}/{copy.id}")
        except OSError as failure:
            return failure
        touched.add((copy.hash, box))
        return None

    def _open(self, copy: MailboxCopy) -> Mailbox:
        """Open the mailbox for this thread: the loop may close its own descriptor at any time."""
        directory = self._session.directory
        if copy.endpoint is None:
            return Mailbox(directory.unrouted.path, ("tmp", "failed"))
        return Mailbox(directory.path_of(copy.hash))

    def _tell(self, outcomes: list[_Outcome]) -> None:
        for draft, results in outcomes:
            close_reservations(self._session, draft, results)


def _box(copy: MailboxCopy) -> str:
    return "new" if copy.reason is None else "failed"


def _sync_directory(mailbox: Mailbox, box: str) -> OSError | None:
    try:
        mailbox.sync(box)
    except OSError as failure:
        return failure
    return None


_RECORDED_AS_DEAD = {Reason.ACCESS_DENIED, Reason.BUDGET_EXCEEDED}  # these have a bus.dead record each
#: reason, sender, subject, mailbox, and whether the publish had passed the rate and left no other record
RefusalKey = tuple[str, str, str, str, bool]
Moments = list[tuple[int, int, int]]
_MOMENTS_MAX = 1_024  # of one key and minute: some 30 KB
_decode_reserved = msgspec.json.Decoder(tuple[int, int, int]).decode


class RefusalLog:
    """Counts what was refused in the current minute."""

    def __init__(self, ledger: Ledger, minute: Callable[[], int]) -> None:
        self._ledger = ledger
        self._minute = minute
        self._current = -1
        self._counts: dict[RefusalKey, Moments] = {}

    def count(self, draft: Draft) -> None:
        """Note the refusals of one publish."""
        self.turn()
        seq, boot_ns, is_rated = _decode_reserved(draft.reserved)
        is_charged = bool(is_rated) and not draft.copies and not draft.letters
        for entry in draft.rejected:
            if entry.reason in _RECORDED_AS_DEAD:
                continue
            is_charged = is_charged and entry.reason is not Reason.RATE_LIMITED
            key = (entry.reason.value, draft.from_, entry.subject, entry.endpoint_hash, is_charged)
            is_charged = False  # one publish counts once
            if key in self._counts:
                _add_moment(self._counts[key], seq, boot_ns)
            else:
                self._counts[key] = []
                self._ledger.submit_lazily(_RecordRefusals(key, self._current, [(seq, boot_ns, 1)]))

    def turn(self) -> None:
        """Record the minute that is over."""
        minute = self._minute()
        if minute != self._current:
            self.write()
            self._current = minute

    def write(self) -> None:
        """Record what is counted so far."""
        for key, moments in self._counts.items():
            if moments:
                self._ledger.submit_lazily(_RecordRefusals(key, self._current, moments))
        self._counts = {}


class _RecordRefusals:
    """One aggregated record."""

    __slots__ = ("_key", "_minute", "_moments")

    def __init__(self, key: RefusalKey, minute: int, moments: Moments) -> None:
        self._key = key
        self._minute = minute
        self._moments = moments

    def apply(self, page: BusTransaction) -> None:
        reason, sender, subject, endpoint_hash, is_charged = self._key
        count = sum(times for _seq, _boot_ns, times in self._moments)
        body: dict[str, Any] = {"reason": reason, "key": f"{sender} {subject}", "minute": self._minute}
        body |= {"count": count, "endpoint_hash": endpoint_hash, "moments": self._moments}
        if is_charged:
            body["charged"] = True
        page.tx.append("bus.refused", actor=sender, ref=reason, body=body)

    def committed(self) -> None:
        """Nothing is left to do."""

    def failed(self, _failure: Exception) -> bool:
        return True


def _add_moment(moments: Moments, seq: int, boot_ns: int) -> None:
    """Count one more refusal: at its own moment, or at the last one when it is the same or there are too many."""
    is_full = len(moments) >= _MOMENTS_MAX
    if moments and (is_full or moments[-1][:2] == (seq, boot_ns)):
        last_seq, last_boot_ns, times = moments[-1]
        moments[-1] = (last_seq, last_boot_ns, times + 1)
    else:
        moments.append((seq, boot_ns, 1))
