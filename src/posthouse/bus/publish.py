"""The publish stage: from a checked draft to files in mailboxes and an answer.

A reservation is committed before its file appears, and closed with its record right after the file is in new/ (and
synced, under "power"); then the publisher is answered. A process that dies in between leaves the record to whoever
finds the file. Publishes of one turn of the loop share both transactions. Handlers are never waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.bus.draft import Copy, Draft
from posthouse.bus.ending import Withdraw
from posthouse.bus.letters import letter_bytes
from posthouse.bus.page import Page
from posthouse.bus.reserve import reserve
from posthouse.bus.settle import Close
from posthouse.model.errors import Transient, error
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.pressure import pressure_signal
from posthouse.model.timestamps import format_utc

if TYPE_CHECKING:
    from posthouse.bus.session import Session


class Reserve:
    """The first half of a publish: its place in the ledger."""

    __slots__ = ("_draft", "_session")

    def __init__(self, session: Session, draft: Draft) -> None:
        self._session = session
        self._draft = draft

    def apply(self, page: Page) -> None:
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
        finish(self._session, self._draft, outcomes)

    def failed(self, failure: Exception) -> bool:
        if not self._draft.future.done():
            self._draft.future.set_exception(failure)
        return False


def store_copy(session: Session, copy: Copy) -> OSError | None:
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


def copy_file(copy: Copy) -> tuple[bytes, str]:
    """Return the content of a copy's file and the directory it belongs in."""
    if copy.reason is None:
        return copy.data, "new"
    return letter_bytes(copy.data, copy.reason, format_utc(copy.draft.created_ms * MILLISECOND_NS)), "failed"


def finish(session: Session, draft: Draft, outcomes: list[tuple[Copy, OSError | None]]) -> None:
    """Close what was stored, give back what could not be, and answer when that is committed."""
    for copy, failure in outcomes:
        draft.failure = failure or draft.failure
        draft.stored += failure is None and copy.reason is None
        session.ledger.submit(Close(session, copy) if failure is None else Withdraw(session, copy))
    session.ledger.submit(_Answer(session, draft))


class _Answer:
    """The last entry of a publish: everything before it is booked."""

    __slots__ = ("_draft", "_session")

    def __init__(self, session: Session, draft: Draft) -> None:
        self._session = session
        self._draft = draft

    def apply(self, page: Page) -> None:
        """Nothing is left to write."""

    def committed(self) -> None:
        _answer(self._session, self._draft)

    def failed(self, failure: Exception) -> bool:
        """Answer all the same when the store has no room: the files are in place, their records follow."""
        if isinstance(failure, Transient):
            _answer(self._session, self._draft)
        elif not self._draft.future.done():
            self._draft.future.set_exception(failure)
        return False


def _answer(session: Session, draft: Draft) -> None:
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
