"""Append records to the journal inside the transaction of the change that they describe.

seq is assigned here, from the head that this transaction holds, in commit order and without gaps: a failed item
returns its numbers, and after a commit of another process the head is read again. Rows are collected and written with
few statements before the commit; code that reads the journal inside its transaction calls `flush` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import apsw
import msgspec

from posthouse.journal.records import RECORD_TYPES
from posthouse.sqlite.transaction import BulkInsert, Transaction
from posthouse.storage.batch import BatchState
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.journal", "journal.sql")
_HEAD = SQL.head
_APPEND = BulkInsert(SQL.append.rpartition("(")[0], 7)
_FIELDS = {name: frozenset(declared.body) for name, declared in RECORD_TYPES.items()}
_encode = msgspec.json.Encoder().encode

#: type, mesh, actor, ref, body as JSON text
Fact = tuple[str, str | None, str | None, str | None, str]


class JournalAppender(BatchState):
    """Collects facts for the journal of any database and assigns their seqs."""

    def __init__(self, *connection: Any) -> None:
        super().__init__(*connection)
        #: the seq of the newest record, those of this transaction included
        self.head = 0
        self._unwritten: list[tuple[int, int, str, str | None, str | None, str | None, str]] = []

    def append(
        self,
        type: str,  # noqa: A002 - the name of the column
        *,
        mesh: str | None = None,
        actor: str | None = None,
        ref: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> int:
        """Append one record and return its seq."""
        declared = _FIELDS[type]
        text = b"{}"
        if body is not None:
            if not body.keys() <= declared:
                raise ValueError(f"{type} has no body fields {sorted(body.keys() - declared)}")
            text = _encode(body)
        seq = self.head + 1
        self._unwritten.append((seq, self.now_ns, type, mesh, actor, ref, text.decode()))
        self.head = seq
        return seq

    def append_many(self, facts: Sequence[Fact]) -> int:
        """Append facts in order and return the seq of the first.

        For the hot path: the caller guarantees that types and bodies match their declarations.
        """
        first, now_ns = self.head + 1, self.now_ns
        self._unwritten += [(seq, now_ns, *fact) for seq, fact in enumerate(facts, start=first)]
        self.head += len(facts)
        return first

    def flush(self) -> None:
        """Write the records appended so far, so that statements of this transaction see them."""
        raise NotImplementedError

    def mark(self) -> int:
        self.flush()  # so that ROLLBACK TO undoes exactly the records appended after the mark
        return self.head

    def rewind(self, mark: int) -> None:
        self.head = mark
        self._unwritten = []


class CommitObserver(Protocol):
    """Sees each transaction before and after its commit."""

    def before_commit(self, at_ns: int, head: int) -> None:
        """Write what belongs to the transaction, whose records are written up to `head`."""
        ...

    def committed(self) -> None:
        """Handle the commit of the transaction."""
        ...


class JournalTransaction(JournalAppender, Transaction):
    """A transaction that can append facts to the journal of a SQLite store."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__(db)
        self._data_version = -1
        #: None: there is no observer
        self.observer: CommitObserver | None = None

    def begin(self, wall_ns: int) -> None:
        if self.db.data_version() != self._data_version:  # another connection has committed
            self.head = self.db.execute(_HEAD).get
            self.now_ns = max(self.now_ns, self.db.execute(SQL.newest_at_ns).get)
        self.wall_ns = wall_ns
        if wall_ns > self.now_ns:
            self.now_ns = wall_ns

    def flush(self) -> None:
        if self._unwritten:
            rows, self._unwritten = self._unwritten, []
            _APPEND.run(self.db, rows)

    def before_commit(self) -> None:
        self.flush()
        if self.observer is not None:
            self.observer.before_commit(self.now_ns, self.head)

    def committed(self) -> None:
        self._data_version = self.db.data_version()
        if self.observer is not None:
            self.observer.committed()

    def rolled_back(self) -> None:
        self._data_version = -1
        self._unwritten = []
