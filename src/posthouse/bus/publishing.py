"""Publishing: decide, write the files, record them, answer the publisher.

A small message takes one transaction: its file is moved to new/ before the commit that adds its row and its journal
record, and a rollback removes the file. Large messages, those that must survive a loss of power and dead letters take
two: rows that reserve them are committed before their files are written, on a thread, and closed afterwards. The
publisher gets its answer after the last commit. If the process dies in between, the process that finds the file writes
the record. Publishes of one loop iteration share their transactions and never wait for handlers.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from functools import partial
from typing import Any

import msgspec

from posthouse.bus.admission import Admission, Draft, MailboxCopy
from posthouse.bus.core import Core
from posthouse.bus.maildir import Mailbox, encode_dead_letter
from posthouse.bus.refusals import RefusalLog
from posthouse.bus.results import PublishResult
from posthouse.bus.settling import record_stored, reserve_copy, withdraw_copy
from posthouse.bus.signals import Signals
from posthouse.bus.transaction import BusTransaction
from posthouse.log import get_log
from posthouse.model.budget import MESH_CEILING, MeshBudget, to_bus_budget
from posthouse.model.clock import format_utc
from posthouse.model.envelope import encode_payload, json_payload
from posthouse.model.errors import Transient, error
from posthouse.model.limits import MILLISECOND_NS, SECOND_NS
from posthouse.model.reliability import pressure_signal
from posthouse.model.strict_json import exceeds
from posthouse.model.subjects import validate_subject

log = get_log(__name__)
LARGE_BYTES = 256 * 1024  # encoding or writing more would block the event loop for more than a millisecond
_INSIDE_MAX_BYTES = 64 * 1024  # written while the transaction keeps other processes from writing: nearly every message
_ITEM_COST_BYTES = 64  # checking one value of a payload takes as long as encoding that much text
#: each copy of a publish, and why its file could not be stored
StoredCopies = list[tuple[MailboxCopy, OSError | None]]


class Publisher:
    """The publishing side of one open Bus."""

    def __init__(self, core: Core, signals: Signals) -> None:
        self.core = core
        self.admission = Admission(core.policy)
        self.refusals = RefusalLog(core.ledger, lambda: core.clock.wall_ns() // (60 * SECOND_NS))
        self._thread: FileWriter | None = None
        self._signals = signals

    def encode_small(self, payload: Any) -> msgspec.Raw | None:
        """Return the JSON text of a payload; None if it is large."""
        if exceeds(payload, LARGE_BYTES, per_item=_ITEM_COST_BYTES):
            return None
        return encode_payload(payload, self.core.max_payload_bytes)

    async def encode_large(self, payload: Any) -> msgspec.Raw:
        """Return the JSON text of a payload, encoded on a thread, so that the loop continues."""
        max_bytes = self.core.max_payload_bytes
        if exceeds(payload, max_bytes):
            raise error("payload_too_large", limit_bytes=max_bytes)
        return await asyncio.to_thread(encode_payload, payload, max_bytes)

    async def publish(self, draft: Draft) -> PublishResult:
        """Store a message in every mailbox that admits it and return the result."""
        future = draft.future = self.core.loop.create_future()
        self.core.ledger.submit_publish(_Publish(self, draft))
        result: PublishResult = await future
        return result

    def post(self, draft: Draft) -> None:
        """Publish without waiting for the result."""
        self.core.ledger.submit_publish(_Publish(self, draft))

    async def close(self) -> None:
        """Store the publishes that wait for the disk, then end the writing thread."""
        if self._thread is not None:
            await self._thread.close()

    def store_inside(self, tx: BusTransaction, draft: Draft) -> _ClosePublish | None:
        """Store a small publish inside the transaction that decides it; return None if that takes a second one."""
        copies = draft.copies
        if (
            draft.dead_letters
            or self.core.is_power_safe
            or sum([len(copy.data) for copy in copies]) > _INSIDE_MAX_BYTES
        ):
            return None
        for copy in copies:
            self.expect_own(copy)
            tx.journal.undo.append(partial(_remove_stored, self.core, copy))
        closing = _ClosePublish(
            self, draft, _count_stored(draft, [(copy, _store_copy(self.core, copy)) for copy in copies]), []
        )
        closing.apply(tx)
        return closing

    def expect_own(self, copy: MailboxCopy) -> None:
        """Announce to the server of the endpoint, if it is in this process, that a copy is about to appear in new/."""
        server = self.core.servers.get(copy.number)
        if server is not None:
            server.expect_own(copy.id)

    def store(self, draft: Draft) -> None:
        """Write the files of a reserved publish: here if they are small and need no sync, else on a thread."""
        copies = (*draft.copies, *draft.dead_letters)
        if not self.core.is_power_safe and sum([len(copy.data) for copy in copies]) <= LARGE_BYTES:
            self.close_reservations(draft, [(copy, _store_copy(self.core, copy)) for copy in copies])
            return
        if self._thread is None:
            self._thread = FileWriter(self)
        self._thread.store(draft)

    def close_reservations(self, draft: Draft, copies: StoredCopies) -> None:
        """Close the reservations of stored copies, withdraw the rest, then answer the publisher."""
        self.close_next(draft, _count_stored(draft, copies))

    def close_next(self, draft: Draft, copies: StoredCopies) -> None:
        """Close as many copies as fit into one transaction; later transactions close the rest."""
        count = size = 0
        while count < len(copies) and size <= LARGE_BYTES:
            size += len(copies[count][0].data)
            count += 1
        self.core.ledger.submit(_ClosePublish(self, draft, copies[:count], copies[count:]))

    def answer(self, draft: Draft) -> None:
        """Resolve the publisher's future."""
        if draft.failure is None:
            _resolve(draft, draft.result())
        else:
            _resolve(draft, _unwritable(draft, draft.failure))
        self._report(draft)
        draft.drop_copies()

    def _report(self, draft: Draft) -> None:
        """Signal the publisher's subject about mailboxes under pressure, and count refusals."""
        if draft.is_notice or (draft.is_waiting and draft.is_refused_for_now):
            return
        for subject, pressure in draft.warnings:
            signal = pressure_signal(pressure, subject, self.core.clock.wall_ns())
            if signal is not None:
                self._signals.emit(draft.from_, signal)
        if draft.rejected or not draft.copies:
            self.refusals.count(draft)


async def publish_bridged(
    publisher: Publisher,
    subject: str,
    payload: Any,
    *,
    from_: str,
    budget: MeshBudget,
    reply_to: str | None = None,
    in_reply_to: str | None = None,
) -> PublishResult:
    """Store a message from the mesh in every mailbox that its subject reaches; with `in_reply_to` it is a return."""
    for name in (subject, from_, *(() if reply_to is None else (reply_to,))):
        validate_subject(name)
    given = to_bus_budget(budget)
    draft = Draft(
        subject,
        json_payload(payload),
        from_,
        reply_to=reply_to,
        in_reply_to=in_reply_to,
        given=given,
        ceiling=MESH_CEILING,
    )
    return await publisher.publish(draft)


class _Publish:
    """Ledger operation: a whole publish, or its first half, after which the files are written."""

    __slots__ = ("_closing", "_draft", "_publisher")

    def __init__(self, publisher: Publisher, draft: Draft) -> None:
        self._publisher = publisher
        self._draft = draft
        #: the second half, if it was part of the same transaction
        self._closing: _ClosePublish | None = None

    def apply(self, tx: BusTransaction) -> None:
        publisher, draft = self._publisher, self._draft
        publisher.admission.decide(tx, draft)
        self._closing = publisher.store_inside(tx, draft)
        if self._closing is None:
            for copy in (*draft.copies, *draft.dead_letters):
                reserve_copy(publisher.core, tx, copy)

    def on_committed(self) -> None:
        publisher, draft = self._publisher, self._draft
        if self._closing is not None:
            self._closing.on_committed()
            return
        for copy in draft.copies:
            publisher.expect_own(copy)
        publisher.store(draft)

    def on_failed(self, failure: Exception) -> bool:
        _resolve(self._draft, failure)
        return False


class _ClosePublish:
    """Ledger operation, the second half of a publish: the files are stored, or could not be."""

    __slots__ = ("_copies", "_draft", "_earlier", "_is_answered", "_publisher", "_rest")

    def __init__(self, publisher: Publisher, draft: Draft, copies: StoredCopies, rest: StoredCopies) -> None:
        self._publisher = publisher
        self._draft = draft
        self._copies = copies
        #: copies that are closed after these
        self._rest = rest
        #: ids that the endpoint's server queues before each copy
        self._earlier: list[list[str]] = []
        self._is_answered = False

    def apply(self, tx: BusTransaction) -> None:
        core, self._earlier = self._publisher.core, []
        for copy, failure in self._copies:
            if failure is None:
                self._earlier.append(record_stored(core, tx, copy))
            else:
                self._earlier.append([])
                withdraw_copy(core, tx, copy)

    def on_committed(self) -> None:
        try:
            self._offer_copies()
        finally:  # the publish stays committed, whatever fails in a server
            self._go_on()

    def _offer_copies(self) -> None:
        for (copy, failure), earlier in zip(self._copies, self._earlier, strict=True):
            server = None if failure or copy.reason is not None else self._publisher.core.servers.get(copy.number)
            if server is not None:
                server.offer_own(earlier, copy.id, copy.data)

    def on_failed(self, failure: Exception) -> bool:
        """Answer at once if the store has no room: the files are stored, and a retry writes their records.

        After any other failure the publisher gets the exception, and the servers settle the stored files.
        """
        if isinstance(failure, Transient):
            self._answer()
            return True
        _resolve(self._draft, failure)
        for copy, _failure in self._copies:
            server = self._publisher.core.servers.get(copy.number)
            if server is not None:
                server.rescan_later()
        if self._rest:
            self._publisher.close_next(self._draft, self._rest)
        return False

    def _go_on(self) -> None:
        if self._rest:
            self._publisher.close_next(self._draft, self._rest)
        else:
            self._answer()

    def _answer(self) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._publisher.answer(self._draft)


def _resolve(draft: Draft, result: PublishResult | Exception) -> None:
    future = draft.future
    if future is None or future.done():  # the publisher was cancelled
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _count_stored(draft: Draft, copies: StoredCopies) -> StoredCopies:
    for copy, failure in copies:
        draft.failure = failure or draft.failure
        draft.stored += failure is None and copy.reason is None
    return copies


def _remove_stored(core: Core, copy: MailboxCopy) -> None:
    """Remove the file of a message whose transaction is rolled back; if it stays, it is adopted as a message later."""
    try:
        core.directory.recent_mailbox(copy.hash).remove(f"new/{copy.id}")
    except OSError as failure:
        log.error("withdrawn_message_stays", id=copy.id, reason=str(failure))


def _store_copy(core: Core, copy: MailboxCopy) -> OSError | None:
    """Write the file of one copy; return why that failed."""
    try:
        data, folder = _file_of(copy)
        target = f"{folder}/{copy.id}"
        try:
            _write_file(core, core.directory.recent_mailbox(copy.hash), copy, data, target)
        except FileNotFoundError:  # another process may have removed the mailbox and made it again
            _write_file(core, core.directory.mailbox(copy.hash), copy, data, target)
    except OSError as failure:
        return failure
    return None


def _write_file(core: Core, mailbox: Mailbox, copy: MailboxCopy, data: bytes, target: str) -> None:
    if not core.spares.write(copy.hash, mailbox, data, target):
        mailbox.write(copy.id, data)
        mailbox.move(f"tmp/{copy.id}", target)


def _file_of(copy: MailboxCopy) -> tuple[bytes, str]:
    """Return the content of a copy's file and the folder it belongs in."""
    if copy.reason is None:
        return copy.data, "new"
    failed_at = format_utc(copy.draft.created_ms * MILLISECOND_NS)
    refused = "no_endpoint" if copy.refusal is None else copy.refusal.code.value
    data = encode_dead_letter(copy.data, copy.reason, failed_at, refused=refused)
    copy.file_bytes = len(data)
    return data, "failed"


def _unwritable(draft: Draft, failure: OSError) -> Exception:
    failed = len(draft.copies) + len(draft.dead_letters) - draft.stored
    return error(
        "mailbox_unwritable",
        message_id=draft.message_id,
        delivered_to=draft.stored,
        failed=failed,
        reason=failure.strerror or str(failure),
    )


class FileWriter:
    """The thread that writes large files, and all files when publishes must survive a loss of power.

    It takes all waiting publishes at once, so that they share the sync of each directory.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._directory = publisher.core.directory
        self._is_synced = publisher.core.is_power_safe
        self._queue: queue.SimpleQueue[Draft | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="bus file writer", daemon=True)
        self._thread.start()

    def store(self, draft: Draft) -> None:
        """Write the files of a publish, then close its reservations."""
        self._queue.put(draft)

    async def close(self) -> None:
        """Finish the queue, then end the thread."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _serve(self) -> None:
        core = self._publisher.core
        is_open = True
        while is_open:
            drafts = [self._queue.get()]
            while not self._queue.empty():
                drafts.append(self._queue.get())
            is_open = None not in drafts
            stored = self._store([draft for draft in drafts if draft is not None])
            core.loop.call_soon_threadsafe(self._on_stored, stored, context=core.context)
        core.loop.call_soon_threadsafe(self._ended.set)

    def _store(self, drafts: list[Draft]) -> list[tuple[Draft, StoredCopies]]:
        mailboxes: dict[str, Mailbox] = {}
        written: list[tuple[Draft, StoredCopies]] = []
        for draft in drafts:
            copies = (*draft.copies, *draft.dead_letters)
            written.append((draft, [(copy, self._write(copy, mailboxes)) for copy in copies]))
        stored = [copy for _, copies in written for copy, failure in copies if failure is None]
        folders = {_folder_of(copy) for copy in stored if self._is_synced}
        failures = {(hash_, folder): _sync_folder(mailboxes[hash_], folder) for hash_, folder in folders}
        for mailbox in mailboxes.values():
            mailbox.close()
        return [
            (draft, [(copy, failure or failures.get(_folder_of(copy))) for copy, failure in copies])
            for draft, copies in written
        ]

    def _write(self, copy: MailboxCopy, mailboxes: dict[str, Mailbox]) -> OSError | None:
        try:
            mailbox = mailboxes.get(copy.hash)
            if mailbox is None:
                mailbox = mailboxes[copy.hash] = self._open(copy)
            data, folder = _file_of(copy)
            mailbox.write(copy.id, data, sync=self._is_synced)
            mailbox.move(f"tmp/{copy.id}", f"{folder}/{copy.id}")
        except OSError as failure:
            return failure
        return None

    def _open(self, copy: MailboxCopy) -> Mailbox:
        """Open the mailbox for this thread: the loop may close its own descriptor at any time."""
        if copy.endpoint is None:
            return Mailbox(self._directory.unrouted.path, ("tmp", "failed"))
        return Mailbox(self._directory.path_of(copy.hash))

    def _on_stored(self, stored: list[tuple[Draft, StoredCopies]]) -> None:
        for draft, copies in stored:
            self._publisher.close_reservations(draft, copies)


def _folder_of(copy: MailboxCopy) -> tuple[str, str]:
    return copy.hash, "new" if copy.reason is None else "failed"


def _sync_folder(mailbox: Mailbox, folder: str) -> OSError | None:
    try:
        mailbox.sync(folder)
    except OSError as failure:
        return failure
    return None
