"""One write transaction for many items on PostgreSQL, in one pipeline; at most one in the whole cluster at a time.

Each group begins with a transaction-level advisory lock, so that groups of all relays follow one another and every
group sees the head that the one before it left. Statements that return nothing are queued and go out together with
COMMIT. Items run first without savepoints; if one fails, the group is rolled back and runs again with a savepoint for
each item, as on SQLite. If the connection is lost while COMMIT is under way, this module queries the server for the
outcome of the transaction until it is settled: no group gets a wrong answer.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg

from posthouse.log import get_log
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal, PosthouseError, copy_error
from posthouse.postgresql.server_connection import ServerConnection, is_of_server, open_writer_session, translate
from posthouse.postgresql.store_url import shown_url
from posthouse.storage.batch import BatchState, Item

log = get_log(__name__)
WRITE_LOCK = 0x706F7374_00000001  # "post": held by the transaction that writes
_RETRY_S = 0.1  # between two queries about an unsettled transaction
_CHAIN_MAX = 10  # exceptions that are followed to the failure behind them
Items = Sequence[Item[Any]]


class GroupTransaction(BatchState):
    """The write session of a store and its transactions; used by one thread at a time."""

    db: ServerConnection

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.changes = 0
        self._closing = threading.Event()
        self._is_committing = False
        self.xact_id: str | None = None
        self.db = self.open_session()

    def open_session(self) -> ServerConnection:
        """Open a session to write with; raise a PosthouseError if that is not possible now."""
        return open_writer_session(self.url)

    def commit_items(self, items: Items, clock: Clock, path: str) -> Fatal | None:
        """Run `items` in one transaction and set the result or error of each."""
        del path
        try:
            wall_ns = clock.wall_ns()
            self._transact_again_if_lost(items, wall_ns, is_isolated=False)
        except BaseException as exc:  # noqa: BLE001 - the callers get it
            if len(items) == 1 or isinstance(exc, Fatal) or self.db.is_lost or is_of_server(_cause(exc)):
                return _fail_all(items, self._to_caller_error(exc))
        else:
            return None
        try:
            self._transact_again_if_lost(items, wall_ns, is_isolated=True)
        except BaseException as exc:  # noqa: BLE001 - raised by the transaction, not by an item
            return _fail_all(items, self._to_caller_error(exc))
        return None

    def stop_waiting(self) -> None:
        """Stop asking for the outcome of a lost transaction; any thread may call it."""
        self._closing.set()

    def close(self, *, is_failed: bool) -> None:
        """End the session."""
        del is_failed
        self.db.close()

    def _transact_again_if_lost(self, items: Items, wall_ns: int, *, is_isolated: bool) -> None:
        """Run a transaction; run it again if the session was lost before COMMIT, because then nothing was written."""
        if self.db.is_lost:
            self.db = self.open_session()
        try:
            self._transact(items, wall_ns, is_isolated)
            return
        except BaseException:
            if not self.db.is_lost or self._is_committing:
                raise
        self.db = self.open_session()
        self._transact(items, wall_ns, is_isolated)

    def _transact(self, items: Items, wall_ns: int, is_isolated: bool) -> None:
        """BEGIN, run, COMMIT; if anything raises, roll back everything, unless the server did commit."""
        self.xact_id, self._is_committing = None, False
        try:
            with self.db.pipeline(prepares=not is_isolated):
                self.db.queue("BEGIN")
                self.db.queue("SELECT pg_advisory_xact_lock($1)", WRITE_LOCK)
                self.begin(wall_ns)
                if is_isolated:
                    self._run_with_savepoints(items)
                else:
                    self._run_together(items)
                self.before_commit()
                self._is_committing = True
                self.db.queue("COMMIT")
        except BaseException:
            if not (self._is_committing and self.db.is_lost and self._was_committed()):
                self._roll_back()
                raise
        self.undo.clear()
        self.committed()
        self.changes += 1

    def _run_together(self, items: Items) -> None:
        for item in items:
            item.result = item.work(self)
            item.error = None

    def _run_with_savepoints(self, items: Items) -> None:
        for item in items:
            mark, undo_count = self.mark(), len(self.undo)
            self.db.queue("SAVEPOINT item")
            try:
                with self.db.pipeline():
                    item.result = item.work(self)
                    self.mark()
                item.error = None
            except BaseException as exc:
                if is_of_server(_cause(exc)):
                    raise
                self.db.queue("ROLLBACK TO item")
                self.rewind(mark)
                self.take_back(undo_count)
                item.result, item.error = None, _without_stop(exc)
            self.db.queue("RELEASE item")

    def _roll_back(self) -> None:
        self.rolled_back()
        self.take_back()
        try:
            if not self.db.is_lost:
                self.db.queue("ROLLBACK")
        except psycopg.Error:
            self.db.close()  # the server rolls back a transaction that a session leaves open

    def _was_committed(self) -> bool:
        """Ask for the outcome of the transaction until it is settled."""
        log.warning("commit_unsettled", store=shown_url(self.url), xact_id=self.xact_id)
        while not self._closing.wait(_RETRY_S):
            try:
                self.db = self.open_session()
                status = self.ask_outcome()
            except (PosthouseError, psycopg.Error):
                continue
            if status != "in progress":
                log.info("commit_settled", store=shown_url(self.url), xact_id=self.xact_id, status=status)
                return bool(status == "committed")
        return False

    def ask_outcome(self) -> str | None:
        """Return the outcome of the last transaction; like a commit, the answer waits for a synchronous standby."""
        found = self.db.row("SELECT pg_xact_status($1::text::xid8), pg_current_xact_id()::text", self.xact_id)
        return None if found is None else found[0]

    def _to_caller_error(self, exc: BaseException) -> BaseException:
        cause = _cause(exc)
        if isinstance(cause, psycopg.Error) and is_of_server(cause):
            return translate(cause, self.url)
        return _without_stop(exc)


def _cause(exc: BaseException) -> BaseException:
    """Return the failure of the server behind an exception, or the exception itself."""
    cause: BaseException | None = exc
    for _ in range(_CHAIN_MAX):
        if cause is None or is_of_server(cause):
            return cause or exc
        cause = cause.__cause__ or cause.__context__
    return exc


def _without_stop(exc: BaseException) -> BaseException:
    return RuntimeError(f"the item raised {exc!r}") if isinstance(exc, StopIteration) else exc  # no future carries it


def _fail_all(items: Items, failure: BaseException) -> Fatal | None:
    for item in items:
        item.result = None
        item.error = copy_error(failure) if isinstance(failure, PosthouseError) and len(items) > 1 else failure
    return failure if isinstance(failure, Fatal) else None
